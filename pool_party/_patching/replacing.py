"""Pools and executors of the standard library that become ours as they are made. Imported when the first one is made.

For each class of the standard library there is one of ours that derives from it and from our pool or executor. For a
class of the program that derives from one of the standard library's, a class is made that derives from both.
"""

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pool_party import _native
from pool_party._budget.policies import for_kind
from pool_party._budget.topology import cpu_count
from pool_party._config import arguments_of
from pool_party._core import functions
from pool_party._executor import ComposableExecutor
from pool_party._ground.choices import Kind
from pool_party._ground.errors import PoolClosed
from pool_party._patching import kinds, state, subclasses, usage
from pool_party._patching.settings import Settings
from pool_party._patching.subclasses import LeaveAlone
from pool_party._pool import ComposablePool

# Packages that open pools for the program. A pool that one of them opens belongs to its part.
_LIBRARIES = {name: name for name in ("asyncio", "joblib", "dask", "scipy")}
_PASSED_OVER = ("multiprocessing", "concurrent", "pool_party")  # packages whose frames are not the caller's


class Request(NamedTuple):
    """Who asked for a pool, and under which name."""

    part: str
    name: str
    caller: str


def become_ours(pool: Any, original: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Make a new, empty object of the standard library's class one of ours. Return False if it is to stay what it is.

    Raises: What the constructor of the standard library raises for these arguments.
    """
    caller = find_caller()
    home = _HOMES[original.__name__]
    part = _LIBRARIES.get(caller.partition(".")[0], home.part)
    if not state.is_wanted(part):
        return False
    request = Request(part, "asyncio's default executor" if part == "asyncio" else home.name, caller)
    cls: type = type(pool)
    try:
        _change_class(pool, subclasses.ours_for(cls, original, home.ours))
        pool._request = request
        try:
            pool._open_as(*args, **kwargs)
        except LeaveAlone:
            pool.__class__ = cls
            del pool._request
            raise
    except LeaveAlone as reason:
        usage.note(usage.LeftAlone(*request, str(reason)))
        return False
    return True


def _change_class(pool: Any, cls: type) -> None:
    try:
        pool.__class__ = cls
    except TypeError as error:  # two classes of the program have memory layouts of their own
        raise LeaveAlone(f"Its class cannot be changed: {error}.") from None


def find_caller(*passed_over: str) -> str:
    """Return the name of the module that makes the pool. passed_over: further packages that are not the caller."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name: str = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in (*_PASSED_OVER, *passed_over):
            return name
        frame = frame.f_back
    return "__main__"


def _settings() -> Settings:
    """Return what applies. Our backends of joblib may be asked for pools after `undo`."""
    return state.current() or Settings()


def for_workers(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options from `budget_options` with the policy that workers of this kind can have."""
    return {**options, "policy": for_kind(options["policy"], kind)}


def budget_options() -> dict[str, Any]:
    """Return the options of pools that the settings determine. `for_workers` makes them fit a kind."""
    settings = _settings()
    policy = "dynamic" if settings.policy is None else settings.policy
    return {"policy": policy, "oversubscription": settings.oversubscription, "scope": settings.scope}


def choose_kind(context: Any, *others: object) -> Kind:
    """Return the kind of workers in the place of processes. others: what speaks for processes unless it is None."""
    kind = _settings().kind
    return kinds.choose(context, *others) if kind == "auto" else kind


def named_or_set(number: int | None) -> int | None:
    """Return the number of workers that the program names, or else that of the settings, which may be None."""
    return _settings().n_workers if number is None else number


def _check_number(number: Any) -> None:
    if number is not None and not isinstance(number, int):
        raise LeaveAlone(f"The number of workers is {number!r}, which is not an int.")
    if number is not None and number > _native.MAX_WORKERS:
        raise LeaveAlone(f"It has {number} workers, and pools of ours have at most {_native.MAX_WORKERS}.")


def _check_context(context: Any) -> None:
    from multiprocessing.context import BaseContext

    if context is not None and not isinstance(context, BaseContext):
        raise LeaveAlone(f"Its context is not one of multiprocessing's, but of {type(context).__module__}.")


def _note(request: Request, kind: str, n_workers: int) -> None:
    usage.note(usage.Replaced(request.part, request.name, kind, request.caller, n_workers))


# ---- pools ----


class _AnyPool(ComposablePool):
    _request: Request
    _check = staticmethod(functions.check_callable)  # coroutine functions are taken, as by the standard library

    def _open_pool(
        self,
        kind: Kind,
        processes: Any,
        initializer: Any,
        initargs: Iterable[Any],
        maxtasksperchild: int | None = None,
        context: Any = None,
    ) -> None:
        processes = named_or_set(processes)
        _check_number(processes)
        limits = for_workers(kind, budget_options())
        ComposablePool.__init__(self, processes, initializer, initargs, maxtasksperchild, context, kind=kind, **limits)
        _note(self._request, kind, self._processes)

    def __getattr__(self, name: str) -> Any:
        raise _lacks(self, name)


class _Pool(_AnyPool):
    """In the place of `multiprocessing.pool.Pool`."""

    def _open_as(
        self,
        processes: Any = None,
        initializer: Any = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
    ) -> None:
        _check_context(context)
        kind = choose_kind(context, initializer, maxtasksperchild)
        self._open_pool(kind, processes, initializer, initargs, maxtasksperchild, context)


class _ThreadPool(_AnyPool):
    """In the place of `multiprocessing.pool.ThreadPool`."""

    def _open_as(self, processes: Any = None, initializer: Any = None, initargs: Iterable[Any] = ()) -> None:
        self._open_pool("thread", processes, initializer, initargs)


# ---- executors ----


class _AnyExecutor(ComposableExecutor):
    """An executor that starts its workers at its first call, as those of the standard library do.

    Until then it is a description of itself in `_to_open`.
    """

    _check = staticmethod(id)  # which refuses nothing, as the standard library does
    _request: Request
    _is_shut = False  # before it had workers

    def _describe(self, choose_kind: Callable[[], Kind], max_workers: int | None, default: int, **options: Any) -> None:
        """Check the arguments, and keep them until the executor is opened.

        choose_kind: called then, when the program has defined and imported what its tasks need.
        """
        if max_workers is None:
            max_workers = default
        if max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        _check_number(max_workers)
        if options["initializer"] is not None and not callable(options["initializer"]):
            raise TypeError("initializer must be a callable")
        self._max_workers = max_workers
        self._opening = threading.RLock()  # reentrant, since a signal handler may submit a call
        self._choose_kind = choose_kind
        self._to_open = {"max_workers": max_workers, **options, **budget_options()}

    def __getattr__(self, name: str) -> Any:
        if name in ("_engine", "_keeper") and "_to_open" in self.__dict__:
            self._open()
            return self.__dict__[name]
        raise _lacks(self, name)

    def _open(self) -> None:
        with self._opening:
            if self._is_open():
                return
            if self._is_shut:
                raise PoolClosed("cannot schedule new futures after shutdown")
            if _is_at_end():
                raise PoolClosed("cannot schedule new futures after interpreter shutdown")
            kind = self._choose_kind()
            ComposableExecutor.__init__(self, kind=kind, **for_workers(kind, self._to_open))
            _note(self._request, kind, self._max_workers)

    def _is_open(self) -> bool:
        return "_keeper" in self.__dict__  # the last one that is set

    def _shut_unopened(self) -> bool:
        with self._opening:
            self._is_shut = not self._is_open()
            return self._is_shut

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if not self._shut_unopened():
            super().shutdown(wait, cancel_futures=cancel_futures)

    def _end_workers(self, kills: bool) -> None:
        if not self._shut_unopened():
            super()._end_workers(kills)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if not self._shut_unopened():
            super().__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        return super().__repr__() if self._is_open() else object.__repr__(self)


def _is_at_end() -> bool:
    """Whether the interpreter is ending and has joined its threads: the standard library's executors refuse calls."""
    flags = {"concurrent.futures.thread": "_shutdown", "concurrent.futures.process": "_global_shutdown"}
    return any(getattr(sys.modules.get(name), flag, False) for name, flag in flags.items())


class _ByItem:
    """Executors whose `map` ignores `chunksize`, as those of threads and interpreters do in the standard library."""

    def map(self, *args: Any, **kwargs: Any) -> Any:
        return super(ComposableExecutor, self).map(*args, **kwargs)  # type: ignore[misc]  # ours is mixed in


class _ThreadExecutor(_ByItem, _AnyExecutor):
    """In the place of `concurrent.futures.ThreadPoolExecutor`."""

    def _open_as(
        self,
        max_workers: Any = None,
        thread_name_prefix: str = "",
        initializer: Any = None,
        initargs: Iterable[Any] = (),
    ) -> None:
        # The threads may wait for each other, or for the network: never have fewer than the standard library.
        default = _default_of_threads()
        if self._request.part != "asyncio":
            default = named_or_set(None) or default
        self._describe(lambda: "thread", max_workers, default, initializer=initializer, initargs=initargs)
        prefix = thread_name_prefix or f"ThreadPoolExecutor-{type(self)._counter()}"  # type: ignore[attr-defined]
        naming = (itertools.count().__next__, prefix, initializer, arguments_of(initializer, initargs))
        self._to_open |= {"initializer": _name_thread, "initargs": naming}


def _name_thread(
    count: Callable[[], int], prefix: str, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]
) -> None:
    """Name a worker's thread as the standard library does, and run the initializer.

    Threads that its tasks start inherit that they are not daemons. So the program waits for them before it ends.
    """
    thread = threading.current_thread()
    thread.name = f"{prefix}_{count()}"
    thread._daemonic = False  # type: ignore[attr-defined]  # its setter refuses a thread that runs
    if initializer is not None:
        initializer(*initargs)


class _ProcessExecutor(_AnyExecutor):
    """In the place of `concurrent.futures.ProcessPoolExecutor`."""

    def _open_as(
        self,
        max_workers: Any = None,
        mp_context: Any = None,
        initializer: Any = None,
        initargs: Iterable[Any] = (),
        *,
        max_tasks_per_child: Any = None,
    ) -> None:
        _check_context(mp_context)
        if max_tasks_per_child is not None:
            mp_context = _check_max_tasks(max_tasks_per_child, mp_context)
        kind = _settings().kind
        self._describe(
            lambda: kinds.choose(mp_context, initializer, max_tasks_per_child) if kind == "auto" else kind,
            max_workers,
            named_or_set(None) or cpu_count(),
            initializer=initializer,
            initargs=initargs,
            context=mp_context,
            max_tasks_per_child=max_tasks_per_child,
        )


def _check_max_tasks(max_tasks: Any, context: Any) -> Any:
    """Return the context of an executor whose processes are replaced. Raises what the standard library raises."""
    from multiprocessing import get_context

    if not isinstance(max_tasks, int):
        raise TypeError("max_tasks_per_child must be an integer")
    if max_tasks <= 0:
        raise ValueError("max_tasks_per_child must be >= 1")
    context = context or get_context("spawn")
    if context.get_start_method(allow_none=False) == "fork":
        raise ValueError(
            "max_tasks_per_child is incompatible with the 'fork' multiprocessing start method;"
            " supply a different mp_context."
        )
    return context


class _InterpreterExecutor(_ByItem, _AnyExecutor):
    """In the place of `concurrent.futures.InterpreterPoolExecutor`."""

    def _open_as(
        self,
        max_workers: Any = None,
        thread_name_prefix: str = "",
        initializer: Any = None,
        initargs: Iterable[Any] = (),
    ) -> None:
        if isinstance(initializer, str):
            raise LeaveAlone("Its initializer is the text of a program.")
        default = named_or_set(None) or _default_of_threads()
        self._describe(lambda: "interp", max_workers, default, initializer=initializer, initargs=initargs)


def _default_of_threads() -> int:
    """Return how many threads an executor of the standard library has at most if the program names no number."""
    count: Callable[[], int | None] = getattr(os, "process_cpu_count", os.cpu_count)
    return min(32, (count() or 1) + 4)


def _lacks(pool: Any, name: str) -> AttributeError:
    """Make the error for an attribute that the object lacks, with advice if the standard library's class has it."""
    message = f"{type(pool).__name__!r} object has no attribute {name!r}"
    request: Request | None = pool.__dict__.get("_request")
    cls: type = type(pool)
    if request is not None and name in subclasses.private_names(cls):
        message += (
            f": it is private to the standard library, and pool_party has replaced this pool; "
            f"exclude the part {request.part!r} to leave such pools alone"
        )
    return AttributeError(message, name=name, obj=pool)


class _Home(NamedTuple):
    part: str
    name: str  # what programs call it
    ours: type


_HOMES = {
    "Pool": _Home("multiprocessing", "multiprocessing.Pool", _Pool),
    "ThreadPool": _Home("multiprocessing", "multiprocessing.pool.ThreadPool", _ThreadPool),
    "ThreadPoolExecutor": _Home("concurrent.futures", "concurrent.futures.ThreadPoolExecutor", _ThreadExecutor),
    "ProcessPoolExecutor": _Home("concurrent.futures", "concurrent.futures.ProcessPoolExecutor", _ProcessExecutor),
    "InterpreterPoolExecutor": _Home(
        "concurrent.futures", "concurrent.futures.InterpreterPoolExecutor", _InterpreterExecutor
    ),
}
for _name, _home in _HOMES.items():
    _home.ours._open_as.__qualname__ = f"{_name}.__init__"  # type: ignore[attr-defined]  # errors name it
