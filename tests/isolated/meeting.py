"""Tasks that wait for each other in gated pools, before and after a library without a callback is loaded.

`python meeting.py run policy context`
"""

import multiprocessing

from probe import TIMEOUT_S, ComposablePool, main

barrier = None


def note(given):
    global barrier
    barrier = given


def load(_):
    """scikit-learn brings its own libgomp."""
    import sklearn.utils._openmp_helpers  # noqa: F401


def meet(_):
    import numpy as np

    a = np.full((300, 300), 2.0)
    value = float((a @ a)[299, 299])
    barrier.wait(TIMEOUT_S)
    return value


def count(_):
    """Return how many threads a parallel region of the library without a callback has."""
    from sklearn.utils import _openmp_helpers
    from threadpoolctl import threadpool_info

    assert _openmp_helpers is not None
    return max(info["num_threads"] for info in threadpool_info() if info["user_api"] == "openmp")


def run(policy, context):
    chosen = multiprocessing.get_context(context)
    with ComposablePool(2, note, (chosen.Barrier(2),), context=chosen, kind="process", policy=policy) as pool:
        before = pool.map_async(meet, range(2), 1).get(TIMEOUT_S)
        pool.map_async(load, range(4), 1).get(TIMEOUT_S)
        after = pool.map_async(meet, range(2), 1).get(TIMEOUT_S)
        print(before == after == [1200.0] * 2, set(pool.map(count, range(4), 1)))


if __name__ == "__main__":
    main(globals(), hang_s=100)
