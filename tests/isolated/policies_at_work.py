"""What policies must not change: results of native libraries, and what the process has set after the last pool.

argv: scenario, kind, and perhaps another kind or a policy.
"""

import itertools
import multiprocessing
import os

os.environ["OPENBLAS_THREAD_TIMEOUT"] = "4"  # whoever waits for another thread sleeps: there are more than CPUs

import gates
import numpy as np
import tasks

from pool_party import ComposablePool, _native
from pool_party._budget import libraries, policies

N_CPUS = 8
POLICIES, UNGATED = {"process": policies.NAMES}, ("static", "dynamic")


def settings():
    counts = {found.path: _native.call_getter(found.getter) for found in libraries.find() if found.scope == "process"}
    return counts, _native.process_limit(), os.sched_getaffinity(0), dict(os.environ)


def expect_settings(before):
    """Of each library that was there then: a task may have loaded others."""

    def are_same():
        counts, *others = settings()
        return {path: counts[path] for path in before[0]} == before[0] and others == list(before[1:])

    gates.wait_until(are_same, "everything is as before")


def compute(seed):
    """Results of several ways to share work among threads; and the most threads that a library may use."""
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((90, 90)), rng.standard_normal((90, 90))
    return [a @ b, np.linalg.solve(a, b)], counts()


def counts():
    return max(tasks.blas_counts())


def check(pool, expected, n_most):
    for seed, (values, n_threads) in enumerate(pool.map(compute, range(len(expected)), 1)):
        assert 1 <= n_threads <= n_most, n_threads
        for value, wanted in zip(values, expected[seed], strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-7, atol=1e-9)


def results():
    return [compute(seed)[0] for seed in range(3)]


def open_pool(kind, policy, n_workers=2):
    context = multiprocessing.get_context("forkserver")  # nobody may fork while interpreters live
    return ComposablePool(n_workers, kind=kind, policy=policy, context=context)


def most(policy):
    return N_CPUS // 2 if policy == "static" else N_CPUS


def numerics(kind):
    """With many more threads than this machine has CPUs."""
    expected, before = results(), settings()
    for policy in POLICIES.get(kind, UNGATED):
        with open_pool(kind, policy) as pool:
            check(pool, expected, most(policy))
    expect_settings(before)


def pairs(one, other):
    """Two pools at once, of each two policies."""
    expected, before = results(), settings()
    for of_one, of_other in itertools.product(POLICIES.get(one, UNGATED), POLICIES.get(other, UNGATED)):
        with open_pool(one, of_one) as first, open_pool(other, of_other) as second:
            asked = [gates.call_in_thread(check, pool, expected, N_CPUS) for pool in (first, second)]
            for each in asked:
                each.result(60)
        expect_settings(before)


def boost(seed):
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.utils._openmp_helpers import _openmp_effective_n_threads

    rng = np.random.default_rng(seed)
    x = rng.standard_normal((200, 4))
    model = HistGradientBoostingRegressor(max_iter=3, random_state=0).fit(x, x[:, 0] * x[:, 1])
    return model.predict(x), _openmp_effective_n_threads()


def boosting(kind, policy):
    """The trees of scikit-learn: OpenMP, whose count is each thread's own."""
    expected, before = [boost(seed)[0] for seed in range(2)], settings()
    with open_pool(kind, policy) as pool:
        for seed, (predicted, n_threads) in enumerate(pool.map(boost, range(2), 1)):
            assert 1 <= n_threads <= most(policy), n_threads
            np.testing.assert_array_equal(predicted, expected[seed])
    expect_settings(before)


SCENARIOS = {f.__name__: f for f in (numerics, pairs, boosting)}

if __name__ == "__main__":
    os.environ["POOL_PARTY_CPU_COUNT"] = str(N_CPUS)
    import policies_at_work  # so that workers find its functions by name
    from probe import main

    main(policies_at_work.SCENARIOS, hang_s=100)
