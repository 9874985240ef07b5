"""Packages with threads of their own that no BLAS or OpenMP library makes: limited by functions that they have for it.

Each worker process and interpreter sets its own count; workers that are threads share the count of their process. The
count is set right after the import, and before a task if the worker's budget has changed. A lower count that the
program has set stays.
"""

from __future__ import annotations

import sys

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Package -> the functions that return its count and set it.
SETTINGS = {
    "cv2": ("getNumThreads", "setNumThreads"),
    "numexpr": ("get_num_threads", "set_num_threads"),
    "pyarrow": ("cpu_count", "set_cpu_count"),
}

_counts: dict[str, tuple[int, int]] = {}  # package -> what the program has set, and what we have set last


def keep_to(n: int) -> None:
    """Let each loaded package use up to n threads, or fewer if the program has set fewer."""
    for name, functions in SETTINGS.items():
        get, put = (getattr(sys.modules.get(name), function, None) for function in functions)
        if get is not None and put is not None:  # otherwise it is still being imported, or is a module of the user's
            now = get()
            users, ours = _counts.get(name, (now, now))
            users = users if now == ours else now
            _set(put, now, min(n, users))
            _counts[name] = users, get()


def restore() -> None:
    """Give each package the count that the program has set, after the last pool of this process."""
    for name, (users, ours) in list(_counts.items()):
        get, put = (getattr(sys.modules.get(name), function, None) for function in SETTINGS[name])
        if get is not None and put is not None and get() == ours:
            _set(put, ours, users)
        del _counts[name]


def forget() -> None:
    """Take the present counts for those of the program's, in a new worker process."""
    _counts.clear()


def _set(put: Any, now: int, n: int) -> None:
    if n != now:
        put(n)


def limit_joblib() -> None:
    """Make joblib count a worker's threads as CPUs in tasks of thread pools.

    LightGBM and scikit-learn's `n_jobs=-1` start as many threads as it counts.
    """
    from joblib.externals import loky

    original = loky.cpu_count
    if original.__module__ == __name__:
        return

    def cpu_count(only_physical_cores: bool = False) -> int:
        n: int = original(only_physical_cores=only_physical_cores)
        return min(n, _native.own_threads() or n)

    loky.cpu_count = cpu_count
