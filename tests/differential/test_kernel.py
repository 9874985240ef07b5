"""Sessions in a real Jupyter kernel, cell by cell, print the same as with loky."""

import importlib.util
import json
import pathlib
import sys

import fresh
import pytest
import sessions
import test_sessions

PROGRAM = pathlib.Path(__file__).with_name("kernel.py")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.version_info[:2] != (3, 14), reason="as the other sessions, on one version alone"),
    pytest.mark.skipif(importlib.util.find_spec("ipykernel") is None, reason="ipykernel is not installed"),
]


@pytest.mark.hang_s(600)
@pytest.mark.parametrize("subject", test_sessions.SUBJECTS)
def test_a_kernel_runs_sessions_as_with_loky(subject):
    prologue = test_sessions.OURS.format(subject=subject, arguments="")
    done = fresh.run([PROGRAM, prologue], options=(), timeout=200)
    assert done.returncode == 0, done
    assert json.loads(done.out) == {name: test_sessions.by_loky(name) for name in sessions.SESSIONS}
