"""os.fork() while interpreters exist: the child has none of them, and goes on.

check WHEN     "open": their pool is open. "task": one is in a function in C. "ending": one ends
at_once        the end of their pool has interrupted a task: a fork waits for its end
"""

import os
import sys

from probe import TIMEOUT_S, ComposablePool, gates, main, tasks

from pool_party import _native
from pool_party._workers.interp import starting


def in_child():
    """Use what CPython clears in a child, and an interpreter."""
    import gc
    import json

    gc.collect()
    assert json.loads("[1]") == [1] and _native.n_interpreters() == 0
    if sys.version_info >= (3, 13):
        import _interpreters

        assert len(_interpreters.list_all()) == 1
    with ComposablePool(1, kind="interp") as pool:
        assert pool.apply(abs, (-3,)) == 3
    pool.join(timeout=TIMEOUT_S)


def fork():
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            in_child()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 0, code


def check(when):
    starting.PATIENCE_S = starting.CLOSING_S = 0.0
    (is_ending, may_end), (to_read, to_write) = os.pipe(), os.pipe()
    pool = ComposablePool(2, kind="interp")
    if when == "open":
        assert pool.map(abs, [-1, -2], 1) == [1, 2]
        # CPython 3.13t crashes in a child that is forked while an interpreter imports an extension module.
        gates.wait_until(lambda: all(worker.was_ready for worker in pool._engine.workers), "all have started")
    else:
        function = tasks.hold_up if when == "task" else tasks.hold_up_the_end
        call = pool.apply_async(function, (may_end, to_read))
        if when == "ending":
            call.get(TIMEOUT_S)
            pool.close()
        assert os.read(is_ending, 1) == b"x"
    if when == "task":
        pool.terminate()
    for _ in range(5):
        fork()
    os.write(to_write, b"x")
    pool.terminate()
    pool.join(timeout=TIMEOUT_S)
    fork()
    print("ok")


def end_while_busy():
    """End a pool whose task ends some time after the descriptor that is returned was written to."""
    (has_begun, says), (may_end, tells) = os.pipe(), os.pipe()
    with ComposablePool(1, kind="interp") as pool:
        pool.apply_async(tasks.end_when_told, (says, may_end))
        assert os.read(has_begun, 1) == b"x"
    assert _native.n_interpreters() == 1
    return tells


def at_once():
    tells = end_while_busy()
    os.register_at_fork(before=lambda: os.write(tells, b"x"))  # the hook that was registered last is the first one
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert _native.n_interpreters() == 0
    os.write(end_while_busy(), b"x")
    with ComposablePool(1, kind="process", context="fork") as pool:
        assert pool.apply(os.getppid) == os.getpid(), "it was not forked"
    print("ok")


if __name__ == "__main__":
    main({"check": check, "at_once": at_once})
