"""An exception in one step of a pool's life: no call waits for ever, and the program ends.

KIND       thread, interp, fork, forkserver or spawn
STEP       CLASS.METHOD or MODULE.FUNCTION, as in STEPS; "list" prints those of the kind
NTH        which call of it raises, from 0 on; "all": each, but for steps without which nothing is done at all
HOW        whether the pool ends by close or terminate

What the step was for may fail: a pool that does not open, calls that fail. But each call gets an outcome.
"""

import contextlib
import os
import signal
import sys

from probe import TIMEOUT_S, ComposablePool, tasks

from pool_party import ComposableExecutor
from pool_party._core import callbacks, engine, workers
from pool_party._workers import base, watcher

PROCESSES = ("fork", "forkserver", "spawn")

STEPS = {
    engine.Engine: (
        *("_open", "_give_up", "_attend", "_look_at_workers", "_deliver_loss", "_loss", "_break"),
        *("_stop", "_end_workers", "_end_callbacks", "_note_end", "_start_callbacks", "_trim", "_fail_all"),
    ),
    workers.WorkerSet: (
        *("prepare", "start", "follow", "_start_worker", "_enrol", "note_ready", "take_ended", "remove", "put_away"),
        *("_note_false_start", "fill_slots", "_note_failed_start", "retry_in_s", "terminate", "kill", "wait_ended"),
        *("end_threads", "budget"),
    ),
    callbacks.Callbacks: ("start", "end"),
}
# They catch what their own steps raise.
ESSENTIAL = ("_attend", "_look_at_workers", "take_ended", "put_away", "fill_slots", "_stop", "_register")
OF_PROCESSES = ("start", "enrol", "terminate", "join", "release", "_reap", "_close_if_unused", "_send", "exitcode")
OF_OTHERS = ("enrol", "terminate", "join", "release")


def steps(kind):
    """The names of all steps of a kind, and where they are."""
    found = {f"{owner.__name__}.{name}": (owner, name) for owner, names in STEPS.items() for name in names}
    worker = workers._worker_class("process" if kind in PROCESSES else kind)
    names = OF_PROCESSES if kind in PROCESSES else OF_OTHERS
    if kind == "thread":  # an interpreter's start gives up the interpreter if it raises, as it does in `relay_terms`
        names = ("start", *names)
    found |= {f"{worker.__name__}.{name}": (worker, name) for name in names}
    if kind in PROCESSES:
        from multiprocessing import popen_fork, popen_forkserver, popen_spawn_posix, process

        found |= {f"Watcher.{name}": (watcher.Watcher, name) for name in ("start", "watch", "stop", "_register")}
        popen = {"fork": popen_fork, "forkserver": popen_forkserver, "spawn": popen_spawn_posix}[kind].Popen
        found |= {f"Popen.{name}": (popen, name) for name in ("_launch", "poll", "wait", "close")}
        found |= {f"BaseProcess.{name}": (process.BaseProcess, name) for name in ("start", "join", "close")}
    found["base.Setup.relay_terms"] = (base.Setup, "relay_terms")
    return found


class Injected(Exception):
    """Raised in a step."""


def inject(owner, name, nth):
    original, n_calls = getattr(owner, name), 0
    failing = list(map(str, range(5 if name in ESSENTIAL else 10_000))) if nth == "all" else [nth]

    def fail_or_do(*args, **kwargs):
        nonlocal n_calls
        n_calls += 1
        if os.getpid() == parent and str(n_calls - 1) in failing:
            raise Injected(name)
        return original.fget(*args) if isinstance(original, property) else original(*args, **kwargs)

    parent = os.getpid()
    setattr(owner, name, property(fail_or_do) if isinstance(original, property) else fail_or_do)


def outcome_of(result):
    """Wait for a result. A TimeoutError of the wait itself is the fault that is searched for."""
    if not result.ready():
        result.wait(TIMEOUT_S)
    assert result.ready(), "a call waits for ever"


def use(kind, how):
    options = {"kind": kind} if kind not in PROCESSES else {"kind": "process", "context": kind}
    pool = ComposablePool(2, maxtasksperchild=3, **options)
    results = [pool.map_async(tasks.square, range(20), 1, callback=len)]
    if kind in PROCESSES:
        results.append(pool.apply_async(os._exit, (3,)))
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(pool._engine.workers[0].pid, signal.SIGKILL)
    results += [pool.apply_async(tasks.square, (n,)) for n in range(5)]
    for result in results:
        outcome_of(result)
    late = pool.apply_async(tasks.square, (3,))
    getattr(pool, how)()
    assert pool.join(timeout=TIMEOUT_S) is not False, "join"
    outcome_of(late)
    with ComposableExecutor(2, **options) as executor:
        future = executor.submit(tasks.square, 3)
        with contextlib.suppress(Exception):
            future.result(TIMEOUT_S)
        assert future.done(), "a future waits for ever"


if __name__ == "__main__":
    kind, step, *rest = sys.argv[1:]
    if step == "list":
        print(*steps(kind))
    else:
        nth, how = rest
        inject(*steps(kind)[step], nth)
        try:
            use(kind, how)
        except AssertionError:
            raise
        except Exception as error:
            print(type(error).__name__, error)
