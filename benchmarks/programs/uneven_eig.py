"""One task of matrix products, then a few of eigenvalues, then many, all in one pool."""

import sys
from multiprocessing import Pool
from multiprocessing.pool import ThreadPool

import numpy as np

FLAVOUR, N_WORKERS, *SCALE = sys.argv[1:]


def multiply(n_products):
    a = np.random.default_rng(0).random((1500, 1500))
    return float(sum((a @ a)[0, 0] for _ in range(n_products)))


def trace(seed, n_matrices):
    random = np.random.default_rng(seed)
    return float(sum(np.linalg.eig(random.random((200, 200)))[0].sum().real for _ in range(n_matrices)))


if __name__ == "__main__":
    scale = float(*SCALE or [1])
    make = {"processes": Pool, "threads": ThreadPool}[FLAVOUR]
    with make(int(N_WORKERS)) as pool:
        first = pool.apply(multiply, (max(1, int(6 * scale)),))
        few = pool.starmap(trace, [(seed, 4) for seed in range(int(3 * scale) or 1)], 1)
        many = pool.starmap(trace, [(seed, 1) for seed in range(int(32 * scale) or 1)], 1)
    print(f"products {first:.4f}, few {sum(few):.4f}, many {sum(many):.4f}")
