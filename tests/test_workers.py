"""Worker objects and the thread that watches them, without a pool."""

import os
import threading

import gates
import pytest

from pool_party.workers.watcher import Watcher


class FakeWorker:
    """Ends when `end` is called; its sentinel is a pipe."""

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


def test_a_worker_that_was_released_is_not_taken_for_another_one(watcher, reports):
    """Its descriptor's number is used again at once, by one that lives."""
    reported, may_go_on = threading.Event(), threading.Event()

    def report(worker):
        reports.append(worker)
        reported.set()
        may_go_on.wait(30)

    watcher._report = report  # holds the watcher between two looks
    first, old = FakeWorker(), FakeWorker()
    watcher.watch(first)
    watcher.watch(old)
    first.end()
    assert reported.wait(30)
    old.end()
    number = old.sentinel
    old.release()
    new = FakeWorker()
    assert new.sentinel == number
    watcher.watch(new)
    may_go_on.set()
    gates.wait_until(lambda: old in reports, "reported")
    watcher.stop()
    assert reports == [first, old]
    for worker in (first, new):
        worker.release()
