"""The pool's own threads, and how they start."""

from __future__ import annotations

import _thread
import threading

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class PoolThread(threading.Thread):
    """A thread that belongs to a pool: it never waits for the end of that pool, which needs it; see waiting.py.

    channel: the pool's; None: the thread belongs to all pools. duty: a DUTY_ constant of `_native`.
    """

    _bootstrap: Callable[[], object]

    def __init__(
        self, target: Callable[[], object], name: str, channel: _native.Channel | None, duty: int = _native.DUTY_ANY
    ) -> None:
        super().__init__(target=target, name=name)
        self._number = 0 if channel is None else channel.number
        self._duty = duty

    def start(self) -> None:
        """Start the thread."""
        self._bootstrap = self.begin(super()._bootstrap)  # type: ignore[misc]
        try:
            super().start()
        finally:
            del self._bootstrap

    def begin(self, function: Callable[[], object]) -> Callable[[], object]:
        """Return what a new thread is to call: it becomes a thread of the pool, and calls the function."""
        return _native.entry(self._number, self._duty, function)


def start_thread(thread: threading.Thread) -> None:
    """Start a thread, as a daemon if the interpreter allows that; otherwise our exit hook ends it.

    No signal handler runs during the start. An exception from one in `Thread.start` would surface as an error about a
    lock in `threading`.
    """
    thread.daemon = threading._daemon_threads_allowed()  # type: ignore[attr-defined]
    _native.call_apart(thread.start)


def start_detached(thread: threading.Thread) -> None:
    """Start a thread that nobody joins. It is faster than `start_thread`, but a signal handler may interrupt it."""
    if threading._daemon_threads_allowed():  # type: ignore[attr-defined]
        _thread.start_new_thread(thread.begin(thread.run) if isinstance(thread, PoolThread) else thread.run, ())
    else:
        start_thread(thread)
