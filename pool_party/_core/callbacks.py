"""The thread that runs callbacks, one after the other, and tells futures of their outcomes.

Callbacks are the user's code and may take any time. So they never run in a thread that waits for something else, nor in
the one that looks after the pool. The thread is started when the first callback is due.
"""

import threading
from threading import get_ident
from typing import Any

from pool_party import _native
from pool_party._core.log import log_exception
from pool_party._core.threads import start_thread


class Callbacks:
    """Runs the callbacks of a pool's calls. `start` and `end` are for the background thread; the others for any thread.

    No signal handler runs in a thread that runs callbacks, nor in the background thread: so they may share a lock.
    """

    def __init__(self, channel: _native.Channel) -> None:
        self._channel = channel
        self._threads: set[threading.Thread] = set()  # those that have to end before the pool has
        self._running: dict[int, _native.Job] = {}  # whose callbacks each thread runs, by ident
        self._changed = threading.Condition()  # guards `_threads` but for looks at it

    def start(self) -> None:
        """Starts the thread. Raises: RuntimeError if the system has none to give."""
        thread = threading.Thread(target=self._run, name="pool_party-callbacks")
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
            del call  # it may be all that keeps a large value, or the pool
        self._forget(thread)

    def run_here(self) -> None:
        """Runs what is due in the calling thread: there is no other one to be had, as at the end of the interpreter."""
        while self._channel.wants_runner:
            self._run_those_of(self._channel.next_deferred())

    def _run_those_of(self, call: Any) -> None:
        me = get_ident()
        self._running[me] = call
        try:
            call.run_callbacks()
        except BaseException:
            log_exception("an outcome could not be told; the pool goes on")
        finally:
            self._channel.finish(call)
            del self._running[me]

    def _forget(self, thread: threading.Thread) -> bool:
        with self._changed:
            is_known = thread in self._threads
            self._threads.discard(thread)
            self._changed.notify_all()
        return is_known

    def is_of(self, call: _native.Job) -> bool:
        """Whether the calling thread runs a callback of that call."""
        return self._running.get(get_ident()) is call

    def delegate(self) -> None:
        """The calling thread is going to wait: if it runs a callback, another one runs the others from now on."""
        if get_ident() in self._running and self._forget(threading.current_thread()):
            if self._channel.run_deferred(False):
                self._channel.notify()

    def leave(self) -> None:
        """The calling thread waits for the pool's end, which then does not wait for the callback that it runs."""
        if (call := self._running.get(get_ident())) is not None:
            self.delegate()
            self._channel.finish(call)

    def end(self) -> None:
        """After the last call: ends the thread, unless its last callback waits for this."""
        self._channel.end_deferred()
        threads = list(self._threads)
        with self._changed:
            self._changed.wait_for(lambda: not self._threads)
        for thread in threads:
            if thread.ident not in self._running:
                thread.join()
