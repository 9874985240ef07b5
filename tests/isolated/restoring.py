"""What a pool changes in libraries, masks and other threads of its process is undone, however it ends."""

import gc
import os
import sys
import threading
import types
import warnings

from probe import ComposablePool, expect, gates, main, tasks, thread_ids

from pool_party import ComposableExecutor, InitializerFailed, WorkerBudget, _native
from pool_party._budget import libraries, limiter
from pool_party._workers.thread import ThreadWorker


class Own:
    """A policy that a balancer asks repeatedly."""

    def shares(self, state):
        return [WorkerBudget(3, state.cpus)] * len(state.own)


POLICIES = {"static": "static", "dynamic": "dynamic", "own": Own()}


def openblas():
    import numpy  # noqa: F401

    return [library for library in libraries.find() if library.name == "openblas"]


def settings():
    """The settings that a closed pool must have restored."""
    counts = [_native.call_getter(library.getter) for library in openblas()]
    return counts, _native.process_limit(), limiter._extra, os.sched_getaffinity(0)


def fail():
    raise ValueError("an initializer that fails")


def close_and_join(make):
    pool = make(ComposablePool)
    assert pool.apply(tasks.square, (3,)) == 9
    pool.close()
    pool.join()


def leave_block(make):
    with make(ComposablePool) as pool:
        assert pool.apply(tasks.square, (3,)) == 9


def forget(make):
    pool = make(ComposablePool)
    assert pool.apply(tasks.square, (3,)) == 9
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del pool
        gc.collect()


def shut_down(make):
    executor = make(ComposableExecutor)
    assert executor.submit(tasks.square, 3).result(20) == 9
    executor.shutdown()


def break_initializer(make):
    pool = make(ComposablePool, initializer=fail)
    expect(InitializerFailed, pool.apply, tasks.square, (3,))
    pool.terminate()
    pool.join()


def fail_to_start(make):
    """Make the start of the second worker fail."""
    original = ThreadWorker.__init__

    def init(self, channel, n, setup):
        if n == 1:
            raise KeyboardInterrupt
        original(self, channel, n, setup)

    ThreadWorker.__init__ = init
    try:
        expect(KeyboardInterrupt, make, ComposablePool)
    finally:
        ThreadWorker.__init__ = original


ENDS = {f.__name__: f for f in (close_and_join, leave_block, forget, shut_down, break_initializer, fail_to_start)}


def ends(name, kind):
    """Try each way to end a pool with each policy. It may take a moment if nobody waits for the workers' end."""
    openblas()
    before, threads = settings(), len(thread_ids())
    for policy in POLICIES.values():
        ENDS[name](lambda cls, **more: cls(2, kind=kind, policy=policy, **more))  # noqa: B023  # called at once
        if name in ("forget", "leave_block", "fail_to_start"):
            # While a pool ends, its settings may be those from before for a moment.
            gates.wait_until(lambda: len(thread_ids()) <= threads + 1, "no thread of the pool is left")
            gates.wait_until(lambda: settings() == before, "everything as before")
        assert settings() == before, (policy, settings(), before)
    gates.wait_until(lambda: len(thread_ids()) <= threads + 1, "no thread is left, but one that helps OpenBLAS")


def settings_of_ones_own():
    """What the user has set between two pools is restored after the second."""
    (library, *_) = openblas()
    for n in (3, 5):
        tasks.set_threads(library, n)
        with ComposablePool(2, kind="thread", threads_per_worker=2) as pool:
            assert pool.apply(tasks.limit_now) == 2
        gates.wait_until(lambda: _native.call_getter(library.getter) == n, "as set before")  # noqa: B023


def masks_of_others():
    """A pool that counts on fewer CPUs than there are must not move other threads."""
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    openblas()
    before = {thread: os.sched_getaffinity(thread) for thread in thread_ids()}
    os.environ["POOL_PARTY_CPU_COUNT"] = "1"
    with ComposablePool(2, kind="thread") as pool:
        pool.apply(tasks.square, (3,))
        assert {thread: os.sched_getaffinity(thread) for thread in before} == before
    stop.set()


def threads_of_libraries():
    """Threads that a library starts for a budget may run everywhere, although workers are pinned to one CPU each."""
    everywhere = os.sched_getaffinity(0)
    openblas()  # it starts with a thread per CPU, and so starts more here
    with ComposablePool(len(everywhere), kind="thread", affinity=True, oversubscription=3.0) as pool:
        assert set(pool.apply(tasks.openblas_count)) == {3}
        narrow = [thread for thread in thread_ids() if os.sched_getaffinity(thread) != everywhere]
        assert len(narrow) == len(everywhere), narrow


def numba_elsewhere():
    """Numba's count is per thread. That of the thread that opens a pool must not change."""
    openblas()
    called = []
    sys.modules["numba"] = types.SimpleNamespace(
        get_num_threads=lambda: 8,
        set_num_threads=lambda n: called.append((threading.current_thread().name, n)),
        config=types.SimpleNamespace(NUMBA_NUM_THREADS=8),
    )
    with ComposablePool(2, kind="thread", threads_per_worker=3) as pool:
        pool.apply(tasks.square, (3,))
    assert called and all(name.startswith("ThreadPoolWorker") and n == 3 for name, n in called), called


SCENARIOS = {
    f.__name__: f
    for f in (
        ends,
        settings_of_ones_own,
        masks_of_others,
        threads_of_libraries,
        numba_elsewhere,
    )
}

if __name__ == "__main__":
    main(SCENARIOS)
