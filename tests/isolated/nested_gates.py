"""A task in an interpreter opens and closes its own gated pool. The outer pool's regions must stay gated."""

from probe import TIMEOUT_S, ComposablePool, main

from pool_party import _native


def product(n):
    import numpy as np

    a = np.full((n, n), 2.0)
    return float((a @ a)[n - 1, n - 1])


def nested(policy):
    pool = ComposablePool(2, kind="thread", policy=policy)
    products = pool.map(product, [300] * 2, 1)
    pool.close()
    pool.join(timeout=TIMEOUT_S)
    return products


def run(outer_policy, inner_policy):
    product(3)  # load NumPy here as well, where its OpenBLAS is looked for
    with ComposablePool(2, kind="interp", policy=outer_policy) as pool:
        gate = pool._engine._workers.enforcer.gate
        for _ in range(2):
            before = gate.n_acquired
            assert pool.map_async(product, [300] * 2, 1).get(TIMEOUT_S) == [1200.0] * 2
            assert gate.n_acquired > before, "regions pass no gate"
            assert pool.apply_async(nested, (inner_policy,)).get(TIMEOUT_S) == [1200.0] * 2
        n_regions, before = _native.region_statistics()[0], gate.n_acquired
        assert pool.map_async(product, [300] * 2, 1).get(TIMEOUT_S) == [1200.0] * 2
        assert gate.n_acquired - before == _native.region_statistics()[0] - n_regions > 0
        assert gate.n_free == gate.n_tokens
        pool.close()
        pool.join(timeout=TIMEOUT_S)
    before = _native.region_statistics()[0]
    product(300)
    assert _native.region_statistics()[0] == before, "OpenBLAS has its own threads back"
    print("ok")


if __name__ == "__main__":
    main(globals())
