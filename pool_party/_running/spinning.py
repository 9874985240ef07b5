"""Keeps OpenBLAS's threads from spinning while a program starts.

OpenBLAS starts a thread for each further CPU when it is loaded, and each spins for 2^28 ticks of the CPU's counter
before it sleeps, which takes 50 to 80 ms. The program's process and its fork server load it in turn, and these threads
take the CPUs from what comes next. OpenBLAS reads a variable of the environment as it is loaded, so this is set just
then, and `os.environ` does not change.
"""

from __future__ import annotations

import os
import sys

from pool_party._ground import imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
_LOADING = ("numpy", "scipy.linalg")  # modules whose import loads an OpenBLAS


def shorten() -> None:
    """Do so from now on, unless the user has chosen how long they spin."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: object = None) -> Any:
        if name not in _LOADING or _VARIABLE in os.environ:
            return None
        return imports.find_spec_around(name, _Finder, _load, path)


def _load(load: Callable[[ModuleType], None], module: ModuleType) -> None:
    from pool_party._budget.environment import OPENBLAS_TIMEOUT

    os.putenv(_VARIABLE, OPENBLAS_TIMEOUT)  # as workers have it
    try:
        load(module)
    finally:
        os.unsetenv(_VARIABLE)
