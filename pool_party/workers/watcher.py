"""A thread that sleeps until a worker process dies."""

import os
import select
import threading
from collections import deque
from collections.abc import Callable

from pool_party._core.threads import start_thread
from pool_party.workers.base import Worker


class Watcher:
    """Reports each watched process's death once. Takes no lock, since a signal handler may run at any moment.

    A worker keeps its sentinel open until it was reported. After that it may be released.
    """

    def __init__(self, report: Callable[[Worker], object]) -> None:
        self._report = report
        self._new: deque[Worker] = deque()  # not yet registered by the thread
        self._is_stopping = self._is_closed = False
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="pool_party-watcher")

    def start(self) -> None:
        """Start watching. Workers are forked before this, while the process has one thread less."""
        start_thread(self._thread)

    def watch(self, worker: Worker) -> None:
        """Watch one more worker."""
        self._new.append(worker)
        self._wake()

    def stop(self) -> None:
        """End the thread. Only one thread may call this at a time."""
        self._is_stopping = True
        if self._is_closed:
            return
        self._wake()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._is_closed = True
        os.close(self._bell)

    def _wake(self) -> None:
        os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        watched: dict[int, Worker] = {}
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        while not self._is_stopping:
            for ready, _ in poll.poll():
                if ready == self._bell:
                    os.eventfd_read(self._bell)
                else:
                    poll.unregister(ready)
                    self._report(watched.pop(ready))
            while self._new:
                worker = self._new.popleft()
                assert worker.sentinel is not None, "only processes can be watched"
                watched[worker.sentinel] = worker
                poll.register(worker.sentinel, select.POLLIN)
