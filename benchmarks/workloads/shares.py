"""A product of matrices in equal shares of its rows, which report when they began and ended.

The operands are made once in each process and kept, so that a share consists only of its computation.
"""

import functools
import time

import numpy as np

RANK = 56  # the common dimension of a rank-K update, as in the ATLAS paper

type Interval = tuple[int, int]  # begin and end in ns, on a clock that all processes share


@functools.cache
def _operands(order: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.random((order, RANK)), random.random((RANK, order))


@functools.cache
def _room(order: int, n_rows: int, slot: int) -> np.ndarray:
    return np.zeros((n_rows, order))


def compute_share(task: tuple[int, int, int, int]) -> Interval:
    """Compute some rows of a product of (order x RANK) and (RANK x order).

    `task` is (order, number of shares, index of this share, slot). Shares that run in one process at the same time need
    different slots for their results.
    """
    order, n_shares, share, slot = task
    a, b = _operands(order)
    first, end = order * share // n_shares, order * (share + 1) // n_shares
    room = _room(order, end - first, slot)
    begun_ns = time.perf_counter_ns()
    np.matmul(a[first:end], b, out=room)
    return begun_ns, time.perf_counter_ns()
