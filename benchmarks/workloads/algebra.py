"""NumPy tasks with small arguments that say which matrices to make; the worker makes them.

Each returns whether its result is right, as far as a cheap check can tell.
"""

import os
import threading
import time

import numpy as np


def eigenvalues(task: tuple[int, int, int]) -> bool:
    """Eigenvalues and vectors of small matrices; `task` is (seed, order, how many).

    It uses `eig`, since `eigvals` and `eigvalsh` hold the GIL for small matrices.
    """
    seed, order, n_matrices = task
    random = np.random.default_rng(seed)
    for _ in range(n_matrices):
        matrix = random.random((order, order))
        values, _ = np.linalg.eig(matrix)
        if not np.isclose(values.sum(), np.trace(matrix)):
            return False
    return True


def tall_qr(task: tuple[int, int, int]) -> bool:
    """QR of a tall matrix, and the product as its check; `task` is (seed, rows, columns)."""
    seed, n_rows, n_columns = task
    matrix = np.random.default_rng(seed).random((n_rows, n_columns))
    q, r = np.linalg.qr(matrix)
    return bool(np.isclose(matrix, q @ r).all())


def products(task: tuple[int, int, int]) -> bool:
    """Products of square matrices; `task` is (seed, order, how many)."""
    seed, order, n_products = task
    random = np.random.default_rng(seed)
    a, b = random.random((order, order)), random.random((order, order))
    total = np.zeros_like(a)
    for _ in range(n_products):
        np.matmul(a, b, out=total)
    return bool(np.isclose(total[-1, -1], (a[-1] * b[:, -1]).sum()))


def introduce(sleep_s: float) -> tuple[int, int]:
    """Load what the other tasks need, keep the worker busy for a while, and return the worker's identity."""
    eigenvalues((0, 16, 1))
    tall_qr((0, 64, 16))
    products((0, 64, 1))
    time.sleep(sleep_s)
    return os.getpid(), threading.get_native_id()
