"""Worker objects and the watcher, without a pool."""

import multiprocessing.context
import os

import gates
import pytest

from pool_party import _native
from pool_party._config import PoolConfig
from pool_party._workers.base import Setup
from pool_party._workers.process import ProcessWorker
from pool_party._workers.watcher import Watcher


class FakeWorker:
    """A worker that ends when `end` is called. Its sentinel is a pipe."""

    link = None
    is_watched = True

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
    watcher = Watcher(reports.append, _native.Channel(1))
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


def test_one_that_was_released_before_its_end_was_reported_is_no_error(watcher, reports, caplog):
    """As by a pool that ends; a descriptor that was closed then makes the watcher look at all workers anew."""
    released, other = FakeWorker(), FakeWorker()
    released.end()
    released.release()
    watcher.watch(released)
    watcher.watch(other)
    other.end()
    gates.wait_until(lambda: reports == [other], "reported")
    other.release()
    assert not caplog.records


# ---- processes ----


class ToldProcess:
    """A process that ended at once. Its fork server has told its exit code, and not yet closed the pipe."""

    name, pid, exitcode = "Process-1", None, -9

    def __init__(self, **kwargs):
        self.sentinel, self._server = os.pipe()

    def start(self):
        self.pid = 2**30  # no process has this
        os.write(self._server, b"-9")

    def join(self, timeout=None):
        os.read(self.sentinel, 2)

    def close(self):
        os.close(self.sentinel)
        os.close(self._server)


class Context(multiprocessing.context.BaseContext):
    _name = "told"
    Process = ToldProcess


def test_a_process_that_has_ended_stays_ended():
    """A sentinel that was read is not readable until the fork server closes its end."""
    worker = ProcessWorker(_native.Channel(1), 0, Setup(PoolConfig("process", context=Context())))
    worker.start()
    worker.enrol()
    assert worker.join()
    assert worker.join(0) and not worker.is_alive() and worker.exitcode == -9
    worker.release()
    assert worker.sentinel is None
