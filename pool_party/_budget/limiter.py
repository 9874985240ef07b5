"""Finds BLAS and OpenMP libraries, and registers them with the native limiter of this process.

There is one limiter for all pools, threads and interpreters of the process. `native/budget/limits.c` computes the
thread counts from which workers are active. This module tells it which libraries are loaded, each time that the list of
them changes.
"""

from __future__ import annotations

import os
import sys
import threading

from pool_party import _native
from pool_party._ground.imports import loaded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from importlib.machinery import ExtensionFileLoader, ModuleSpec
    from types import ModuleType
    from typing import Any, Protocol

    from pool_party._budget.libraries import Library
else:
    Protocol = object
    from _frozen_importlib_external import ExtensionFileLoader  # importlib itself need not have been imported


class Extra(Protocol):
    """What a policy does to the libraries of its worker processes, besides the limits of their budgets.

    n_ungated: how many threads a library or package may use that it does not reach. 0: any number.
    """

    n_ungated: int

    def install(self, libraries: Iterable[Library]) -> None:
        """Reach these libraries; called again when there are more."""

    def most_of(self, library: Library) -> int:
        """Return the most threads that a library may use, or 0 for any number."""

    def close(self) -> None:
        """Let go of all libraries."""


_lock = _native.Guard()
_loaded: object = None  # a libraries.Loaded, once needed
_pinned: dict[int, Collection[int]] = {}  # native id of a pinned thread -> the CPUs that libraries may use
_n_limited = 0  # how many libraries there were at the last call of `refresh`
_create_module = ExtensionFileLoader.create_module
_extra: Extra | None = None  # what else the policy does to libraries in this worker process
_is_worker = False  # this is a worker process


def _forget() -> None:
    """Reset what this module knows, in a forked child."""
    global _lock
    _lock = _native.Guard()
    _pinned.clear()
    ExtensionFileLoader.create_module = _create_module  # type: ignore[method-assign]


os.register_at_fork(after_in_child=_forget)


def open_pool(cpus: Collection[int], listener: Callable[[], object]) -> None:
    """Note that a pool opens. `listener` is called whenever the user has set a count through threadpoolctl.

    cpus: the CPUs that libraries' threads may use, if workers are pinned to fewer. Threads that a worker creates would
    otherwise inherit its mask.
    """
    from pool_party._budget import user_limits

    if cpus:
        _native.limits_cpus(tuple(cpus))
    _watch_imports()
    user_limits.open_pool(listener)


def close_pool(listener: Callable[[], object]) -> None:
    """Note that the pool of `listener` closes."""
    from pool_party._budget import user_limits

    if user_limits.close_pool(listener) and (packages := loaded("pool_party._budget.packages")):
        packages.restore()


def enter_process(n_threads: int) -> None:
    """Prepare a new worker process, whose environment says n_threads: discard what it inherited from its parent."""
    global _is_worker
    _is_worker = True
    for name in ("user_limits", "packages"):
        forget = getattr(
            sys.modules.get(f"pool_party._budget.{name}"), "forget", None
        )  # None: the fork was amid its import
        if forget is not None:
            forget()
    _native.limits_told(n_threads)
    _watch_imports()
    _drop_extra()


def is_worker() -> bool:
    """Return whether this is a worker process of ours."""
    return _is_worker


def _limit_packages() -> int:
    """Limit packages in the calling thread, if that is a worker's thread. Return to how many threads, or 0."""
    from pool_party._budget import numba_threads, packages

    if n := _native.own_threads():
        if _extra is not None and _extra.n_ungated:
            n = min(n, _extra.n_ungated)
        run_wide(numba_threads.keep_to, n)
        run_wide(packages.keep_to, n)
    return n


def _limit_joblib() -> None:
    from pool_party._budget import packages

    packages.limit_joblib()


def _watch_user() -> None:
    """Wrap threadpoolctl, once it has been imported."""
    from pool_party._budget import user_limits

    user_limits.install(_is_worker, refresh)


_LIMITED = ("numba", "cv2", "numexpr", "pyarrow")  # packages that are told of each change of a worker's budget
_AFTER_IMPORT = {
    **dict.fromkeys(_LIMITED, _limit_packages),
    "joblib.externals.loky": _limit_joblib,
    "threadpoolctl": _watch_user,
}


