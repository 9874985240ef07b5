"""A pytest plugin that puts our backend in the place of joblib's own in joblib's tests.

Their lists of backends are fixed, so this replaces the values with which they are parametrised.
"""

import os

import joblib.testing
import pytest
from joblib.parallel import BACKENDS

import pool_party
from pool_party._integrations.joblib import PoolPartyBackend

KIND = os.environ["POOL_PARTY_KIND"]
NAMES = ("backend", "inner_backend", "outer_backend", "child_backend", "parent_backend")

PoolPartyBackend.__init__.__defaults__ = (KIND,)
pool_party.register_joblib_backend(make_default=True)


def parametrize(names, values, *args, **kwargs):
    if names in NAMES:
        values = ["pool_party", BACKENDS["pool_party"]()] if None in values else ["pool_party"]
    return pytest.mark.parametrize(names, values, *args, **kwargs)


joblib.testing.parametrize = parametrize
check_call = joblib.testing.check_subprocess_call


def check_patiently(command, timeout=None, **kwargs):
    """Give a program more time than the test does, since this machine may be busy."""
    return check_call(command, timeout=100, **kwargs)


joblib.testing.check_subprocess_call = check_patiently
