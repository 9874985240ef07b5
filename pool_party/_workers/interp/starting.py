"""Starts an interpreter, unless CPython cannot, and makes forks wait for those that are ending."""

from __future__ import annotations

import errno
import os
from time import monotonic
from weakref import WeakSet

from pool_party import _native
from pool_party._ground.errors import PoolPartyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pool_party._workers.interp.worker import InterpreterWorker

PATIENCE_S = 2.0  # guess: how long a fork waits for tasks that were interrupted
CLOSING_S = 60.0  # guess: how long, after that, for interpreters that close; with many packages it takes seconds

_is_hooked = False  # the hooks for forks are registered
_ending: WeakSet[InterpreterWorker] = WeakSet()  # of pools that were terminated


def is_traced() -> bool:
    """Whether `tracemalloc` traces, as far as can be seen: in interpreters of Python 3.13 and older it cannot."""
    try:
        from _tracemalloc import is_tracing
    except ImportError:
        return False
    return is_tracing()


def start(channel: _native.Channel, n: int) -> _native.Interpreter:
    """Start to create an interpreter.

    Raises PoolPartyError while `tracemalloc` traces, and OSError if the process has hardly any memory mappings left.
    """
    if is_traced():
        raise PoolPartyError(
            "an interpreter cannot be started while tracemalloc traces memory: CPython hangs or crashes (CPython "
            "issue 134604); call tracemalloc.stop() before, or use kind='process'"
        )
    if not _native.has_room(False):
        from pool_party._ground import limits

        raise OSError(errno.ENOMEM, f"no interpreter can be started: {limits.no_room()}")
    return channel.start_interpreter(n)


def watch_forks() -> None:
    """Make forks wait for interpreters whose pool was terminated."""
    global _is_hooked
    if not _is_hooked:
        _is_hooked = True
        os.register_at_fork(before=wait_before_fork, after_in_child=_ending.clear)


def note_end(worker: InterpreterWorker) -> None:
    """Note that a worker was told to end. Its pool does not wait for a task that it interrupts, but a fork does."""
    _ending.add(worker)


def wait_before_fork() -> None:
    """Wait a while for the interpreters of pools that were terminated.

    One that closes may have the lock of the dynamic linker, which would never be free in the child. One whose task is
    inside a C function may still be there afterwards: the child forgets it (native/interp/forks.c).
    """
    deadline = monotonic() + PATIENCE_S
    for worker in list(_ending):
        if not worker.join(max(0.0, deadline - monotonic())) and worker.is_closing:
            worker.join(CLOSING_S)
