"""Traces at the program's end, in forked children, and while workers are killed at random."""

import contextlib
import os
import random

from probe import TIMEOUT_S, ComposablePool, gates, main, signal, tasks, worker_pids

from pool_party import ComposableExecutor, WorkerLost
from pool_party._observe import chrome
from pool_party._observe.events import TASK

forgotten = []  # keeps objects alive until shutdown


def at_exit(kind, path):
    """The pool is forgotten, but its file is written."""
    pool = ComposablePool(2, kind=kind)
    pool.trace(path)
    pool.map(tasks.square, range(10), 1)
    forgotten.append(pool)


def at_exit_of_an_executor(kind, path):
    executor = ComposableExecutor(2, kind=kind)
    executor.trace(path)
    forgotten.append([executor, *(executor.submit(tasks.square, n) for n in range(10))])


def in_a_forked_child(path):
    """A child stops the trace as well, although neither file nor workers are its own."""
    with ComposablePool(2, kind="thread") as pool, pool.trace(path) as tracing:
        pool.map(tasks.square, range(10), 1)
        pid = os.fork()
        if pid == 0:
            tracing.stop()
            os._exit(os.path.getsize(path))
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status


def amid_random_kills(path):
    """Every task that returned is in the file once, and so is every one that was lost."""
    random.seed(1)
    with ComposablePool(3, kind="process") as pool, pool.trace(path):
        outcomes = [pool.apply_async(tasks.square, (n,)) for n in range(3000)]
        for _ in range(8):
            with contextlib.suppress(ProcessLookupError):  # the worker was killed before
                os.kill(random.choice(worker_pids(pool)), signal.SIGKILL)
            pool.apply_async(tasks.square, (0,)).wait(TIMEOUT_S)
        n_lost = sum(is_lost(outcome) for outcome in outcomes)
        gates.wait_until(lambda: pool.statistics().n_pending == 0, "all done")
    trace = chrome.read(path)
    calls = [task.args["call"] for task in trace.of(TASK) if task.args.get("status") != "worker lost"]
    assert len(calls) == len(set(calls)), "twice"
    assert len(calls) >= 3000 - n_lost, (len(calls), n_lost)
    assert trace.n_dropped == 0


def is_lost(outcome):
    try:
        outcome.get(TIMEOUT_S)
    except WorkerLost:
        return True
    return False


if __name__ == "__main__":
    main(globals())
