"""Pools that are still open when the interpreter ends, or when the process forks."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from threading import get_ident
from time import monotonic, sleep

from pool_party import _native
from pool_party._ground.errors import PoolClosed

OPENING_S = 10.0  # how long the interpreter's end waits for threads that are opening pools
PAUSE_S = 0.001  # between two looks whether they have

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_ENDING = "a pool cannot be opened any more: the interpreter is ending"

_open: weakref.WeakSet[Any] = weakref.WeakSet()
_is_hooked = False
_is_at_exit = False  # `end_all` is registered and has not run; a pool opened by an exit handler registers it again
_opening: list[int] = []  # the idents of the threads that are opening pools
_ending_in: int | None = None  # the ident of the thread that has begun to end all pools, at the interpreter's end
_finalized_in: int | None = None  # the pid of the process in which multiprocessing calls `_end_for_good`


def note_opening() -> None:
    """Note that the calling thread opens a pool. Raise PoolClosed if the interpreter is ending.

    A daemon thread may try at any time. Interpreters that it had begun would outlive this one, which CPython does not
    allow. The main thread may still open pools, in exit handlers.
    """
    me = get_ident()
    _opening.append(me)  # before the check: either that is seen here, or this is seen in `_close`
    if _ending_in not in (None, me):
        note_opened()
        raise PoolClosed(_ENDING)
    _hook_exit()


def check_refusal(error: BaseException) -> None:
    """Raise PoolClosed if an error is the interpreter's refusal to start a thread or a process while it ends.

    CPython 3.12 refuses both before it calls exit handlers, so also in these, and before we note that it ends.
    """
    if isinstance(error, RuntimeError) and str(error).endswith(" at interpreter shutdown"):
        raise PoolClosed(_ENDING) from error


def _hook_exit() -> None:
    global _is_at_exit
    if not _is_at_exit:
        _is_at_exit = True
        atexit.register(_end_for_good)


def note_opened() -> None:
    """Note that `note_opening` is over."""
    _opening.remove(get_ident())


def _close() -> None:
    """Let no other thread open pools from now on, and wait until those are registered that are being opened."""
    global _ending_in
    _ending_in = me = get_ident()
    deadline = monotonic() + OPENING_S
    while any(ident != me for ident in _opening.copy()) and monotonic() < deadline:
        sleep(PAUSE_S)


def register(engine: Any, kind: str) -> None:
    """Ensure that a pool that is left open ends in time, and is disowned in forked children."""
    global _is_hooked, _finalized_in
    _open.add(engine)
    if not _is_hooked:
        os.register_at_fork(after_in_child=_disown_all)
        try:
            threading._register_atexit(_end_before_threads)  # type: ignore[attr-defined]
        except RuntimeError:
            pass  # the interpreter is ending and has joined other threads
        _is_hooked = True
    _hook_exit()
    if kind == "process" and _finalized_in != os.getpid():
        from multiprocessing import util

        _finalized_in = os.getpid()
        util.Finalize(None, _end_for_good, exitpriority=20)  # multiprocessing ends its own, perhaps before our hook


def _end_before_threads() -> None:
    """Called before the interpreter joins its threads, which may still use pools.

    Executors finish what was submitted, as in `concurrent.futures`. Pools end here if the interpreter would join their
    threads; otherwise they end in `end_all`.
    """
    are_joined = not threading._daemon_threads_allowed()  # type: ignore[attr-defined]
    _end_each(engine for engine in list(_open) if engine.drains_at_exit or are_joined)


def _end_for_good() -> None:
    """Called by the interpreter's end, when daemon threads still run."""
    _close()
    end_all()


def end_all() -> None:
    """End every open pool of this interpreter."""
    global _is_at_exit
    _is_at_exit = False
    try:
        _end_each(list(_open))
    finally:  # otherwise CPython 3.12 frees what it must not
        if sys.version_info < (3, 13):
            _native.keep_keywords()


def _end_each(engines: Iterable[Any]) -> None:
    """End these pools: all of them, also if a signal handler raises meanwhile."""
    raised = None
    for engine in engines:
        _open.discard(engine)
        try:
            engine.end_at_exit()
        except BaseException as error:
            raised = error
    if raised is not None:
        raise raised


def _disown_all() -> None:
    global _ending_in
    _ending_in = None
    _opening[:] = [ident for ident in _opening if ident == get_ident()]
    for engine in list(_open):
        engine.disown()
    _open.clear()
    _forget_children()


def _forget_children() -> None:
    """Make `multiprocessing` forget its processes in a child of `os.fork`, which would wait for them for ever."""
    getattr(sys.modules.get("multiprocessing.process"), "_children", set()).clear()  # a thread may be importing it
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    if server is not None:
        server._lock = threading.Lock()
        server._forkserver_pid = None
