"""A pool ends while other threads call all its methods: each call ends, and raises only what the docs say.

argv: kind, start method, the number of pools, and a seed.
"""

import contextlib
import faulthandler
import itertools
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import traceback
from concurrent.futures import CancelledError

from probe import ComposablePool, tasks
from threadpoolctl import threadpool_limits

from pool_party import ComposableExecutor, PoolClosed, PoolPartyError, PoolTerminated, WorkerBudget
from pool_party._budget.policies import for_kind

N_THREADS = 4
SUBMITTED = (PoolClosed, PoolTerminated, multiprocessing.TimeoutError)


class Own:
    """A policy that a balancer asks again and again."""

    def shares(self, state):
        return [WorkerBudget(1 + sum(state.awake), state.cpus)] * len(state.own)


POLICIES = ("static", "dynamic", "exclusive", None, Own())


def trace(pool, path):
    with pool.trace(path):
        pool.statistics()


def imap(pool, items):
    results = pool.imap(tasks.square, items, buffersize=3)
    for _ in range(5):
        results.next(10)


def gone_on(pool):
    """A loop over imap that its pool's end interrupts."""
    for _ in zip(range(20), pool.imap_unordered(tasks.square, range(100), 3), strict=False):
        pass


def callback(pool):
    pool.apply_async(tasks.square, (1,), {}, lambda value: pool.statistics()).get(20)


def limit(pool):
    with threadpool_limits(1):
        repr(pool)


def wait(pool):
    """Whatever may be asked of a result while its pool ends."""
    result = pool.map_async(tasks.square, range(50))
    result.ready()
    result.wait(0.001)
    with contextlib.suppress(ValueError):  # it is not ready
        result.successful()
    result.get(20)


def look(pool):
    s = pool.statistics()
    assert s.n_pending >= 0 and s.n_workers == 2, s
    repr(pool), pool.kind, pool._pool, pool._state
    for worker in pool._pool:
        worker.is_alive(), worker.exitcode, worker.pid


def join(pool):
    try:
        pool.join(0.001)
    except ValueError as error:
        assert "still running" in str(error)


POOLS = {
    "apply": (lambda pool, path: pool.apply(tasks.square, (2,)), SUBMITTED),
    "wait": (lambda pool, path: wait(pool), SUBMITTED),
    "callback": (lambda pool, path: callback(pool), SUBMITTED),
    "large": (lambda pool, path: pool.map(len, [bytes(200_000)] * 4), SUBMITTED),
    "imap": (lambda pool, path: imap(pool, range(30)), SUBMITTED),
    "endless": (lambda pool, path: imap(pool, itertools.count()), SUBMITTED),
    "unordered": (lambda pool, path: gone_on(pool), SUBMITTED),
    "look": (lambda pool, path: look(pool), ()),
    "join": (lambda pool, path: join(pool), (multiprocessing.TimeoutError,)),
    "trace": (trace, (PoolPartyError,)),
    "limit": (lambda pool, path: limit(pool), ()),
}


def future(executor):
    submitted = [executor.submit(tasks.square, i) for i in range(4)]
    submitted[-1].cancel()
    for each in submitted:
        each.running(), each.done(), each.cancelled()
        each.add_done_callback(lambda done: done.running())
    for each in submitted:
        each.exception(20)


def executor_map(executor):
    list(zip(range(20), executor.map(tasks.square, range(30), buffersize=4), strict=False))


def look_at_executor(executor):
    executor.statistics(), repr(executor)


EXECUTORS = {
    "submit": (lambda executor, path: future(executor), (*SUBMITTED, CancelledError)),
    "map": (lambda executor, path: executor_map(executor), (*SUBMITTED, CancelledError)),
    "look": (lambda executor, path: look_at_executor(executor), ()),
    "trace": (trace, (PoolPartyError,)),
    "limit": (lambda executor, path: limit(executor), ()),
}


class Caller:
    """A thread that calls some of the methods at random until it is told to end, and some times more."""

    def __init__(self, pool, calls, path, seed):
        self.failures = []
        self.name = "none"
        self._given = pool, calls, path, random.Random(seed)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        pool, calls, path, rng = self._given
        few = rng.sample(list(calls), rng.randint(1, 3))
        n_more = 4
        while n_more:
            n_more -= self.stop.is_set()
            self.name = rng.choice(few)
            call, allowed = calls[self.name]
            try:
                call(pool, path)
            except allowed:
                pass
            except BaseException:
                self.failures.append(f"{self.name}: {traceback.format_exc()}")
                return
        self._given = None


def close(pool):
    pool.close()
    pool.join(60)


def terminate(pool):
    pool.terminate()
    pool.join(60)


def terminate_amid_close(pool):
    pool.close()
    pool.terminate()
    pool.join(60)


def shut_down(executor):
    executor.shutdown()


def cancel(executor):
    executor.shutdown(cancel_futures=True)


def leave(executor):
    executor.shutdown(wait=False)
    executor.shutdown()


def try_pool(cls, calls, end, rng, folder, **options):
    pool = cls(2, policy=for_kind(rng.choice(POLICIES), options["kind"]), **options)
    callers = [
        Caller(pool, calls, os.path.join(folder, str(n)), rng.random()) for n in range(rng.randint(1, N_THREADS))
    ]
    while rng.random() < 0.7:  # it ends at any moment
        pool.statistics()
        list(pool.map(tasks.square, range(rng.randint(1, 20))))
    end(pool)
    for caller in callers:
        caller.stop.set()
    for caller in callers:
        caller.thread.join(60)
        assert not caller.thread.is_alive(), caller.name
        assert not caller.failures, caller.failures
    if hasattr(pool, "join"):
        pool.join(60)


def main():
    kind, method, n_pools, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    faulthandler.dump_traceback_later(40 + 2 * n_pools, exit=True)
    os.environ["POOL_PARTY_CPU_COUNT"] = "4"
    rng = random.Random(seed)
    sys.setswitchinterval(1e-5)
    ends = [(ComposablePool, POOLS, end) for end in (close, terminate, terminate_amid_close)]
    ends += [(ComposableExecutor, EXECUTORS, end) for end in (shut_down, cancel, leave)]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(n_pools):
            cls, calls, end = rng.choice(ends)
            try_pool(cls, calls, end, rng, folder, kind=kind, context=multiprocessing.get_context(method))


if __name__ == "__main__":
    main()
