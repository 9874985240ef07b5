"""OpenBLAS has no threads that it does not need in workers whose main module imports NumPy.

METHOD     how processes start: fork, forkserver or spawn
"""

import multiprocessing
import os
import pathlib
import sys

import numpy as np
from probe import ComposablePool, gates, tasks

from pool_party import WorkerBudget

N_CPUS = len(os.sched_getaffinity(0))


def count_threads():
    """Return how many threads this process has that are not ours."""
    names = [pathlib.Path(f"/proc/self/task/{thread}/comm").read_text() for thread in os.listdir("/proc/self/task")]
    return sum(not name.startswith("pp-") for name in names)


def look(_):
    error = tasks.linear_algebra(0)
    return count_threads(), *tasks.openblas_count(), error < 1e-8


class Lends:
    """A policy: a worker that is alone may use all CPUs, whatever else the machine does."""

    def shares(self, state):
        n_threads = N_CPUS if sum(state.awake) == 1 else 1
        return [WorkerBudget(n_threads, state.cpus) for _ in state.own]


if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(
        ["numpy"]
    )  # some versions of Python before 3.14 do not import the main module
    assert np.linalg.norm(np.ones((500, 500)) @ np.ones((500, 500))) > 0  # OpenBLAS has its threads here
    with ComposablePool(2, context=sys.argv[1], threads_per_worker=1) as pool:
        seen = set(pool.map(look, range(4), 1))
    assert seen == {(1, 1, True)}, seen
    with ComposablePool(2, context=sys.argv[1], policy=Lends()) as pool:
        gates.wait_until(lambda: pool.apply(look, (0,))[1:] == (N_CPUS, True), "CPUs are lent")
