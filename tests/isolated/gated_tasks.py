"""Tasks of a gated pool that compute in other threads and pools, while a library without a callback is loaded.

`python gated_tasks.py run where policy scope`: where is "threads", or the kind of a nested pool.
"""

from concurrent.futures import ThreadPoolExecutor

from probe import TIMEOUT_S, ComposablePool, gates, main

from pool_party import _native
from pool_party._budget.policies import for_kind


def load(_):
    """scikit-learn brings its own libgomp."""
    import sklearn.utils._openmp_helpers  # noqa: F401


def product(n):
    import numpy as np

    a = np.full((n, n), 2.0)
    return float((a @ a)[n - 1, n - 1])


def in_threads(policy, scope):
    with ThreadPoolExecutor(2) as executor:
        return list(executor.map(product, [300] * 3))


def in_pool(kind, policy, scope):
    with ComposablePool(2, kind=kind, policy=for_kind(policy, kind), scope=scope) as pool:
        return pool.map(product, [300] * 3, 1)


def compute(where, policy, scope):
    """Compute in a later task than the one that has loaded the library."""
    return in_threads(policy, scope) if where == "threads" else in_pool(where, policy, scope)


def run(where, policy, scope):
    with ComposablePool(2, kind="process", policy=policy, scope=scope) as pool:
        gate = pool._engine._workers.enforcer.gate
        pool.map_async(load, range(4), 1).get(TIMEOUT_S)
        before = gate.n_acquired
        got = pool.starmap_async(compute, [(where, policy, scope)] * 2, 1).get(TIMEOUT_S)
        assert got == [[1200.0] * 3] * 2, got
        if where != "threads":  # workers of a nested pool that are active together have one thread each, and no regions
            assert pool.apply_async(product, (300,)).get(TIMEOUT_S) == 1200.0
        assert gate.n_acquired > before
        # Other programs, such as other tests, may be using the machine's gate.
        gates.wait_until(lambda: gate.n_free == gate.n_tokens and gate.n_waiting == 0, "all tokens are back")
        print(gate.n_recovered if scope == "pool" else 0, isinstance(gate, _native.Gate))


if __name__ == "__main__":
    main(globals(), hang_s=100)
