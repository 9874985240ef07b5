"""Tasks that return the identity of their worker. They import only modules that every interpreter has loaded anyway."""

import _thread
import os
import time

type Worker = tuple[int, int]  # process and thread


def present(hold_s: float) -> Worker:
    """Keep the worker busy for a while, and return its identity."""
    time.sleep(hold_s)
    return os.getpid(), _thread.get_native_id()


def load_numpy(hold_s: float) -> Worker:
    """Load NumPy with its linear algebra, then do the same as `present`."""
    import numpy as np

    np.linalg.eig(np.eye(16))
    return present(hold_s)
