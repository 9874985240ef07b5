"""Log records of workers that are killed, and of pools whose program forks: each in a fresh process."""

import importlib.util
import pathlib
import sys

import fresh
import pytest

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = HERE / "relaying.py"
METHODS = ("fork", "forkserver", "spawn")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("what", ["amid_a_record", "in_a_parent_that_forks"])
def test_nothing_that_was_sent_is_lost(what, method):
    fresh.check(fresh.run([PROGRAM, what, method]))


@pytest.mark.parametrize("seed", range(2))
def test_workers_killed_at_random(seed):
    fresh.check(fresh.run([PROGRAM, "at_random", METHODS[seed], seed]))


@pytest.mark.slow
@pytest.mark.hang_s(300)
@pytest.mark.skipif(sys.version_info[:2] != (3, 14), reason="ipykernel is installed for one version alone")
@pytest.mark.skipif(importlib.util.find_spec("ipykernel") is None, reason="ipykernel is not installed")
def test_a_notebook_shows_what_tasks_print_and_log():
    completed = fresh.run([HERE / "kernel_output.py"], options=(), timeout=200)
    assert completed.returncode == 0, completed
    _, process, interp, _, later = completed.out.splitlines()
    for shown, text in ((process, "process"), (interp, "interp"), (later, "later")):
        assert shown == f"printed {text}, INFO logged {text}"


@pytest.mark.parametrize("kind", ("process", "interp"))
def test_nothing_is_left_behind(kind):
    fresh.check(fresh.run([PROGRAM, "leaves_nothing", kind]))
