"""Pools that are still open when the interpreter ends, or when the process forks."""

import os
import threading
import weakref
from typing import Any

_open: "weakref.WeakSet[Any]" = weakref.WeakSet()
_is_hooked = False
_finalized_in: int | None = None  # the process in which multiprocessing's own hook is registered


def register(scheduler: Any, kind: str) -> None:
    """Sees to it that a forgotten pool is terminated in time, and disowned in forked children."""
    global _is_hooked, _finalized_in
    _open.add(scheduler)
    if not _is_hooked:
        _is_hooked = True
        os.register_at_fork(after_in_child=_disown_all)
        threading._register_atexit(end_all)  # type: ignore[attr-defined]  # before threads are joined
    if kind == "process" and _finalized_in != os.getpid():
        from multiprocessing import util

        _finalized_in = os.getpid()
        util.Finalize(None, end_all, exitpriority=20)  # multiprocessing joins its children before threading's hook


def end_all() -> None:
    """Terminates every open pool of this interpreter."""
    for scheduler in list(_open):
        _open.discard(scheduler)
        scheduler.end_at_exit()


def _disown_all() -> None:
    for scheduler in list(_open):
        scheduler.disown()
    _open.clear()
