"""Pools that are still open when the interpreter ends, or when the process forks."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_open: weakref.WeakSet[Any] = weakref.WeakSet()
_is_hooked = False
_is_at_exit = False  # `end_all` is registered and has not run; a pool opened by an exit handler registers it again
_finalized_in: int | None = None  # the pid of the process in which `end_all` is registered with multiprocessing


def register(engine: Any, kind: str) -> None:
    """Ensure that a pool that is left open ends in time, and is disowned in forked children."""
    global _is_hooked, _is_at_exit, _finalized_in
    _open.add(engine)
    if not _is_hooked:
        os.register_at_fork(after_in_child=_disown_all)
        try:
            threading._register_atexit(_end_before_threads)  # type: ignore[attr-defined]
        except RuntimeError:
            pass  # the interpreter is ending and has joined other threads
        _is_hooked = True
    if not _is_at_exit:
        _is_at_exit = True
        atexit.register(end_all)
    if kind == "process" and _finalized_in != os.getpid():
        from multiprocessing import util

        _finalized_in = os.getpid()
        util.Finalize(None, end_all, exitpriority=20)  # multiprocessing joins its children, perhaps before our hook


def _end_before_threads() -> None:
    """Called before the interpreter joins its threads, which may still use pools.

    Executors finish what was submitted, as in `concurrent.futures`. Pools end here if the interpreter would join their
    threads; otherwise they end in `end_all`.
    """
    are_joined = not threading._daemon_threads_allowed()  # type: ignore[attr-defined]
    for engine in list(_open):
        if engine.drains_at_exit or are_joined:
            _end(engine)
    if are_joined:  # `end_all` would be too late: other interpreters can end before this one's end only
        _end_kept()


def _end_kept() -> None:
    """End the interpreters that are kept, also if a signal handler raises: CPython crashes if it ends before them."""
    try:
        _native.end_kept()
    except BaseException:
        _end_kept()
        raise


def end_all() -> None:
    """End every open pool of this interpreter."""
    global _is_at_exit
    _is_at_exit = False
    try:
        for engine in list(_open):
            _end(engine)
    finally:
        _end_kept()
    if sys.version_info < (3, 13):
        _native.keep_keywords()


def _end(engine: Any) -> None:
    _open.discard(engine)
    engine.end_at_exit()


def _disown_all() -> None:
    for engine in list(_open):
        engine.disown()
    _open.clear()
    _forget_children()


def _forget_children() -> None:
    """Make `multiprocessing` forget its processes in a child of `os.fork`, which would wait for them for ever."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process._children.clear()
    forkserver = sys.modules.get("multiprocessing.forkserver")
    if forkserver is not None:
        forkserver._forkserver._lock = threading.Lock()
        forkserver._forkserver._forkserver_pid = None
