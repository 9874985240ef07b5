"""Loops that numba compiles and runs in parallel, in a pool."""

import sys
from multiprocessing import Pool
from multiprocessing.pool import ThreadPool

import numba
import numpy as np

FLAVOUR, N_WORKERS, *SCALE = sys.argv[1:]


@numba.njit(parallel=True, cache=True)
def smooth(image, n_rounds):
    height, width = image.shape
    for _ in range(n_rounds):
        blurred = image.copy()
        for y in numba.prange(1, height - 1):
            for x in range(1, width - 1):
                blurred[y, x] = 0.25 * (image[y - 1, x] + image[y + 1, x] + image[y, x - 1] + image[y, x + 1])
        image = blurred
    return image


def brightness(seed):
    return float(smooth(np.random.default_rng(seed).random((500, 500)), 60).sum())


if __name__ == "__main__":
    n_tasks = int(48 * float(*SCALE or [1]))
    smooth(np.zeros((3, 3)), 1)  # compiles it, once for all runs
    make = {"processes": Pool, "threads": ThreadPool}[FLAVOUR]
    with make(int(N_WORKERS)) as pool:
        found = pool.map(brightness, range(n_tasks), 1)
    print(f"brightness of {n_tasks} images: {sum(found):.4f}")
