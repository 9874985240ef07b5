"""Random programs against the public interface, each kind in a fresh process; see tests/model/.

POOL_PARTY_MODEL_PROFILE=random uses new programs instead of the same ones every time. POOL_PARTY_MODEL_SECONDS sets the
time for each kind. A failure shows what was done and when, and how to repeat it. A hang shows every thread's stack.
"""

import importlib.util
import os

import fresh
import pytest

MODEL = fresh.TESTS / "model"
KINDS = ("thread", "process", "interp")
SECONDS = float(os.environ.get("POOL_PARTY_MODEL_SECONDS", "0"))
FAILURE_LIMIT_S = 110

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("hypothesis") is None, reason="hypothesis is not installed"),
    pytest.mark.hang_s(FAILURE_LIMIT_S + SECONDS + 10),
]


FEW = {"thread": 10, "process": 3, "interp": 4}  # random programs; `test-all` runs more
HOW_MANY = pytest.mark.parametrize("is_few", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["few", "more"])


def run(program, *args):
    completed = fresh.run([MODEL / program, *args], timeout=FAILURE_LIMIT_S + SECONDS)
    if completed.returncode != 0:
        pytest.fail(repr(completed))  # in full: pytest shortens what an assertion shows
    return completed


@HOW_MANY
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_done_each_task_has_one_outcome(kind, is_few):
    run("play.py", kind, "--seconds", SECONDS, *(("--examples", FEW[kind]) if is_few else ()))


@HOW_MANY
@pytest.mark.parametrize("kind", KINDS)
def test_programs_see_what_they_see_with_multiprocessing(kind, is_few):
    run("differential.py", kind, "--seconds", SECONDS, *(("--examples", FEW[kind]) if is_few else ()))


MORE_THAN_SLOTS = pytest.param("thread", 1100, marks=pytest.mark.slow)


@pytest.mark.parametrize(("kind", "n_workers"), [MORE_THAN_SLOTS, ("thread", 100), ("process", 66), ("interp", 40)])
def test_no_worker_is_idle_while_a_task_waits(kind, n_workers):
    run("wide.py", kind, n_workers)


FAULTS = {
    "wrong-value": "Violation: task ",
    "lost-result": "Violation: ",
    "two-callbacks": "callbacks [",
    "late": "Violation: a wait of ",
    "descriptor": "Violation: left after join",
    "rerun": "Violation: tasks ran more than once",
    "hang": "HUNG in: ",
}


SLOW_FAULTS = [pytest.param(name, marks=pytest.mark.slow) for name in ("wrong-value", "descriptor", "late")]


@pytest.mark.parametrize("fault", [*SLOW_FAULTS, "lost-result", "two-callbacks", "rerun", "hang"])
def test_the_machine_sees_faults(fault, monkeypatch):
    """The oracle must find faults: a pool with one fault, inserted between it and the machine, must fail."""
    if fault == "hang":
        monkeypatch.setenv("POOL_PARTY_MODEL_STEP_S", "2")
    completed = fresh.run([MODEL / "faulty.py", fault], timeout=FAILURE_LIMIT_S)
    assert completed.returncode != 0 and FAULTS[fault] in completed.err, completed
