"""Keeps limits that are set through threadpoolctl apart from budgets, while pools are open and in workers.

threadpoolctl reads a library's count, sets another one, and later restores the first. While a pool is open, the count
that it reads may be a budget, and the one that it sets may equal the count in force, so a limit could not be
recognized. Therefore some of its functions, which `_patches` lists, are replaced in workers, and elsewhere while a pool
or a block that was entered meanwhile is open. They read and set limits only. `native/budget/limits.c` gives each
library the smallest of the limits and the budget.

A limit that is set in a task belongs to the task. The limit of each of the task's threads is the one that this thread
has set last, and the smallest of them applies, until the task ends. In a pool of threads, threads that a task has
started are taken for the program's.

Blocks (`with threadpool_limits(...)`) of several threads of the program may be open at once. The innermost block of
each thread counts, and the smallest of these is in force.
"""

from __future__ import annotations

import os
import threading
import weakref

from pool_party import _native
from pool_party._ground.imports import loaded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from pool_party._budget.libraries import Library

# Guards what follows; reentrant, as a signal handler may enter a block. No module is imported while it is held, since a
# thread that imports threadpoolctl takes it at the end of the import.
_lock = _native.Guard()
_libraries: dict[str, Library] = {}  # path -> library, for those registered with native code
# thread ident -> its blocks, innermost last: threadpoolctl's limiter object, and the counts by setter.
_blocks: dict[int, list[tuple[Any, dict[int, int]]]] = {}
# Limiters that have set a count and whose block is not entered yet, oldest first. If it never is, the count stays.
_made: list[weakref.ref[Any]] = []
# number of a task -> thread ident -> what this thread has set last, by setter
_tasks: dict[int, dict[int, dict[int, int]]] = {}
_replaced: list[tuple[type, str, Any]] = []  # the original functions
_listeners: list[Callable[[], object]] = []  # one for each open pool, called whenever the user has set a limit
_is_worker = False  # this is a worker process, or an interpreter, which counts as an open pool
_look: Callable[[], object] = bool
# limiter: the limiter that this thread is making; restores: the one whose counts it restores; is_restored: whether
# those that affect the process need nothing more.
_now = threading.local()


def _forget_others() -> None:
    """Keep only what the forking thread has set, in a forked child.

    It calls no library, since another thread may have held a library's lock.
    """
    global _lock
    _lock = _native.Guard()
    setters = _setters()
    for thread in [thread for thread in _blocks if thread != threading.get_ident()]:
        del _blocks[thread]
    for threads in _tasks.values():
        for thread in [thread for thread in threads if thread != threading.get_ident()]:
            del threads[thread]
    _listeners.clear()
    _announce(setters, applies=False)


os.register_at_fork(after_in_child=_forget_others)


def open_pool(listener: Callable[[], object]) -> None:
    """Note that a pool opens. `listener` is called whenever the user has set a count."""
    with _lock:
        _listeners.append(listener)
    _install()


def close_pool(listener: Callable[[], object]) -> bool:
    """Note that a pool closes. After the last pool and the last block, threadpoolctl has its own functions again.

    Return whether it was the last one, and this is no worker process.
    """
    with _lock:
        if listener in _listeners:  # not so in a forked child, to which the parent's pools do not belong
            _listeners.remove(listener)
        _undo_if_unused()
        return not _is_open()


def _is_open() -> bool:
    return bool(_listeners) or _is_worker


def note(libraries: Iterable[Library]) -> None:
    """Note libraries that are registered with native code."""
    with _lock:
        _libraries.update((library.path, library) for library in libraries)


def install(is_worker: bool, look: Callable[[], object]) -> None:
    """Wrap threadpoolctl, which was imported. is_worker: this is a worker process, or an interpreter.

    look: finds libraries that were loaded since the last task began, and passes them to `note`.
    """
    global _is_worker, _look
    with _lock:
        _look = look
        _is_worker = is_worker
    _install()


def forget() -> None:
    """Forget the parent's blocks, in a worker process.

    The user's limits in the parent reach it as part of its budget.
    """
    global _is_worker
    with _lock:
        _is_worker = True
        _blocks.clear()
        _made.clear()
        _tasks.clear()


def _patches(threadpoolctl: Any) -> list[tuple[type, str, Callable[[Any], Any]]]:
    """Return each function to replace: its class, its name, and a factory of the replacement."""
    limiter: Any = threadpoolctl.threadpool_limits.__mro__[1]  # the base class, which `limit` of controllers returns
    restore = [(limiter, name, _restoring) for name in ("restore_original_limits", "unregister")]
    controllers = [cls for cls in threadpoolctl.LibController.__subclasses__() if "set_num_threads" in vars(cls)]
    setting = [(cls, "set_num_threads", _setting) for cls in controllers]
    return [(limiter, "__init__", _making), (limiter, "__enter__", _entering), *restore, *setting]


