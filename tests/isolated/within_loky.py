"""Pools whose workers are processes of loky.

HOW        "in a worker of loky": that is where loky's start method is the default; "context": asked for here; "runner":
           an unmodified program, run by `python -m pool_party`, whose tasks open pools of the standard library
"""

import concurrent.futures
import multiprocessing
import sys
from math import factorial

TIMEOUT_S = 60
RIGHT = [1, 1, 2, 6]


def pool_of_ours():
    from pool_party import ComposablePool

    with ComposablePool(2, kind="process") as pool:
        return pool.map_async(factorial, range(4)).get(TIMEOUT_S)


def pool_of_theirs():
    with multiprocessing.Pool(2) as pool:
        return pool.map(factorial, range(4))


def executor_of_theirs():
    with concurrent.futures.ProcessPoolExecutor(2) as executor:
        return list(executor.map(factorial, range(4)))


def in_context():
    from joblib.externals.loky.backend.context import get_context

    from pool_party import ComposablePool

    with ComposablePool(2, kind="process", context=get_context("loky")) as pool:
        assert pool.map_async(factorial, range(4)).get(TIMEOUT_S) == RIGHT
        assert pool.statistics().n_workers_lost == 0


if __name__ == "__main__":
    if sys.argv[1] == "context":
        in_context()
    else:
        from joblib.externals.loky import get_reusable_executor

        tasks = [pool_of_theirs, executor_of_theirs] if sys.argv[1] == "runner" else [pool_of_ours]
        loky = get_reusable_executor(max_workers=2)
        for task in tasks:
            assert loky.submit(task).result(TIMEOUT_S) == RIGHT, task
        loky.shutdown()
