"""Which threads may wait for the end of a pool.

A thread that this end needs must not: it would wait for itself. This is not only about tasks that join their own pool.
Finalizers of the user's may end a pool, too, and the garbage collector runs them in any thread that needs memory, the
pool's own ones among them. `threading.Thread.join` raises an error in such a place, and so do pools.

Callbacks and handlers of log records run in threads of the pool, too, but they may wait: such a thread passes its
duties on to another one before.
"""

from __future__ import annotations

import threading

from pool_party import _native
from pool_party._ground.errors import CannotWait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_THREADS_LOCK: Any = threading._active_limbo_lock  # type: ignore[attr-defined]  # an RLock in all versions
_TASKS, _INPUT, _ANY = _native.DUTY_TASKS, _native.DUTY_INPUT, _native.DUTY_ANY
_RESULT, _BACKLOG = _native.DUTY_RESULT, _native.DUTY_BACKLOG

# For each wait, the numbers of the pools that need the waiting thread, and of the one for whose end it waits. A thread
# has several if a finalizer or a signal handler interrupts it.
_waits: dict[object, tuple[set[int], int]] = {}


def is_needed(channel: _native.Channel, is_terminated: bool, has_delegated: Callable[[], bool]) -> bool:
    """Whether the end of a pool needs the calling thread.

    It needs each thread that is amid a step of `threading`, where the collector may have called a finalizer: the pool's
    threads take the lock of that step to start and to end.

    has_delegated: whether it is one of the pool's threads that runs the user's code and can pass its duties on.
    """
    if _THREADS_LOCK._is_owned():
        return True
    duties = channel.duties()
    if not duties:
        return False
    if duties & _ANY:
        return True
    if duties & _TASKS and not has_delegated():
        return True
    # Once the pool was terminated, no outcome depends on these any more.
    return not is_terminated and bool(duties & (_INPUT | _RESULT | _BACKLOG))


def refuse() -> CannotWait:
    """Make the error."""
    return CannotWait(
        "cannot join current thread: it works for this pool, whose end would wait for it; close or terminate the pool "
        "here, and wait for its end in another thread"
    )


def wait_for_end[T](channel: _native.Channel, wait: Callable[..., T], *args: Any) -> T:
    """Call `wait(*args)`, which waits for the end of a pool. Raise CannotWait if that end waits for this thread's pool.

    So two tasks that join each other's pools get an error, and do not wait for ever.
    """
    if not (needing := set(_native.served()) - {0}):
        return wait(*args)
    this = object()
    _waits[this] = needing, channel.number
    try:
        if needing & _awaited_by(channel.number):
            raise refuse()
        return wait(*args)
    finally:
        del _waits[this]


def _awaited_by(number: int) -> set[int]:
    """Return the pools whose ends are awaited in threads that the end of a pool needs, or that of one of these."""
    found, waits = {number}, list(_waits.values())
    while more := {awaited for needing, awaited in waits if needing & found} - found:
        found |= more
    return found - {number}
