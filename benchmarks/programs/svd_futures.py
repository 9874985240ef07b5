"""Singular values of matrices, each submitted to an executor."""

import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed

import numpy as np

FLAVOUR, N_WORKERS, *SCALE = sys.argv[1:]


def largest(seed):
    matrix = np.random.default_rng(seed).random((500, 500))
    return float(np.linalg.svd(matrix, compute_uv=False)[0])


if __name__ == "__main__":
    n_tasks = int(32 * float(*SCALE or [1]))
    make = {"processes": ProcessPoolExecutor, "threads": ThreadPoolExecutor}[FLAVOUR]
    with make(int(N_WORKERS)) as executor:
        futures = [executor.submit(largest, seed) for seed in range(n_tasks)]
        found = sorted(future.result() for future in as_completed(futures))
    print(f"largest singular values from {found[0]:.4f} to {found[-1]:.4f}")
