"""What the user sets through threadpoolctl while pools are open.

threadpoolctl reads a library's count, sets another one, and later puts the first one back. With a pool open the count
that it reads may be a budget, and the one that it sets may be in force anyway, so that nobody could tell a limit of the
user's from none. Therefore some of its functions, which `_patches` lists, are replaced for as long as a pool is open or
a block that was entered meanwhile is: they read and set what the user has set. `native/budget/limits.c` gives each
library the smaller of that and the budget.

Blocks (`with threadpool_limits(...)`) of several threads may be open at once. Of each thread the innermost counts, and
of these the least.
"""

from __future__ import annotations

import os
import sys
import threading

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from pool_party.budget.libraries import Library

_lock = threading.RLock()  # guards what follows; reentrant, as a signal handler may enter a block, too
_libraries: dict[str, Library] = {}  # by path: those that are known to native code
# Each thread's, the innermost last: what threadpoolctl made for it, and the counts by setters.
_blocks: dict[int, list[tuple[Any, dict[int, int]]]] = {}
_replaced: list[tuple[type, str, Any]] = []  # what the functions were before
_listeners: list[Callable[[], object]] = []  # one for each open pool: told whenever the user has set something
_is_worker = False  # this is a worker process, whose pool is always open
_look: Callable[[], object] = bool
_now = threading.local()  # limiter: the one that is being made by this thread; is_leaving: it is leaving a block


def _forget_others() -> None:
    """In a forked child: only the thread that forked has blocks. Nothing is set: a lock of a library may be held."""
    global _lock
    _lock = threading.RLock()
    setters = _setters()
    for thread in [thread for thread in _blocks if thread != threading.get_ident()]:
        del _blocks[thread]
    _listeners.clear()
    _announce(setters, applies=False)


os.register_at_fork(after_in_child=_forget_others)


def open_pool(listener: Callable[[], object]) -> None:
    """A pool opens; `listener` is called whenever the user has set a count."""
    with _lock:
        _listeners.append(listener)
        _install()


def close_pool(listener: Callable[[], object]) -> bool:
    """It closes; whether any is open. After the last one, and the last block, threadpoolctl is what it was."""
    with _lock:
        if listener in _listeners:  # not in a forked child, whose parent's pool it was
            _listeners.remove(listener)
        _undo_if_unused()
        return _is_open()


def _is_open() -> bool:
    return bool(_listeners) or _is_worker


def note(libraries: Iterable[Library]) -> None:
    """These libraries are known to native code."""
    with _lock:
        _libraries.update((library.path, library) for library in libraries)


def install(is_worker: bool, look: Callable[[], object]) -> None:
    """threadpoolctl was imported. is_worker: this is a worker process.

    look: finds libraries that were loaded since the last task began; `note` is told of them.
    """
    global _is_worker, _look
    with _lock:
        _look = look
        _is_worker = is_worker
        _install()


def forget() -> None:
    """In a worker process: the pools are its parent's, and what the user has set there reaches it by its grant."""
    global _is_worker
    with _lock:
        _is_worker = True
        _blocks.clear()


def _patches() -> list[tuple[type, str, Callable[[Any], Any]]]:
    """Each function that is replaced: its class, its name, what makes the other one."""
    import threadpoolctl

    limiter: Any = threadpoolctl.threadpool_limits.__mro__[1]  # what the controllers' `limit` returns, too
    restore = [(limiter, name, _restoring) for name in ("restore_original_limits", "unregister")]
    controllers = [cls for cls in threadpoolctl.LibController.__subclasses__() if "set_num_threads" in vars(cls)]
    setting = [(cls, "set_num_threads", _setting) for cls in controllers]
    return [(limiter, "__init__", _making), (limiter, "__enter__", _entering), *restore, *setting]


def _install() -> None:
    if _replaced or not _is_open() or "threadpoolctl" not in sys.modules:
        return
    for cls, name, make in _patches():
        original = getattr(cls, name)
        _replaced.append((cls, name, original))
        setattr(cls, name, make(original))


def _undo_if_unused() -> None:
    if _is_open() or any(_blocks.values()):
        return
    while _replaced:
        cls, name, original = _replaced.pop()
        setattr(cls, name, original)


def _making(original: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        _look()
        counts = {path: _native.user_count(library.setter) for path, library in tuple(_libraries.items())}
        self._pool_party_sets = {}
        _now.limiter = self
        try:
            original(self, *args, **kwargs)
        finally:
            _now.limiter = None
        for info in self._original_info:
            if (count := counts.get(info["filepath"])) is not None:
                info["num_threads"] = count

    return __init__


def _setting(original: Any) -> Any:
    def set_num_threads(self: Any, num_threads: Any) -> Any:
        library = _libraries.get(self.filepath)
        if library is None or not isinstance(num_threads, int) or num_threads < 1:
            return original(self, num_threads)
        if (limiter := getattr(_now, "limiter", None)) is not None:
            limiter._pool_party_sets[self.filepath] = num_threads
        if not (getattr(_now, "is_leaving", False) and library.scope == "process"):
            _native.user_sets(library.setter, num_threads)
            _tell()

    return set_num_threads


def _entering(original: Any) -> Any:
    def __enter__(self: Any) -> Any:
        sets = {_libraries[path]: n for path, n in getattr(self, "_pool_party_sets", {}).items()}
        own = {library.setter: n for library, n in sets.items() if library.scope == "process"}
        if own:
            with _lock:
                _blocks.setdefault(threading.get_ident(), []).append((self, own))
                _announce(own)
            for info in self._original_info:  # the block is what counts from here on
                library = _libraries.get(info["filepath"])
                if library is not None and library.setter in own:
                    _native.user_sets(library.setter, info["num_threads"])
            _tell()
        return original(self)

    return __enter__


def _restoring(original: Any) -> Any:
    def restore_original_limits(self: Any) -> Any:
        with _lock:
            left = [(thread, block) for thread, blocks in _blocks.items() for block in blocks if block[0] is self]
        if not left:
            return original(self)
        _now.is_leaving = True
        try:
            original(self)
        finally:
            _now.is_leaving = False
            with _lock:
                for thread, block in left:
                    _blocks[thread].remove(block)
                    if not _blocks[thread]:
                        del _blocks[thread]
                    _announce(block[1])
                _undo_if_unused()
            _tell()

    return restore_original_limits


def _setters() -> set[int]:
    return {setter for blocks in _blocks.values() for _, own in blocks for setter in own}


def _announce(setters: Iterable[int], applies: bool = True) -> None:
    for setter in setters:
        of_threads = [[own[setter] for _, own in blocks if setter in own] for blocks in _blocks.values()]
        least = min((counts[-1] for counts in of_threads if counts), default=0)
        _native.user_blocks(setter, least, applies)


def _tell() -> None:
    for listener in tuple(_listeners):
        listener()
