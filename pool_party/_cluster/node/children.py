"""The processes that a rank of an MPI program starts for its sessions, and what differs in them.

They do not import the script that the rank has as `__main__`, whose lines at the top may use MPI, and do not initialize
MPI, since they would try to be the same rank. A rank that runs the program as well, for an `MPICommExecutor`, goes on
with that after the last session. So everything is as before then.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pool_party._workers.process_helpers import MAIN_KEYS

_changing = threading.Lock()  # guards the next two
_n_sessions = 0
_undo: Callable[[], None] | None = None


@contextmanager
def prepared(environment: Mapping[str, str]) -> Iterator[None]:
    """Have processes begin with these environment variables and an empty `__main__` until the last session ends."""
    global _n_sessions, _undo
    with _changing:
        _n_sessions += 1
        if _n_sessions == 1:
            _undo = _prepare(environment)
    try:
        yield
    finally:
        with _changing:
            _n_sessions -= 1
            if _n_sessions == 0 and _undo is not None:
                _undo()


def _prepare(environment: Mapping[str, str]) -> Callable[[], None]:
    """Change how processes begin, and return what undoes it."""
    from multiprocessing import spawn

    original = spawn.get_preparation_data
    before = {name: os.environ.get(name) for name in environment}

    def get_preparation_data(name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        data: dict[str, Any] = original(name, *args, **kwargs)
        for key in MAIN_KEYS:
            data.pop(key, None)
        return data

    def undo() -> None:
        if spawn.get_preparation_data is get_preparation_data:
            spawn.get_preparation_data = original
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    spawn.get_preparation_data = get_preparation_data
    os.environ.update(environment)
    return undo
