"""Eigenvalue problems for NumPy, as tasks. Importing this module does not import NumPy."""

import os
import threading
import time


def _n_blas_threads() -> int:
    from threadpoolctl import threadpool_info

    counts = [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]
    return max(counts, default=0)


def describe_numpy() -> tuple[str, int]:
    """Return NumPy's version and how many threads its BLAS may use, in the worker that runs this.

    Raises:
        ImportError: NumPy is missing, or cannot be loaded in this kind of worker.
    """
    import numpy as np

    return str(np.__version__), _n_blas_threads()


def largest_eigenvalue(problem: tuple[int, int]) -> float:
    """Return the largest absolute eigenvalue of a random matrix; `problem` is (order, seed).

    Eigenvectors are computed as well, because `eigvals` holds the GIL up to order 500, while `eig` releases it from
    order 40 on at the latest (measured with NumPy 2.5).
    """
    import numpy as np

    order, seed = problem
    matrix = np.random.default_rng(seed).standard_normal((order, order))
    return float(np.abs(np.linalg.eig(matrix).eigenvalues).max())


def worker_identity(_: int) -> tuple[int, int]:
    """Return a value unique to this worker. It takes long enough that every worker gets such a task."""
    time.sleep(0.01)
    return os.getpid(), threading.get_native_id()
