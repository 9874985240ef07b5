"""The thread that runs callbacks one after the other, and that passes outcomes to futures.

Callbacks are user code and may take any time. They therefore never run in a thread that waits for something else, nor
in the pool's background thread. The thread starts when the first callback is due.
"""

from __future__ import annotations

import threading
from threading import get_ident

from pool_party import _native
from pool_party._ground.log import log_exception
from pool_party._ground.threads import PoolThread, start_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Callbacks:
    """Runs the callbacks of a pool's calls. The background thread calls `start` and `end`; any thread may call the
    others.

    Signal handlers run neither in a thread that runs callbacks nor in the background thread, so the two may share a
    lock.
    """

    def __init__(self, channel: _native.Channel) -> None:
        self._channel = channel
        self._threads: set[threading.Thread] = set()  # the threads that must end before the pool has ended
        self.running: dict[int, _native.Job] = {}  # thread ident -> the call whose callbacks it runs
        self._changed = threading.Condition(_native.Guard())  # guards writes to `_threads`; reads take no lock

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if the system cannot provide one."""
        thread = PoolThread(self._run, "pool_party-callbacks", self._channel, _native.DUTY_TASKS)
        self._channel.run_deferred(True)
        self._threads.add(thread)
        try:
            start_thread(thread)
        except BaseException:
            self._threads.discard(thread)
            self._channel.run_deferred(False)
            raise

    def _run(self) -> None:
        thread = threading.current_thread()
        while thread in self._threads and (call := self._channel.next_deferred()) is not None:
            self._run_those_of(call)
            del call  # the call may be the last reference to a large value, or to the pool
        self._forget(thread)

    def run_here(self) -> None:
        """Run due callbacks in the calling thread.

        It is used when no thread can start, as at the end of the interpreter.
        """
        while self._channel.wants_runner:
            self._run_those_of(self._channel.next_deferred())

    def _run_those_of(self, call: Any) -> None:
        me = get_ident()
        self.running[me] = call
        try:
            call.run_callbacks()
        except BaseException:
            log_exception("an outcome could not be told; the pool goes on")
        finally:
            self._channel.finish(call)
            call.tell_awaiters()
            del self.running[me]

    def _forget(self, thread: threading.Thread) -> bool:
        with self._changed:
            is_known = thread in self._threads
            self._threads.discard(thread)
            self._changed.notify_all()
        return is_known

    def is_of(self, call: _native.Job) -> bool:
        """Whether the calling thread runs a callback of that call."""
        return self.running.get(get_ident()) is call

    def are_running_here(self) -> bool:
        """Whether the calling thread runs a callback."""
        return get_ident() in self.running

    def delegate(self) -> None:
        """Let another thread take over the remaining callbacks, if the calling thread runs one.

        Called before it waits.
        """
        if get_ident() in self.running and self._forget(threading.current_thread()):
            if self._channel.run_deferred(False):
                self._channel.notify()

    def leave(self) -> None:
        """Called by a thread that waits for the pool's end.

        The pool's end then does not wait for that thread's callback.
        """
        if (call := self.running.get(get_ident())) is not None:
            self.delegate()
            self._channel.finish(call)

    def end(self) -> None:
        """End the thread after the last call. A callback that itself waits for this end is not waited for."""
        self._channel.end_deferred()
        threads = list(self._threads)
        with self._changed:
            self._changed.wait_for(lambda: not self._threads)
        for thread in threads:
            if thread.ident not in self.running:
                thread.join()
