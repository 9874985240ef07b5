"""Worker objects and the watcher, without a pool."""

import os

import gates
import pytest

from pool_party.workers.watcher import Watcher


class FakeWorker:
    """A worker that ends when `end` is called. Its sentinel is a pipe."""

    def __init__(self):
        self.sentinel, self._end = os.pipe()
        self._has_ended = False

    def end(self):
        self._has_ended = True
        os.write(self._end, b".")

    def join(self, timeout):
        return self._has_ended

    def release(self):
        for fd in (self.sentinel, self._end):
            os.close(fd)
        self.sentinel = None


@pytest.fixture
def reports():
    return []


@pytest.fixture
def watcher(reports):
    watcher = Watcher(reports.append)
    watcher.start()
    yield watcher
    watcher.stop()


def test_each_end_is_reported_once(watcher, reports):
    workers = [FakeWorker() for _ in range(3)]
    for worker in workers:
        watcher.watch(worker)
    for n, worker in enumerate(workers):
        worker.end()
        gates.wait_until(lambda n=n: len(reports) > n, "reported")
    assert reports == workers
    for worker in workers:
        worker.release()
