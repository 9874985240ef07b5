"""The interface of `multiprocessing.Pool`, for workers of every kind. Translation only: the engine does the work."""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from pool_party import _native
from pool_party._core.engine import RUN
from pool_party._core.results import AsyncResult, Callback, MapResult
from pool_party._options import open_engine, resolve_context
from pool_party.budget.plan import Limits
from pool_party.budget.policies import Scope
from pool_party.workers.base import Worker

if TYPE_CHECKING:
    import os

    from pool_party._core.statistics import Statistics
    from pool_party._core.streams import IMapIterator
    from pool_party.observe.trace import Tracing

WINDOW_PER_WORKER = 64  # tasks of an unsized imap input read ahead; guess: fills the channel's latency many times over


def _check_callable(func: object) -> None:
    if not callable(func):
        raise TypeError(f"{type(func).__name__!r} object is not callable: the first argument is the function to run")


class ComposablePool:
    """A pool of workers with the interface of `multiprocessing.Pool`.

    processes: number of workers; None: the CPUs that this process may use.
    initializer, initargs: called once in each worker, before its first task.
    maxtasksperchild: tasks (chunks of a map) after which a worker is replaced by a fresh one.
    context: a `multiprocessing` context or its name, which says how processes start; the other kinds ignore it.
    kind: "process" (alias "subprocess"), "thread", or "interp" (alias "subinterpreter").
    policy: how many threads BLAS and OpenMP libraries may use in tasks. "static": each worker has its part of the
        CPUs. "dynamic": CPUs of workers without work are lent to the others. "exclusive" and "counting": a
        parallel region may use all CPUs, one at a time or as many as fit. None: libraries are left as they are. Or an
        object with `shares(state)`, see `pool_party.budget.policies`.
    threads_per_worker: threads of each worker; None: its part of the CPUs, at least 1.
    oversubscription: how many threads there may be for each CPU.
    affinity: True keeps each worker on its own CPUs, False does not; None does if each has several.
    scope: "pool", or "machine": regions also wait for those of other programs of this user ("exclusive", "counting").
    extensions: names of packages whose extension modules do not support interpreters and are to be loaded there
        nevertheless, at your own risk, beside the tested ones (NumPy, SciPy, pandas, scikit-learn). (): not even those.
        kind="interp" only, CPython 3.14 or later.
    preload: names of modules that each worker imports when it starts, before its initializer, so that no task has to
        wait for that. Opening does not wait; threads import them once. One that fails breaks the pool.

    Safe to use from several threads. Leaving a `with` block terminates the pool, as in the standard library.

    Raises: ValueError, TypeError for bad arguments. Calls raise PoolClosed (a ValueError) after `close`, WorkerLost for
    the one task of a worker that died, InitializerFailed once no worker can be made.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        *,
        kind: str = "process",
        policy: Any = "static",
        threads_per_worker: int | None = None,
        oversubscription: float = 1.0,
        affinity: bool | None = None,
        scope: Scope = "pool",
        extensions: Iterable[str] | None = None,
        preload: Iterable[str] = (),
    ) -> None:
        self._context = context
        self._engine, self._keeper = open_engine(
            kind,
            processes,
            initializer,
            initargs,
            maxtasksperchild,
            context,
            extensions=extensions,
            preload=preload,
            policy=policy,
            threads_per_worker=threads_per_worker,
            oversubscription=oversubscription,
            affinity=affinity,
            scope=scope,
        )
        self._processes = self._engine.n_workers

    # ---- one call ----

    def apply(self, func: Callable[..., Any], args: Iterable[Any] = (), kwds: Mapping[str, Any] = {}) -> Any:
        """func(*args, **kwds) in a worker; waits for its result."""
        return self.apply_async(func, args, kwds).get()

    def apply_async(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] = {},
        callback: Callback = None,
        error_callback: Callback = None,
    ) -> AsyncResult:
        """Starts func(*args, **kwds) in a worker. Callbacks run before `get` returns."""
        engine = self._engine
        engine.check_running()
        _check_callable(func)
        result = AsyncResult(engine, callback, error_callback, owner=self)
        engine.submit_call(result, func, tuple(args), dict(kwds))
        return result

    # ---- many calls ----

    def map(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None = None) -> list[Any]:
        """[func(x) for x in iterable], in workers. The first failure is raised when all tasks have run."""
        result: list[Any] = self.map_async(func, iterable, chunksize).get()
        return result

    def map_async(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callback = None,
        error_callback: Callback = None,
    ) -> MapResult:
        """`map` without waiting. chunksize: items per task; None: a quarter of each worker's share."""
        return self._map(func, iterable, chunksize, callback, error_callback, star=False)

    def starmap(
        self, func: Callable[..., Any], iterable: Iterable[Iterable[Any]], chunksize: int | None = None
    ) -> list[Any]:
        """[func(*x) for x in iterable], in workers."""
        result: list[Any] = self.starmap_async(func, iterable, chunksize).get()
        return result

    def starmap_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callback = None,
        error_callback: Callback = None,
    ) -> MapResult:
        """`starmap` without waiting."""
        return self._map(func, iterable, chunksize, callback, error_callback, star=True)

    def _map(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None,
        callback: Callback,
        error_callback: Callback,
        star: bool,
    ) -> MapResult:
        self._engine.check_running()
        _check_callable(func)
        items = list(iterable)
        if chunksize is None:
            chunksize = max(1, -(-len(items) // (4 * self._processes)))
        elif chunksize < 1:
            raise ValueError(f"Chunksize must be 1+, not {chunksize}")
        if not items:
            callback = error_callback = None  # as in the standard library
        result = MapResult(
            self._engine, callback, error_callback, len(items), chunksize, _native.JOB_MAP, owner=self
        )
        self._engine.submit_map(result, func, items, star)
        return result

    # ---- iterators ----

    def imap(
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int = 1, buffersize: int | None = None
    ) -> "IMapIterator":
        """An iterator over func(x) for x in iterable, in order.

        buffersize: items that may be read ahead of the consumer. None: all of a sized input at once; of a generator as
        many as keep the workers busy. Its `next(timeout)` works with any chunksize.
        """
        return self._imap(func, iterable, chunksize, buffersize, ordered=True)

    def imap_unordered(
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int = 1, buffersize: int | None = None
    ) -> "IMapIterator":
        """`imap`, with results as they arrive."""
        return self._imap(func, iterable, chunksize, buffersize, ordered=False)

    def _imap(
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int, buffersize: int | None, ordered: bool
    ) -> "IMapIterator":
        from pool_party._core.streams import IMapIterator, StreamCall

        engine = self._engine
        engine.check_running()
        _check_callable(func)
        if chunksize < 1:
            raise ValueError(f"Chunksize must be 1+, not {chunksize}")
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError(f"buffersize must be an integer or None, not {buffersize!r}")
        if buffersize is not None and buffersize < 1:
            raise ValueError(f"buffersize must be None or 1+, not {buffersize}")
        if buffersize is None and hasattr(iterable, "__len__"):
            items = list(iterable)
            call = StreamCall(engine, len(items), chunksize, ordered)
            engine.submit_map(call, func, items, False)
        else:
            window = self._processes * WINDOW_PER_WORKER if buffersize is None else -(-buffersize // chunksize)
            call = StreamCall(engine, 0, chunksize, ordered, window)
            engine.submit_stream(call, func, iter(iterable))
        return IMapIterator(engine, call, self)

    # ---- the end ----

    def close(self) -> None:
        """No more calls; workers end when the last one is done."""
        self._engine.close()

    def terminate(self) -> None:
        """Stops the workers now; calls that are pending raise PoolTerminated."""
        self._engine.terminate()

    def join(self, timeout: float | None = None) -> None:
        """Waits for the workers' end, after `close` or `terminate`.

        Raises: ValueError if the pool was not closed; multiprocessing.TimeoutError after `timeout` seconds.
        """
        if self._engine.state == RUN:
            raise ValueError("Pool is still running")
        if not self._engine.join(timeout):
            from multiprocessing import TimeoutError

            raise TimeoutError(f"the workers have not ended within {timeout} s")

    def __enter__(self) -> Self:
        self._engine.check_running()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.terminate()

    def __del__(self) -> None:
        engine = self.__dict__.get("_engine")
        if engine is not None and engine.is_running and not sys.is_finalizing():  # it ends because its keeper goes
            warnings.warn(f"unclosed running pool_party pool {self!r}", ResourceWarning, source=self, stacklevel=2)

    # ---- looking ----

    def trace(self, path: "str | os.PathLike[str]", *, max_events: int = 100_000) -> "Tracing":
        """Records what each worker does from now on, as a timeline for Perfetto and chrome://tracing.

        The file is written at the end of a `with` block or by `stop()` of what is returned, at the latest when the pool
        ends. max_events: the newest so many are kept; the file says how many were dropped.

        Raises: OSError if the file can't be written; PoolPartyError if the pool is being traced already.
        """
        return self._engine.trace(path, max_events)

    def statistics(self) -> "Statistics":
        """The pool's counts at this moment."""
        return self._engine.statistics()

    @property
    def kind(self) -> str:
        """ "thread", "process" or "interp"."""
        return self._engine.kind

    @property
    def _pool(self) -> list[Worker]:
        """The living workers: programs read their `pid` and `is_alive`."""
        return self._engine.workers

    @property
    def _ctx(self) -> Any:
        """The `multiprocessing` context; programs ask it for the start method."""
        return resolve_context(self._context)

    @property
    def _state(self) -> str:
        return self._engine.state

    def __repr__(self) -> str:
        s = self.statistics()
        return (
            f"<{type(self).__name__} kind={s.kind} state={self._state} workers={s.n_workers} "
            f"pending={s.n_pending} completed={s.n_completed}>"
        )

    def __reduce__(self) -> Any:
        raise NotImplementedError("pool objects cannot be passed between processes or pickled")


class ThreadPool(ComposablePool):
    """A ComposablePool of threads."""

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        *,
        preload: Iterable[str] = (),
        **limits: Unpack[Limits],
    ) -> None:
        super().__init__(processes, initializer, initargs, kind="thread", preload=preload, **limits)


class ProcessPool(ComposablePool):
    """A ComposablePool of processes."""

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        *,
        preload: Iterable[str] = (),
        **limits: Unpack[Limits],
    ) -> None:
        super().__init__(
            processes, initializer, initargs, maxtasksperchild, context, kind="process", preload=preload, **limits
        )


class InterpreterPool(ComposablePool):
    """A ComposablePool of interpreters, each with its own GIL."""

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        *,
        extensions: Iterable[str] | None = None,
        preload: Iterable[str] = (),
        **limits: Unpack[Limits],
    ) -> None:
        super().__init__(
            processes,
            initializer,
            initargs,
            maxtasksperchild,
            kind="interp",
            extensions=extensions,
            preload=preload,
            **limits,
        )
