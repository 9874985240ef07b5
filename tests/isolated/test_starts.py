"""Signals and failures while pools open, and while their workers are replaced, each in a fresh process."""

import os
import pathlib
import random

import fresh
import pytest

HERE = pathlib.Path(__file__).resolve().parent
STARTS = ("fork", "forkserver", "spawn", "thread", "interp")
SEED = 7


@pytest.mark.parametrize("start", (*STARTS, "loky"))
def test_signals_to_the_group_while_workers_start(start):
    if start == "loky":
        pytest.importorskip("joblib")
    fresh.check(fresh.run([HERE / "storming.py", start, SEED, 4], timeout=120))


def test_ctrl_c_while_children_of_a_fork_server_of_the_program_start():
    # A worker that Ctrl-C ends amid the standard library's code, before ours, may leave a file to the collector, and
    # its own end, interrupted once more, is reported there.
    options = (*fresh.STRICT, "-W", "ignore::ResourceWarning")
    completed = fresh.run([HERE / "serving.py", "before"], timeout=120, options=options)
    reported = (" ", "Traceback ", "During handling ", "Exception ignored", "KeyboardInterrupt")
    said = [line for line in completed.err.splitlines() if line and not line.startswith(reported)]
    assert completed.returncode == 0 and not said, completed


def test_the_program_s_own_children_of_a_fork_server_are_interruptible():
    fresh.check(fresh.run([HERE / "serving.py", "after"], timeout=120))


def steps(start):
    """Half of the steps of a pool's life, and which call of each raises; the same in each run."""
    listed = fresh.run([HERE / "raising.py", start, "list"])
    choose = random.Random(f"{SEED} {start}")
    names = [name for name in listed.out.split() if name != "WorkerSet.put_away"]
    names = choose.sample(names, len(names) // 2)
    return [(name, choose.choice(("0", "1", "all")), choose.choice(("close", "terminate"))) for name in names]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.slow
@pytest.mark.hang_s(900)
def test_an_exception_in_each_step_of_a_pool(start):
    for name, nth, how in steps(start):
        completed = fresh.run([HERE / "raising.py", start, name, nth, how], timeout=100)
        assert completed.returncode == 0, (name, nth, how, completed)


@pytest.mark.parametrize("start", ("fork", "forkserver", "spawn"))
@pytest.mark.parametrize("step", ("Popen.close", "Popen.wait", "ProcessWorker.release", "ProcessWorker.join"))
def test_what_raises_while_a_dead_worker_is_put_away(step, start):
    completed = fresh.run([HERE / "raising.py", start, step, "all", "close"], timeout=100)
    assert completed.returncode == 0, completed


@pytest.mark.parametrize("n_processes", (1, 4, 7))
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user with few processes")
def test_a_pool_that_cannot_start_a_thread_or_process_leaves_nothing(start, n_processes):
    completed = fresh.run([HERE / "few_processes.py", start, n_processes], timeout=120)
    assert completed.returncode == 0, completed


@pytest.mark.parametrize("how", ("in a worker of loky", "context", "runner"))
def test_pools_of_loky_processes(how):
    pytest.importorskip("joblib")
    options = ("-m", "pool_party") if how == "runner" else ()
    completed = fresh.run([*options, HERE / "within_loky.py", how], timeout=120, options=())
    assert completed.returncode == 0, completed