def _install() -> None:
    """Replace the functions, if threadpoolctl has been imported. Waits for another thread that imports it."""
    if (threadpoolctl := loaded("threadpoolctl")) is None:
        return
    with _lock:
        if _replaced or not _is_open():
            return
        for cls, name, make in _patches(threadpoolctl):
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
        known = tuple(_libraries.items())
        self._pool_party_task = task = _native.task()
        if task:
            mine = _tasks.get(task, {}).get(threading.get_ident(), {})
            self._pool_party_before = {path: mine.get(library.setter, 0) for path, library in known}
            original(self, *args, **kwargs)
            return
        counts = {path: _native.user_count(library.setter) for path, library in known}
        self._pool_party_sets = {}  # path -> count
        _now.limiter = self
        try:
            original(self, *args, **kwargs)
        finally:
            _now.limiter = None
        for info in self._original_info:
            if info["filepath"] in counts and info["filepath"] not in self._pool_party_sets:
                info["num_threads"] = counts[info["filepath"]]

    return __init__


def _set_by_limiter(limiter: Any, library: Library, n: int) -> None:
    """Set a count for a limiter that is being made, which notes what it replaces."""
    with _lock:  # so that the order of `_made` is that in which counts are set
        _info_of(limiter, library.path)["num_threads"] = _native.user_count(library.setter)
        limiter._pool_party_sets[library.path] = n
        _made[:] = [other for other in _made if other() not in (None, limiter)]
        _made.append(weakref.ref(limiter))
        _native.user_sets(library.setter, n)


def _info_of(limiter: Any, path: str) -> dict[str, Any]:
    return next(info for info in limiter._original_info if info["filepath"] == path)


def _take_back(limiter: Any) -> bool:
    """Set the counts that there would be had this limiter not been made.

    Return False, and do nothing, if this has happened before. Since it was made another thread may have made one, which
    found this one's count and will restore it.
    """
    with _lock:
        made = [reference() for reference in _made]
        if limiter not in made:
            return False
        place = made.index(limiter)
        del _made[place]
        for path, n in limiter._pool_party_sets.items():
            before, setter = _info_of(limiter, path)["num_threads"], _libraries[path].setter
            later = next((other for other in made[place + 1 :] if other and path in other._pool_party_sets), None)
            if later is not None:
                _info_of(later, path)["num_threads"] = before
            elif _native.user_count(setter) == n:  # nobody has set another one since
                _native.user_sets(setter, before)
    return True


def _setting(original: Any) -> Any:
    def set_num_threads(self: Any, num_threads: Any) -> Any:
        library = _libraries.get(self.filepath)
        if library is None or not isinstance(num_threads, int):
            return original(self, num_threads)
        restored = getattr(_now, "restores", None)
        task = _native.task() if restored is None else getattr(restored, "_pool_party_task", 0)
        if task:
            before = num_threads if restored is None else restored._pool_party_before.get(self.filepath, 0)
            return _set_in_task(task, library, before)
        if num_threads < 1:
            return original(self, num_threads)
        if (limiter := getattr(_now, "limiter", None)) is not None and library.scope == "process":
            _set_by_limiter(limiter, library, num_threads)
            _tell()
        elif restored is None or not _now.is_restored or library.scope != "process":
            _native.user_sets(library.setter, num_threads)
            _tell()

    return set_num_threads


def _set_in_task(task: int, library: Library, n: int) -> None:
    """Set what the calling thread wants in a task; 0 or less: as much as the budget allows."""
    thread = threading.get_ident()
    with _lock:
        threads = {**_tasks.get(task, {})}
        threads[thread] = {**threads.get(thread, {}), library.setter: n}
        wants = [n] if library.scope == "thread" else [own.get(library.setter, 0) for own in threads.values()]
        if not _native.task_sets(task, library.setter, min((n for n in wants if n > 0), default=0)):
            return  # the task has ended
        if task not in _tasks:  # a worker's thread runs one task at a time: what it has set earlier is of no use
            for other in [other for other, ended in _tasks.items() if thread in ended]:
                del _tasks[other]
        _tasks[task] = threads
    _tell()


def _entering(original: Any) -> Any:
    def __enter__(self: Any) -> Any:
        own = {_libraries[path].setter: n for path, n in getattr(self, "_pool_party_sets", {}).items()}
        if own:
            with _lock:
                _blocks.setdefault(threading.get_ident(), []).append((self, own))
                _announce(own)
                _take_back(self)  # from here on the block itself holds the limit
            _tell()
        return original(self)

    return __enter__


def _is_in_block(limiter: Any) -> bool:
    return limiter is not None and any(block[0] is limiter for blocks in tuple(_blocks.values()) for block in blocks)


def _restoring(original: Any) -> Any:
    def restore_original_limits(self: Any) -> Any:
        _now.is_restored = _take_back(self) or _is_in_block(self)
        _now.restores = self
        try:
            original(self)
        finally:
            _now.restores = None
            _leave(self)

    return restore_original_limits


def _leave(limiter: Any) -> None:
    with _lock:
        left = [(thread, block) for thread, blocks in _blocks.items() for block in blocks if block[0] is limiter]
        for thread, block in left:
            _blocks[thread].remove(block)
            if not _blocks[thread]:
                del _blocks[thread]
            _announce(block[1])
        _undo_if_unused()
    if left:
        _tell()


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
