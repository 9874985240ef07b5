"""os.fork() in a process that has a pool: the child gets clear errors, and the parent continues."""

import contextlib
import faulthandler
import gc
import os
import tempfile
import threading

from probe import TIMEOUT_S, ComposablePool, expect, gates, main, tasks

from pool_party import PoolPartyError


def in_child(function, *args):
    """Run a function in a forked child, which must end well and soon."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            timer = threading.Timer(20, os._exit, (2,))
            timer.daemon = True
            timer.start()
            function(*args)
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status


def use(pool, pending):
    for call in (
        lambda: pool.apply(tasks.square, (2,)),
        lambda: pool.apply_async(tasks.square, (2,)).get(TIMEOUT_S),
        lambda: pool.map(tasks.square, [1, 2]),
        lambda: next(pool.imap(tasks.square, [1, 2])),
        lambda: pending.get(TIMEOUT_S),
    ):
        error = expect(PoolPartyError, call)
        assert "fork" in str(error), error


def end(pool, pending):
    """Ending the parent's pool in the child must neither hang nor end the parent's workers."""
    for call in (pool.close, pool.terminate):
        with contextlib.suppress(PoolPartyError):
            call()


def make_own(kind):
    with ComposablePool(2, kind=kind) as pool:
        assert pool.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]


def fork(kind):
    with (
        gates.Gate(os.path.join(tempfile.mkdtemp(), "gate")) as gate,
        ComposablePool(2, kind=kind) as pool,
    ):
        assert pool.apply(tasks.square, (3,)) == 9
        pending = pool.apply_async(tasks.pass_gate, (gate.path, "kept"))
        gate.wait_arrived()
        in_child(use, pool, pending)
        in_child(end, pool, pending)
        for own_kind in ("thread", "process"):
            in_child(make_own, own_kind)
        in_child(gc.collect)
        assert pool.map(tasks.square, range(100), 1) == [x * x for x in range(100)]
        gate.release()
        assert pending.get(TIMEOUT_S) == "kept"
        assert pool.statistics().n_workers_lost == 0


def fork_and_exit_normally(kind):
    """The child leaves through the interpreter's shutdown, with its finalizers."""
    pool = ComposablePool(2, kind=kind)
    assert pool.apply(tasks.square, (3,)) == 9
    faulthandler.cancel_dump_traceback_later()  # at exit the child would wait for its thread
    pid = os.fork()
    faulthandler.dump_traceback_later(TIMEOUT_S, exit=True)
    if pid == 0:
        return
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    assert pool.map(tasks.square, range(10), 1) == [x * x for x in range(10)]
    pool.terminate()
    pool.join(timeout=TIMEOUT_S)


if __name__ == "__main__":
    main(globals())
