"""Starts an interpreter, unless CPython cannot, and ends those that are kept for the next pool."""

from __future__ import annotations

import os
from time import monotonic
from weakref import WeakSet

from pool_party import _native
from pool_party._core.errors import PoolPartyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pool_party.workers.interp.worker import InterpreterWorker

PATIENCE_S = 2.0  # guess: how long a fork waits for interpreters that are about to end

_is_hooked = False  # the hooks for forks are registered
_ending: WeakSet[InterpreterWorker] = WeakSet()  # of pools that were terminated


def is_traced() -> bool:
    """Whether `tracemalloc` traces, as far as can be seen: in interpreters of Python 3.13 and older it cannot."""
    try:
        from _tracemalloc import is_tracing
    except ImportError:
        return False
    return is_tracing()


def start(channel: _native.Channel, n: int, key: bytes | None = None) -> _native.Interpreter:
    """Start to create an interpreter, or take one that is kept for this key.

    Raises PoolPartyError while `tracemalloc` traces.
    """
    if is_traced():
        raise PoolPartyError(
            "an interpreter cannot be started while tracemalloc traces memory: CPython hangs or crashes (CPython "
            "issue 134604); call tracemalloc.stop() before, or use kind='process'"
        )
    return channel.start_interpreter(n, key)


def watch_forks() -> None:
    """Make interpreters end before a fork that no pool needs: CPython crashes in a child that has any."""
    global _is_hooked
    if not _is_hooked:
        _is_hooked = True
        os.register_at_fork(before=end_before_fork, after_in_child=_ending.clear)


def note_end(worker: InterpreterWorker) -> None:
    """Note that a worker was told to end. Its pool does not wait for a task that it interrupts, but a fork does."""
    _ending.add(worker)


def end_before_fork() -> None:
    """End the interpreters that are kept, and wait a while for those of pools that were terminated.

    One whose task is inside a C function may still be there afterwards.
    """
    deadline = monotonic() + PATIENCE_S
    for worker in list(_ending):
        worker.join(max(0.0, deadline - monotonic()))
    _native.end_kept()


def end_kept_interpreters() -> None:
    """End the interpreters that ended pools with `reuse=True` have left for the next one. Blocks until they have ended.

    Their memory is given back. Pools that are open stay as they are. The end of the program and a fork do the same.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed. They end nevertheless.

    Guarantees:
        Any thread may call it. It may be called again, and does nothing if there are none.
    """
    _native.end_kept()
