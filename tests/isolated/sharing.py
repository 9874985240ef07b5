"""One pool is used from eight threads at once, with all verbs, and then ended while they use it."""

import threading

from probe import TIMEOUT_S, ComposablePool, gates, main, tasks

from pool_party import PoolClosed, PoolTerminated


def use_all_verbs(pool, seed, n=30):
    for i in range(seed, seed + n):
        assert pool.apply(tasks.multiply, (i, 2)) == 2 * i
        assert pool.map(tasks.square, range(i, i + 7), 2) == [x * x for x in range(i, i + 7)]
        assert list(pool.imap(tasks.square, iter(range(i, i + 5)))) == [x * x for x in range(i, i + 5)]
        assert sorted(pool.imap_unordered(tasks.square, (i, i + 1))) == [i**2, (i + 1) ** 2]
        data = tasks.pattern(50_000 + i, i)
        assert pool.apply(tasks.identity, (data,)) == data
        called = []
        results = [pool.apply_async(tasks.square, (i,), callback=called.append) for _ in range(5)]
        assert [result.get(TIMEOUT_S) for result in results] == [i * i] * 5
        assert called == [i * i] * 5


def eight_threads(kind):
    with ComposablePool(3, kind=kind) as pool:
        for call in [gates.call_in_thread(use_all_verbs, pool, 100 * k) for k in range(8)]:
            call.result(45)
        stats = pool.statistics()
        assert (stats.n_pending, stats.n_failed, stats.n_workers_lost) == (0, 0, 0), stats


def ended_under_eight_threads(kind):
    """Every call returns, or fails because the pool was ended. None hangs."""
    for end in ("close", "terminate"):
        with ComposablePool(2, kind=kind) as pool:
            working = threading.Barrier(9)

            def use(pool=pool, working=working):
                working.wait(TIMEOUT_S)
                try:
                    while True:
                        assert pool.map(tasks.square, range(10), 1) == [x * x for x in range(10)]
                        assert list(pool.imap(tasks.square, iter(range(5)))) == [0, 1, 4, 9, 16]
                except (PoolClosed, PoolTerminated) as error:
                    return type(error)

            calls = [gates.call_in_thread(use) for _ in range(8)]
            working.wait(TIMEOUT_S)
            getattr(pool, end)()
            allowed = {PoolClosed} if end == "close" else {PoolClosed, PoolTerminated}
            assert {call.result(TIMEOUT_S) for call in calls} <= allowed
            pool.join(timeout=TIMEOUT_S)


def ten_pools_at_once(kind):
    """Several threads make, use and end pools at the same time."""

    def use(seed):
        for _ in range(3):
            with ComposablePool(2, kind=kind) as pool:
                assert pool.map(tasks.square, range(seed)) == [x * x for x in range(seed)]
            pool.join(timeout=TIMEOUT_S)

    for call in [gates.call_in_thread(use, seed) for seed in range(10)]:
        call.result(45)


if __name__ == "__main__":
    main(globals())
