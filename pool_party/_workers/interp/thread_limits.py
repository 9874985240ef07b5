"""Lets threadpoolctl find, in an interpreter that is a worker, the libraries that this interpreter uses.

By itself it would find the process's instances of them, and set their counts: of the private copies of OpenBLAS it
knows nothing, and a library of the main program may have the same file. What a task sets then belongs to the task, as
in workers of other kinds (`_budget/user_limits.py`).
"""

import ctypes
import os
import types

from pool_party import _native
from pool_party._budget import environment, libraries, user_limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

_loaded = libraries.Loaded()


def adopt(
    threadpoolctl: "Any",
    handle_of: "Callable[[Any], int | None]",
    is_of_others: "Callable[[str], bool]",
    copies: "Callable[[], Iterable[str]]",
) -> None:
    """Change threadpoolctl, which this interpreter has just imported.

    handle_of: returns the dynamic loader's handle of this interpreter's copy of a library, or None. is_of_others:
    whether a library is not this interpreter's. copies: returns the libraries of which it has copies.
    """

    def open_library(path: "Any", *args: "Any", **kwargs: "Any") -> ctypes.CDLL:
        handle = handle_of(path)
        return ctypes.CDLL(path, *args, **kwargs) if handle is None else ctypes.CDLL(path, handle=handle)

    def make_controller(self: "Any", filepath: str, *args: "Any") -> None:
        if not is_of_others(os.path.realpath(filepath)):
            make(self, filepath, *args)

    def load_libraries(self: "Any") -> None:
        load(self)
        for path in copies():
            self._make_controller_from_path(path)

    threadpoolctl.ctypes = types.SimpleNamespace(**{**vars(ctypes), "CDLL": open_library})
    controller = threadpoolctl.ThreadpoolController
    make, load = controller._make_controller_from_path, controller._load_libraries
    controller._make_controller_from_path, controller._load_libraries = make_controller, load_libraries
    user_limits.install(is_worker=True, look=_look)


def _look() -> None:
    """Find the libraries that this interpreter has begun to use."""
    if _loaded.refresh():
        for found in _loaded.libraries:
            most = environment.users_count(found.name)
            _native.limit_library(found.setter, found.getter, found.scope == "thread", most)
        user_limits.note(_loaded.libraries)
