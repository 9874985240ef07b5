"""Log records of workers that are killed: what was logged arrives, and at most one record of each worker is lost."""

import collections
import logging
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading

import talking
from probe import TIMEOUT_S, ComposablePool, gates, main, open_fds, tasks

from pool_party import WorkerLost
from pool_party._observe import messages

N_TASKS, N_WORKERS, KILL_SHARE = 24, 3, 0.5


class Counter(logging.Handler):
    """Counts records by task. It waits for `go_on` before each."""

    def __init__(self):
        super().__init__()
        self.n = collections.Counter()
        self.sizes = {}
        self.go_on = threading.Event()
        self.go_on.set()

    def emit(self, record):
        self.go_on.wait(TIMEOUT_S)
        assert self.sizes.setdefault(record.path, len(record.msg)) == len(record.msg)
        self.n[record.path] += 1


def is_set():
    event = threading.Event()
    event.set()
    return event


def count_records():
    counter = Counter()
    logger = logging.getLogger(talking.LOGGER)
    logger.addHandler(counter)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    return counter


def make_pool(method, n, **kwargs):
    return ComposablePool(n, talking.be_patient, context=multiprocessing.get_context(method), log=True, **kwargs)


def is_full(relay):
    try:
        os.write(relay.sending.fd, messages.HEADER.pack(messages.MARK, 0, 0, 0, 0))
    except BlockingIOError:
        return True
    return False


def amid_a_record(method):
    """A worker that waits for room is killed. The record that it was about to send is lost, and counted.

    In rare runs it has just sent that one when it is killed.
    """
    counter = count_records()
    counter.go_on.clear()
    with tempfile.TemporaryDirectory() as folder, make_pool(method, 1) as pool:
        path = os.path.join(folder, "counts")
        result = pool.apply_async(talking.log_and_count, (path, 10**9, 100))
        relay = pool._engine._workers.relay

        def is_waiting():
            n_begun = int.from_bytes(os.pread(relay.counting.fd, 8, 0), sys.byteorder)
            return is_full(relay) and n_begun > 0 and talking.counts_in(path) == (n_begun, n_begun - 1)

        gates.wait_until(is_waiting, "the worker waits for room")
        os.kill(pool._pool[0].pid, signal.SIGKILL)
        try:
            result.get(TIMEOUT_S)
        except WorkerLost:
            counter.go_on.set()
        pool.close()
        pool.join()
        n_begun, n_ended = talking.counts_in(path)
        n_lost = pool.statistics().n_records_lost
        assert n_begun == n_ended + 1 == counter.n[path] + n_lost, (n_begun, n_ended, counter.n, n_lost)
        assert n_lost in (0, 1)


def at_random(method, seed):
    """Kill workers at random moments. Records are small or large, so that kills hit all parts of a message."""
    rng = random.Random(int(seed))
    counter = count_records()
    with tempfile.TemporaryDirectory() as folder, make_pool(method, N_WORKERS) as pool:
        paths = [os.path.join(folder, str(n)) for n in range(N_TASKS)]
        sizes = [rng.choice([1, 1000, messages.PART_MAX, 200_000]) for _ in paths]
        results = [
            pool.apply_async(talking.log_and_count, (path, 40, size)) for path, size in zip(paths, sizes, strict=True)
        ]
        n_killed = 0
        while not all(result.ready() for result in results):
            threading.Event().wait(rng.expovariate(1) * 0.02)
            workers = pool._pool
            if workers and n_killed < N_TASKS * KILL_SHARE:
                rng.choice(workers).kill()
                n_killed += 1
        pool.close()
        pool.join()
        n_missing = 0
        for path, result in zip(paths, results, strict=True):
            n_begun, n_ended = talking.counts_in(path) if os.path.exists(path) else (0, 0)
            assert n_ended <= counter.n[path] <= n_begun <= n_ended + 1, (n_begun, n_ended, counter.n[path])
            assert not result.successful() or counter.n[path] == 40
            n_missing += n_begun - counter.n[path]
        # A worker may also die after it has noted the begin of a call and before that call counts its record.
        assert pool.statistics().n_records_lost <= n_missing <= n_killed, (pool.statistics(), n_missing)


def in_a_parent_that_forks(method):
    """A child that the parent forks takes nothing of what workers send, and may end at any time."""
    counter = count_records()
    with make_pool(method, 1) as pool, tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "counts")
        result = pool.apply_async(talking.log_and_count, (path, 2000, 10))
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                counter.go_on = is_set()  # the relay's thread may have held the other one's lock
                logging.getLogger(talking.LOGGER).info("%s", "unseen", extra={"path": ""})
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        result.get(TIMEOUT_S)
        held_r, held_w = os.pipe()
        pid = os.fork()
        if pid == 0:  # it keeps the socket open until after the pool's end
            os.close(held_w)
            os.read(held_r, 1)
            os._exit(0)
        assert pool.apply(tasks.square, (3,)) == 9
        pool.close()
        pool.join(TIMEOUT_S)
        os.close(held_w)
        os.waitpid(pid, 0)
        assert counter.n == {path: 2000}, counter.n
        assert not any(thread.name == "pool_party-relay" for thread in threading.enumerate())


def leaves_nothing(kind):
    """Pools that have ended leave no descriptors and no threads."""
    counter = count_records()
    found = []
    for _ in range(4):
        with ComposablePool(2, kind=kind, log=True, output="relay") as pool:
            pool.map(talking.log_with_path, range(20), 1)
            pool.close()
            pool.join()
        names = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("pool_party"))
        found.append((len(open_fds()), names))
    assert counter.n["-"] == 80, counter.n
    assert found[1] == found[-1] and not found[-1][1], found


if __name__ == "__main__":
    main(globals())
