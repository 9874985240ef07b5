"""A thread that sleeps until a worker process dies."""

import os
import threading
from collections.abc import Callable

from pool_party.workers.base import Worker
from pool_party._core.threads import start_thread


class Watcher:
    """Reports each watched process's death, once."""

    def __init__(self, report: Callable[[Worker], object]) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._watched: dict[int, Worker] = {}
        self._is_stopping = False
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_out, False)
        self._thread = threading.Thread(target=self._run, name="pool_party-watcher")

    def start(self) -> None:
        """Begins to watch; workers are forked before that, from a process with one thread less."""
        start_thread(self._thread)

    def watch(self, worker: Worker) -> None:
        """Watches one more worker."""
        sentinel = worker.sentinel
        assert sentinel is not None, "only processes can be watched"
        with self._lock:
            self._watched[sentinel] = worker
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
                sentinels = [*self._watched, self._wake_in]
            for ready in connection.wait(sentinels):
                if ready == self._wake_in:
                    os.read(self._wake_in, 4096)
                    continue
                with self._lock:
                    worker = self._watched.pop(ready)  # type: ignore[arg-type]  # the descriptors that we passed
                self._report(worker)
