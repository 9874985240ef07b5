"""A pytest plugin that runs every `Parallel` call of scikit-learn's tests with two workers of our backend.

Calls with an `n_jobs` of their own keep it.
"""

import multiprocessing
import os

import joblib
import pytest

import pool_party

KIND = os.environ["POOL_PARTY_KIND"]

pool_party.register_joblib_backend()
# Workers of a pool that replaces one with a failed call are ready at once. What is loaded here has run nothing.
multiprocessing.set_forkserver_preload(
    ["pool_party._integrations.joblib", "sklearn.ensemble", "sklearn.model_selection"]
)


@pytest.fixture(autouse=True)
def in_our_workers():
    with joblib.parallel_config(backend="pool_party", kind=KIND, n_jobs=2):
        yield
