"""What `pool-party doctor --cluster` asks of each node."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
import sys
from typing import Any

from pool_party._budget import topology
from pool_party._workers.interp.extensions import IS_SUPPORTED

PACKAGES = ("cloudpickle", "dask", "distributed", "msgpack", "numpy", "scipy", "pandas", "scikit-learn", "numba")


def look() -> dict[str, Any]:
    """Return the names and versions of what a node has. It runs in the program as well, to compare them."""
    return {
        "host": socket.gethostname(),
        "pool_party": sys.modules["pool_party"].__version__,
        "python": platform.python_version() + sys.abiflags,
        "machine": platform.machine(),
        "n_cpus": topology.cpu_count(),
        "kinds": "thread, process, interp" if IS_SUPPORTED else "thread, process, interp (without NumPy)",
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
