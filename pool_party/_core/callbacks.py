"""The thread that runs callbacks, one after the other, and tells futures of their outcomes.

Callbacks are the user's code and may take any time. So they never run in a thread that waits for something else, nor in
the one that looks after the pool. The thread is started when the first callback is due.
"""

import threading
from threading import get_ident

from pool_party import _native
from pool_party._core.log import log_exception
from pool_party._core.threads import start_thread


class Callbacks:
    """Runs the callbacks of a pool's calls. `start` belongs to the background thread; the others are for any thread."""

    def __init__(self, channel: _native.Channel) -> None:
        self._channel = channel
        self._threads: dict[int, threading.Thread] = {}  # by ident: those that must end before the pool has
        self._running: dict[int, _native.Job] = {}  # whose callbacks each thread runs

    def start(self) -> None:
        """Starts the thread. Raises: RuntimeError if the system has none to give."""
        self._channel.run_deferred(True)
        try:
            start_thread(threading.Thread(target=self._run, name="pool_party-callbacks"))
        except BaseException:
            self._channel.run_deferred(False)
            raise

    def _run(self) -> None:
        me = get_ident()
        self._threads[me] = threading.current_thread()
        while me in self._threads and (call := self._channel.next_deferred()) is not None:
            self._running[me] = call
            try:
                call.run_callbacks()
            except BaseException:
                log_exception("an outcome could not be told; the pool goes on")
            finally:
                self._channel.finish(call)
                del self._running[me]
        self._threads.pop(me, None)

    def is_mine(self) -> bool:
        """Whether the calling thread runs callbacks."""
        return get_ident() in self._threads

    def delegate(self) -> None:
        """The calling thread is going to wait: another one runs the callbacks from now on."""
        if self._threads.pop(get_ident(), None) is not None and self._channel.run_deferred(False):
            self._channel.summon()

    def leave(self) -> None:
        """The calling thread is going to wait for the pool's end: its call counts as done from now on."""
        self.delegate()
        if (call := self._running.get(get_ident())) is not None:
            self._channel.finish(call)

    def end(self) -> None:
        """After the last call: ends the thread."""
        self._channel.end_deferred()
        for thread in list(self._threads.values()):
            thread.join()
