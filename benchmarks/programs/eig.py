"""Eigenvalues of small matrices in a pool."""

import sys
from multiprocessing import Pool
from multiprocessing.pool import ThreadPool

import numpy as np

FLAVOUR, N_WORKERS, *SCALE = sys.argv[1:]


def trace(seed):
    matrix = np.random.default_rng(seed).random((200, 200))
    values, _ = np.linalg.eig(matrix)
    return float(values.sum().real)


if __name__ == "__main__":
    n_tasks = int(64 * float(*SCALE or [1]))
    make = {"processes": Pool, "threads": ThreadPool}[FLAVOUR]
    with make(int(N_WORKERS)) as pool:
        traces = pool.map(trace, range(n_tasks), 1)
    print(f"sum of {n_tasks} traces: {sum(traces):.4f}")
