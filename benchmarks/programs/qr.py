"""QR decompositions of tall matrices in a pool."""

import sys
from multiprocessing import Pool
from multiprocessing.pool import ThreadPool

import numpy as np

FLAVOUR, N_WORKERS, *SCALE = sys.argv[1:]


def decompose(seed):
    matrix = np.random.default_rng(seed).random((1600, 800))
    q, r = np.linalg.qr(matrix)
    return float(np.abs(q @ r - matrix).max())


if __name__ == "__main__":
    n_tasks = int(16 * float(*SCALE or [1]))
    make = {"processes": Pool, "threads": ThreadPool}[FLAVOUR]
    with make(int(N_WORKERS)) as pool:
        errors = pool.map(decompose, range(n_tasks), 1)
    print(f"{n_tasks} decompositions, each as good as 1e-9: {bool(max(errors) < 1e-9)}")
