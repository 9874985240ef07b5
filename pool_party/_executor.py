"""The interface of `concurrent.futures`, for workers of every kind. It only translates: the engine does the work."""

from __future__ import annotations

import functools
import itertools
import logging
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from time import monotonic

from pool_party._config import PoolConfig, explained, open_engine
from pool_party._core import functions
from pool_party._core.deferring import Deferrable
from pool_party._core.engine import RUN
from pool_party._core.following import FollowedFutures, count_calls, open_watch
from pool_party._core.futures import FutureCall, PoolFuture
from pool_party._ground.quoting import call_each_star
from pool_party._ground.records import overload, tell_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from contextvars import ContextVar
    from types import TracebackType
    from typing import Any, Self, Unpack

    from pool_party._budget.policies import Policy
    from pool_party._core.awaiting import Opening
    from pool_party._core.options import CallOptions, MapOptions, Options
    from pool_party._core.statistics import Statistics
    from pool_party._ground.choices import Kind, Output, PolicyName, Scope
    from pool_party._observe.progress import Progress
    from pool_party._observe.trace import Tracing

_log = logging.getLogger("concurrent.futures")


class ComposableExecutor(Deferrable, Executor):
    """A `concurrent.futures.Executor` of workers of any kind.

    Args:
        max_workers: The number of workers. None: one for each CPU that this process may use; see `cpu_count`. With
            kind="dask" it is the number on each machine, and None stands for the threads of its Dask worker. With
            kind="mpi" it is the number in each rank, and None stands for the rank's part of the CPUs of its machine.
        initializer: A function that each worker calls once, before its first task.
        initargs: The arguments of `initializer`.
        kind: "process" (alias "subprocess"), "thread", "interp" (alias "subinterpreter"), or workers on other machines:
            "dask", those of a Dask cluster, or "mpi", in the ranks of an MPI program.
        context: A `multiprocessing` context, or its name. Other kinds than "process" ignore it. None: Python's default.
            With kind="thread", True or False: whether tasks have the caller's context variables; see `ComposablePool`.
        max_tasks_per_child: The number of tasks after which a fresh worker replaces a worker. None: never.
        policy: The rule for how many threads BLAS and OpenMP libraries may use in tasks; see `ComposablePool`.
        threads_per_worker: The number of threads of each worker. None: its part of the CPUs, at least 1.
        oversubscription: The number of threads for each CPU, which need not be whole.
        affinity: True keeps each worker on its own CPUs, and False does not. None does so if each has several.
        scope: "pool" or "machine"; see `ComposablePool`.
        extensions: Names of packages that are loaded although they do not support interpreters; see `ComposablePool`.
        preload: Names of modules that each worker imports when it starts, before its initializer.
        log: Whether what workers log reaches this process's handlers; see `ComposablePool`.
        output: "relay": this process writes what workers print; see `ComposablePool`.
        propagate: Context variables whose values at a call its tasks have, too; see `ComposablePool`.
        quote_items: Whether messages about a failed task quote its arguments, each cut to some characters. False, as
            for data that must not reach logs: they name the function and the number of the item alone.
        memory_per_worker: The memory that a worker process needs, in bytes or as a text such as "2 GiB". It bounds
            the number of workers; see `ComposablePool`.
        worker_memory_limit: The memory that a worker process may have, in bytes or as a text; see `ComposablePool`.
        address: With kind="dask": where the scheduler is; see `ComposablePool`.
        client: With kind="dask": the program's own `distributed.Client`; with kind="mpi": an executor on its ranks.
        worker_kind: With kind="dask" and "mpi": the kind of the workers on each machine. None: "process".
        insecure: With kind="dask": whether connections to other machines are used that are not encrypted.

    Raises:
        ValueError: An argument is out of its range, or contradicts another.
        TypeError: An argument has a wrong type.
        PoolClosed: By `submit`, after `shutdown`. It is a RuntimeError, too.
        WorkerLost: By the future whose worker died. The others go on.
        InitializerFailed: By all futures, once no worker can be made.
        ClusterLost: By all futures, with kind="dask", once the scheduler does not answer any more.
        PoolPartyError: By all calls in a forked child, since the executor belongs to its parent.

    Guarantees:
        All methods may be called from any thread, and from signal handlers. Opening waits neither for initializers
        nor for modules of `preload`. A task runs at most once, unless `options(retries=)` says otherwise. Leaving a
        `with` block waits for all calls that were submitted, and so does the end of the program. If the block is left
        by KeyboardInterrupt, as Ctrl-C raises it, no further call begins, and those that run are interrupted in their
        Python code, by KeyboardInterrupt in processes and SystemExit in the other kinds. A process that has not ended a
        second later is terminated. Their futures raise PoolTerminated, or the KeyboardInterrupt of their task.
    """

    _options: Options | None = None
    _check: Callable[[Any], object] = staticmethod(functions.check_runs)  # of each call's function
    _viewed: ComposableExecutor | None = None  # the executor of which this is a view with options

    @explained
    def __init__(
        self,
        max_workers: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        *,
        kind: Kind = "process",
        context: Any = None,
        max_tasks_per_child: int | None = None,
        policy: Policy | PolicyName | None = "dynamic",
        threads_per_worker: int | None = None,
        oversubscription: float = 1.0,
        affinity: bool | None = None,
        scope: Scope = "pool",
        extensions: Iterable[str] | None = None,
        preload: Iterable[str] = (),
        log: bool = False,
        output: Output | None = None,
        propagate: Iterable[ContextVar[Any] | str] = (),
        quote_items: bool = True,
        memory_per_worker: int | str | None = None,
        worker_memory_limit: int | str | None = None,
        address: Any = None,
        client: Any = None,
        worker_kind: Kind | None = None,
        insecure: bool = False,
    ) -> None:
        if max_workers is not None and max_workers < 1:
            raise ValueError("max_workers must be greater than 0")
        config = PoolConfig(
            kind=kind,
            processes=max_workers,
            initializer=initializer,
            initargs=initargs,
            maxtasksperchild=max_tasks_per_child,
            context=context,
            policy=policy,
            threads_per_worker=threads_per_worker,
            oversubscription=oversubscription,
            affinity=affinity,
            scope=scope,
            extensions=extensions,
            preload=preload,
            log=log,
            output=output,
            propagate=propagate,
            quote_items=quote_items,
            memory_per_worker=memory_per_worker,
            worker_memory_limit=worker_memory_limit,
            address=address,
            client=client,
            worker_kind=worker_kind,
            insecure=insecure,
        )
        self._open_with(kind, lambda: self._open_engine(config))

    def _open_engine(self, config: PoolConfig) -> None:
        self._engine, self._keeper = open_engine(config, _open_pool, _log_broken)
        self._engine.drains_at_exit = True
        self._max_workers = self._engine.n_workers
        if self._engine.kind == "thread" and type(self) is ComposableExecutor and "asyncio" in sys.modules:
            self.__class__ = _class_for_asyncio()

    def options(self, **options: Unpack[CallOptions]) -> Self:
        """Return a view of this executor whose calls have options: `executor.options(timeout_s=5).submit(f, x)`.

        It does not block. `submit` takes no options, since it passes its keywords to the function, but `map` does, for
        one call: `executor.map(f, xs, timeout_s=5)`. With `timeout_s` or `retries`, `map` takes no other chunk size
        than 1. `deadline_s` is for each task of `map`.

        Args:
            **options: `timeout_s`, `deadline_s`, `retries`, `retry_on`, `errors`, `on_cancel` and `context`; see
                `ComposablePool.options`.

        Returns:
            A view, which has all methods of the executor, and keeps it alive.

        Raises:
            TypeError: An option has a wrong type, or is unknown.
            ValueError: An option is out of its range, `on_cancel="kill"` is used for another kind than "process", or
                `context=True` for another one than "thread".
        """
        from pool_party._core.options import changed

        return self._with(changed(self._options, options, self._engine.kind))

    def _with(self, options: Options | None) -> Self:
        if options is None:
            return self
        from pool_party._core.options import view_of

        return view_of(self, options)

    def submit[**P, R](self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> PoolFuture[R]:
        """Start `fn(*args, **kwargs)` in a worker. Does not block, except to pickle the arguments.

        Args:
            fn: The function.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            A `PoolFuture`.

        Raises:
            PoolClosed: The executor was shut down.
            TypeError: `fn` is a coroutine function.
        """
        self._check(fn)  # that it cannot be called is its outcome, as in other executors
        return self._submit(FutureCall(self._engine), fn, args, kwargs)

    def _submit(
        self, call: FutureCall, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PoolFuture[Any]:
        if self._engine.state != RUN:
            from pool_party._ground.errors import PoolClosed

            raise PoolClosed("cannot schedule new futures after shutdown")
        future = call.future
        self._engine.submit_call(call, fn, args, kwargs, self._options)
        return future

    def _submit_chunk(self, fn: Callable[..., Any], first: int, chunk: list[tuple[Any, ...]]) -> PoolFuture[Any]:
        """Submit a part of a map. first: the number of its first item."""
        call = FutureCall(self._engine)
        call.called, call.first, call.size = fn, first, len(chunk)
        return self._submit(call, call_each_star, (fn, chunk), {})

    @overload  # type: ignore[override]  # that of the standard library takes any function for any iterables
    def map[A, R](self, fn: Callable[[A], R], a: Iterable[A], /, **options: Unpack[MapOptions]) -> Iterator[R]: ...

    @overload
    def map[A, B, R](
        self, fn: Callable[[A, B], R], a: Iterable[A], b: Iterable[B], /, **options: Unpack[MapOptions]
    ) -> Iterator[R]: ...

    @overload
    def map[R](
        self,
        fn: Callable[..., R],
        a: Iterable[Any],
        b: Iterable[Any],
        c: Iterable[Any],
        /,
        *iterables: Iterable[Any],
        **options: Unpack[MapOptions],
    ) -> Iterator[R]: ...

    def map[R](
        self,
        fn: Callable[..., R],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        progress: Progress = None,
        **options: Unpack[CallOptions],
    ) -> Iterator[R]:
        """Iterate over `fn(*x) for x in zip(*iterables)`, in order. Does not block; the iterator does.

        Args:
            fn: The function.
            *iterables: The arguments: one iterable for each parameter.
            timeout: The seconds from this call after which the iterator raises TimeoutError. None: no limit.
            chunksize: The number of items in each task.
            buffersize: The number of tasks that may be submitted ahead of the consumer. None: all.
            progress: What shows how far the call is: True for a bar, or what docs/howto/progress.md lists.
            **options: Options of this call; see `options`.

        Returns:
            An iterator over the results.

        Raises:
            PoolClosed: The executor was shut down.
            ValueError: `chunksize` or `buffersize` is less than 1.
            TypeError: `fn` is a coroutine function, `buffersize` is no integer, or `progress` is of another type.
            TimeoutError: By the iterator, after `timeout` seconds.
            Exception: By the iterator: whatever `fn` raised.
        """
        if options:
            return self.options(**options).map(
                fn, *iterables, timeout=timeout, chunksize=chunksize, buffersize=buffersize, progress=progress
            )
        self._check(fn)
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError("buffersize must be an integer or None")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        watch = open_watch(progress)
        if self._options is not None:
            self._options.check_chunk(chunksize)
        deadline = None if timeout is None else monotonic() + timeout
        calls = zip(*iterables, strict=False)
        chunks = zip(itertools.count(0, chunksize), iter(lambda: list(itertools.islice(calls, chunksize)), []))
        futures = deque(self._submit_chunk(fn, *chunk) for chunk in itertools.islice(chunks, buffersize))
        owner = weakref.ref(self._viewed or self)
        if watch is None:
            return _in_order(owner, self._options, fn, chunks, futures, deadline, None)
        followed = FollowedFutures(watch, count_calls(iterables), futures, chunksize, self._engine)
        results = _in_order(owner, self._options, fn, chunks, futures, deadline, followed)
        followed.stop_with(results)
        return results

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further calls. If `wait` is true, blocks until all calls that were submitted are done.

        Args:
            wait: Whether to wait for these calls, and for the workers' end.
            cancel_futures: Whether to cancel the calls that no worker has begun.

        Raises:
            CannotWait: With `wait`, if the end of the executor needs the calling thread, which runs a task of it, for
                example. It is a RuntimeError, too, and the executor is shut down nevertheless.
            PoolPartyError: With `wait`, in a forked child, since the executor belongs to its parent.
        """
        if cancel_futures:
            for call in self._engine.calls():
                if isinstance(call, FutureCall):
                    call.cancel()
        self._engine.close()
        if wait:
            self._engine.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None or not issubclass(kind, KeyboardInterrupt):
                self.shutdown(wait=True)
                return
        except KeyboardInterrupt:  # while it waited
            self._engine.interrupt()
            raise
        self._engine.interrupt()

    def terminate_workers(self) -> None:
        """Accept no more calls, and stop the workers in the middle of theirs. Does not block, and never raises.

        Calls that no worker has begun are cancelled, and the others raise WorkerLost. Processes with a task get
        SIGTERM, and those without one end by themselves; SIGKILL follows after 3 seconds. In threads and interpreters
        SystemExit is raised in the Python code of the task. `shutdown` waits for the end of the workers. In a forked
        child this does nothing.
        """
        self._end_workers(kills=False)

    def kill_workers(self) -> None:
        """Do what `terminate_workers` does, but with SIGKILL at once. Does not block, and never raises."""
        self._end_workers(kills=True)

    def _end_workers(self, kills: bool) -> None:
        self.shutdown(wait=False, cancel_futures=True)
        self._engine.end_workers(kills)

    # ---- asyncio ----

    @classmethod
    def aopen(cls, *args: Any, **kwargs: Any) -> Opening[Self]:
        """Open an executor without blocking asyncio's event loop: `async with ComposableExecutor.aopen(4) as executor`.

        Args:
            *args: The arguments of the class.
            **kwargs: Its keyword arguments.

        Returns:
            An object to await for the executor, or to use in `async with`, which ends as `async with executor` does.

        Raises:
            Exception: When the object is awaited: whatever the class raises.
        """
        from pool_party._core.awaiting import Opening

        return Opening(lambda: cls(*args, **kwargs), lambda executor: executor._engine.terminate())

    async def ashutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do what `shutdown` does. Does not block the event loop.

        Args:
            wait: Whether to wait for the calls. If the wait is cancelled, the calls continue.
            cancel_futures: Whether to cancel the calls that no worker has begun.

        Raises:
            CannotWait: As `shutdown`.
            PoolPartyError: With `wait`, in a forked child, since the executor belongs to its parent.
        """
        from pool_party._core.awaiting import in_thread

        self.shutdown(wait=False, cancel_futures=cancel_futures)
        if wait:
            self._engine.check_may_wait()
            await in_thread(self.shutdown)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.ashutdown()

    def trace(self, path: str | os.PathLike[str], *, max_events: int = 100_000) -> Tracing:
        """Record what each worker does from now on; see `ComposablePool.trace`. Does not block.

        Args:
            path: The file.
            max_events: The number of events that are kept. The oldest are dropped.

        Returns:
            A `Tracing`, which is a context manager.

        Raises:
            OSError: The file cannot be written.
            PoolPartyError: The executor is being traced already, or does not run any more.
        """
        return self._engine.trace(path, max_events)

    def statistics(self) -> Statistics:
        """Return the executor's counts at this moment. Does not block, and never raises.

        Returns:
            A `Statistics`. In a forked child it has the counts of the moment of the fork.
        """
        return self._engine.statistics()

    def __repr__(self) -> str:
        s = self.statistics()
        return (
            f"<{type(self).__name__} kind={s.kind} state={self._engine.state} workers={s.n_workers} "
            f"pending={s.n_pending} completed={s.n_completed}>"
        )


def _in_order(
    executor: weakref.ref[ComposableExecutor],
    options: Options | None,
    fn: Callable[..., Any],
    chunks: Iterator[tuple[int, list[Any]]],
    futures: deque[PoolFuture[Any]],
    deadline: float | None,
    followed: FollowedFutures | None,
) -> Iterator[Any]:
    """Yield results in order. Each result that is taken lets one more task be submitted."""
    try:
        while futures:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            results = futures[0].result(left)
            if isinstance(results, BaseException):  # with errors="return"
                results = [results]
            futures.popleft()
            if followed is not None:
                followed.n_taken += len(results)
            owner, chunk = executor(), next(chunks, None)
            if owner is not None and chunk is not None:
                futures.append(owner._with(options)._submit_chunk(fn, *chunk))
            del owner
            results.reverse()
            while results:
                yield results.pop()
    except GeneratorExit:
        if followed is not None:
            followed.stop()
        raise
    finally:
        is_complete = not futures
        while futures:
            futures.pop().cancel()
        if followed is not None:
            followed.finish(is_complete)


def _open_pool(**options: Any) -> Any:
    """Make the pool of another machine that runs what an executor of this one is given."""
    from pool_party._pool import ComposablePool

    return ComposablePool(**options)


def _log_broken(cause: BaseException) -> None:
    _log.critical("Exception in initializer:", exc_info=cause)


@functools.cache
def _class_for_asyncio() -> type[ComposableExecutor]:
    """Return the class of executors of threads, which asyncio accepts as the default executor of a loop.

    It accepts only instances of the standard library's class, and then calls public methods, which are all ours.
    """
    from concurrent.futures import ThreadPoolExecutor

    class Threads(ComposableExecutor, ThreadPoolExecutor):
        __slots__ = ()

    Threads.__module__ = ComposableExecutor.__module__
    Threads.__name__, Threads.__qualname__, Threads.__doc__ = (
        ComposableExecutor.__name__,
        ComposableExecutor.__qualname__,
        ComposableExecutor.__doc__,
    )
    return Threads


tell_names(globals())