class _Finder:
    """An entry of `sys.meta_path` from the first pool on: it reports the imports of modules that concern limits.

    It stays, since another thread may go through the list just then, to import a module (see `imports.remove`).
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in _AFTER_IMPORT:
            return None
        from pool_party._ground import imports

        return imports.find_spec(name, _finder, _AFTER_IMPORT[name], path)


_finder: Any = _Finder


def _watch_imports() -> None:
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
        if "joblib.externals.loky" in sys.modules:
            _limit_joblib()
    ExtensionFileLoader.create_module = _load  # type: ignore[method-assign]


def _load(self: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
    """Load an extension module, and limit the libraries that came with it before the module uses them.

    A pinned thread loads it with all CPUs allowed, since libraries may start threads while they load.

    The standard library brings none. Its modules are left out for a reason, too: `refresh` imports some of them while
    it holds the lock, so a thread that imports one must not wait for that lock. threadpoolctl and its like are safe,
    since they load no extension modules but those.
    """
    module: ModuleType = run_wide(_create_module, self, spec)
    if spec.name.partition(".")[0] not in sys.stdlib_module_names and _native.n_thread_libraries() != _n_limited:
        try:
            refresh()
        except Exception:
            pass  # it is done again before the next task, and then reported
    return module


def refresh(forks: bool = False) -> int | None:
    """Find newly loaded libraries and limit them. It is cheap if no library was loaded since the last call.

    forks: workers will be forked from this process, and inherit what is known here.

    Return None, unless a library in the calling worker's thread must be told of each change of the worker's budget.
    Then return the number of threads that it was told: this must be called again before a task that has another number.
    """
    global _n_limited
    if n := _native.n_thread_libraries():
        with _lock:
            _limit_new(forks or _is_worker)
            _n_limited = n
    return _limit_packages() if any(name in sys.modules for name in _LIMITED) else None


def _limit_new(may_lack_threads: bool) -> None:
    """Register newly loaded libraries. may_lack_threads: as OpenBLAS does in a process that was forked."""
    global _loaded
    from pool_party._budget import libraries, user_limits

    if not isinstance(_loaded, libraries.Loaded):
        _loaded = libraries.Loaded()
    if _loaded.refresh() or (may_lack_threads and not _loaded.has_variables):
        for found in _loaded.libraries:
            most = _most_of(found)
            variables = libraries.variables_of(found) if may_lack_threads else ()
            _native.limit_library(found.setter, found.getter, found.scope == "thread", most, *variables)
        _loaded.has_variables = may_lack_threads
        user_limits.note(_loaded.libraries)
        user_limits.install(_is_worker, refresh)
    if _extra is not None:
        _extra.install(_loaded.libraries)


def _most_of(library: Library) -> int:
    """Return the most threads that a library may use besides its budget, or 0 for any number."""
    from pool_party._budget import environment

    counts = (environment.users_count(library.name), 0 if _extra is None else _extra.most_of(library))
    return min(filter(None, counts), default=0)


def add(extra: Extra) -> None:
    """Have a policy's `extra` applied to all libraries of this worker process."""
    global _extra, _loaded
    with _lock:
        _extra = extra
        _loaded = None  # those that were found before, in the parent of a forked worker, are limited anew
    refresh()


def _drop_extra() -> None:
    """Discard it in a forked worker, since it belongs to the parent's threads."""
    global _extra
    with _lock:
        if _extra is not None:
            _extra.close()
        _extra = None


# ---- workers that are pinned to CPUs of their own ----


def pin(cpus: Collection[int], wide: Collection[int]) -> None:
    """Pin the calling worker thread to its CPUs. Libraries that it loads may start threads on all of `wide`."""
    if cpus:
        with _lock:
            _pinned[threading.get_native_id()] = wide
        os.sched_setaffinity(0, cpus)


def unpin() -> None:
    """Forget the calling thread, which is about to end."""
    with _lock:
        _pinned.pop(threading.get_native_id(), None)


def run_wide(function: Callable[..., Any], *args: object) -> Any:
    """Call a function that may start threads, while the calling thread may use all CPUs that those threads may use."""
    wide = _pinned.get(threading.get_native_id())
    if wide is None:
        return function(*args)
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, wide)
    try:
        return function(*args)
    finally:
        os.sched_setaffinity(0, own)
