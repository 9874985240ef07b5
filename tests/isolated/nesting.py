"""A pool made inside a worker: `python nesting.py nested outer-kind inner-kind`."""

from probe import TIMEOUT_S, ComposablePool, main, tasks

from pool_party import ComposableExecutor


def nested(outer, inner):
    expected = [sum(x * x for x in range(n)) for n in (5, 10)]
    with ComposablePool(2, kind=outer) as pool:
        call = pool.starmap_async(tasks.nested_map, [(inner, 5), (inner, 10)], 1)
        assert call.get(TIMEOUT_S) == expected
        # once more in the same workers
        call = pool.starmap_async(tasks.nested_map, [(inner, 5), (inner, 10)], 1)
        assert call.get(TIMEOUT_S) == expected
        pool.close()
        pool.join(timeout=TIMEOUT_S)


def nested_executor(outer, inner):
    with ComposableExecutor(1, kind=outer) as executor:
        assert executor.submit(tasks.nested_map, inner, 5).result(TIMEOUT_S) == 30


def forgotten_inside(outer, inner):
    """A task forgets its pool. The worker must still end."""
    with ComposablePool(1, kind=outer) as pool:
        assert pool.apply_async(tasks.forget_a_pool, (inner,)).get(TIMEOUT_S) == [1, 4]
        assert pool.apply_async(tasks.square, (3,)).get(TIMEOUT_S) == 9
        pool.close()
        pool.join(timeout=TIMEOUT_S)


if __name__ == "__main__":
    main(globals())
