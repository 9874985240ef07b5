"""A thread that sleeps until a worker process dies."""

import os
import threading
from collections.abc import Callable
from typing import Any

from pool_party.workers.base import Worker
from pool_party._core.threads import start_thread


class Watcher:
    """Reports each watched process's death, once."""

    def __init__(self, report: Callable[[Worker], object]) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._watched: list[Worker] = []  # those that have not been reported
        self._is_stopping = False
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_out, False)
        self._thread = threading.Thread(target=self._run, name="pool_party-watcher")

    def start(self) -> None:
        """Begins to watch; workers are forked before that, from a process with one thread less."""
        start_thread(self._thread)

    def watch(self, worker: Worker) -> None:
        """Watches one more worker."""
        with self._lock:
            self._watched.append(worker)
        self._wake()

    def stop(self) -> None:
        """Ends the thread."""
        with self._lock:
            if self._is_stopping:
                return
            self._is_stopping = True
        self._wake()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _wake(self) -> None:
        try:
            os.write(self._wake_out, b"x")
        except BlockingIOError:
            pass  # full: it will wake anyhow

    def _run(self) -> None:
        from multiprocessing import connection  # slow to import; the first workers are running meanwhile

        while True:
            with self._lock:
                if self._is_stopping:
                    return
                watched = list(self._watched)
            sentinels = {worker.sentinel: worker for worker in watched}
            released = sentinels.pop(None, None)
            ready = [released] if released else self._wait(connection.wait, sentinels)
            for worker in ready:
                if worker.join(0):
                    with self._lock:
                        self._watched.remove(worker)
                    self._report(worker)

    def _wait(self, wait: Callable[..., list[Any]], sentinels: dict[int | None, Worker]) -> list[Worker]:
        """Sleeps until somebody has ended, or until it is woken.

        A worker that is released meanwhile closes its descriptor, whose number may soon be another worker's: so who is
        returned here has probably ended.
        """
        ready = wait([*sentinels, self._wake_in])
        if self._wake_in in ready:
            os.read(self._wake_in, 4096)
        return [sentinels[sentinel] for sentinel in ready if sentinel != self._wake_in]
