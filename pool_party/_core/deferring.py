"""Pools that a module makes as it is imported, in a worker. They start with their first call there, if one comes.

A worker imports the modules of its tasks, and so runs their statements again. A pool that such a statement makes, for
functions that run in the program alone, would be one more set of processes for each worker.
"""

from __future__ import annotations

import os
import sys

from pool_party import _native
from pool_party._ground.errors import PoolPartyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_opening = _native.Guard()  # held while a pool opens late; reentrant, as a signal handler may use it
os.register_at_fork(after_in_child=_opening._at_fork_reinit)  # type: ignore[attr-defined]  # another thread may hold it
_OPENED = ("_engine", "_keeper", "_processes", "_max_workers")  # what opening sets


def importing() -> str | None:
    """Return the name of the module whose own statement this thread is at, in a worker that imports it, or None."""
    loop = sys.modules.get("pool_party._workers.loop")
    process = getattr(sys.modules.get("multiprocessing.process"), "_current_process", None)
    if not getattr(process, "_inheriting", False) and not getattr(loop, "is_remote", False):
        return None  # another thread may be importing either module just now
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if frame.f_code.co_name == "<module>" and isinstance(name, str) and _is_running(name, frame.f_globals):
            return name
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _is_running(name: str, names: dict[str, Any]) -> bool:
    return name == "__mp_main__" or bool(getattr(names.get("__spec__"), "_initializing", False))


class Deferrable:
    """A pool or an executor that `_open_with` opens, at once or with its first use."""

    _deferred: Callable[[], None] | None = None
    _viewed: Any = None

    def _open_with(self, kind: str, opening: Callable[[], None]) -> None:
        if kind == "thread" or importing() is None:
            opening()
        else:
            self._deferred = opening

    if not TYPE_CHECKING:  # checkers would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            if name not in _OPENED:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            if self._viewed is not None:
                return getattr(self._viewed, name)
            if (module := importing()) is not None:
                raise PoolPartyError(
                    f"a worker imports the module {module!r}, which uses a pool as it is imported, so every worker "
                    'would start more of them: use the pool in a function, or under if __name__ == "__main__"'
                )
            with _opening:
                if name not in self.__dict__ and self._deferred is not None:
                    self._deferred()
                    self._deferred = None
            return object.__getattribute__(self, name)
