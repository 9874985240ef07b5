"""The interface of `multiprocessing.Pool`, for workers of every kind. It only translates: the engine does the work."""

from __future__ import annotations

import sys
from _warnings import warn  # importing warnings takes longer, and is done when there is one
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from itertools import islice

from pool_party import _native
from pool_party._config import PoolConfig, PoolOptions, explained, open_engine, resolve_context
from pool_party._core import functions
from pool_party._core.deferring import Deferrable
from pool_party._core.engine import RUN
from pool_party._core.following import follow_stream, get, open_watch
from pool_party._core.inputs import AHEAD_BYTES, AHEAD_PER_WORKER, length_of, take
from pool_party._core.results import AsyncResult, Callback, CollectingResult, MapResult
from pool_party._ground.records import tell_names
from pool_party._workers.base import WorkerHandle

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from contextvars import ContextVar
    from types import TracebackType
    from typing import Any, Self, Unpack

    from pool_party._budget.policies import Policy
    from pool_party._core.awaiting import Opening
    from pool_party._core.futures import PoolFuture
    from pool_party._core.options import CallOptions, Options, TaskOptions
    from pool_party._core.statistics import Statistics
    from pool_party._core.streams import IMapIterator
    from pool_party._ground.choices import Kind, OnCancel, Output, PolicyName, Scope
    from pool_party._observe.progress import Progress
    from pool_party._observe.trace import Tracing

MAX_STREAM = 1 << 24  # tasks of an imap over a range; a longer one may stand for an endless input: it is read in parts


class ComposablePool(Deferrable):
    """A pool of workers with the interface of `multiprocessing.Pool`.

    Args:
        processes: The number of workers. None: one for each CPU that this process may use; see `cpu_count`. With
            kind="dask" it is the number on each machine, and None stands for the threads of its Dask worker. With
            kind="mpi" it is the number in each rank, and None stands for the rank's part of the CPUs of its machine.
        initializer: A function that each worker calls once, before its first task.
        initargs: The arguments of `initializer`.
        maxtasksperchild: The number of tasks after which a fresh worker replaces a worker. A chunk of a map is one
            task. None: never.
        context: A `multiprocessing` context, or its name: "fork", "forkserver" or "spawn". It determines how processes
            start, and other kinds ignore it. None: Python's default. With kind="thread" it may be True: each task runs
            in a copy of the caller's context variables; or False: it does not. None does as `threading.Thread` does,
            which inherits them on free-threaded builds of Python 3.14 and later.
        kind: "process" (alias "subprocess"), "thread", "interp" (alias "subinterpreter"), or workers on other machines:
            "dask", those of a Dask cluster, or "mpi", in the ranks of an MPI program.
        policy: The rule for how many threads BLAS and OpenMP libraries may use in tasks. "dynamic": each worker has its
            part of the CPUs, and those of workers without a task are lent to the others. "static": none are lent. For
            worker processes only: "exclusive": a parallel region may use all CPUs, and only one runs at a time.
            "counting": as many regions run at a time as fit on the CPUs. None: libraries are left as they are. An
            object with a method `shares(state)` is a rule of your own; see `Policy`.
        threads_per_worker: The number of threads of each worker, which is fixed then. None: its part of the CPUs, at
            least 1.
        oversubscription: The number of threads for each CPU, which need not be whole.
        affinity: True keeps each worker on its own CPUs, so that those of threads and interpreters are not lent. False
            does not. None does so if each has several and none are lent, except with `scope="machine"`; processes are
            kept on theirs and on what is lent to them.
        scope: "machine": this pool shares the CPUs with those of all programs of this user that say so. Under
            "exclusive" and "counting" their parallel regions wait for each other. Under other policies the threads of
            the machine are divided evenly among the programs that have work, however many workers each has. "pool":
            this pool shares them with those of its own program only.
        extensions: Names of packages whose extension modules do not support interpreters, and which are nevertheless
            loaded there, at your own risk. NumPy, SciPy, pandas, scikit-learn and others that are known to work
            (docs/packages.md) are loaded without being named, unless this is an empty tuple. It is for kind="interp" on
            CPython 3.14 or later only.
        preload: Names of modules that each worker imports when it starts, before its initializer. Threads import them
            once. A module that cannot be imported breaks the pool.
        log: Whether what workers log reaches this process's handlers, with the attributes `worker`, `task`,
            `task_number` and `call` on each record.
        output: "relay": this process writes what worker processes and interpreters write to `sys.stdout` and
            `sys.stderr` to its own, line by line. None: each worker writes to its own.
        propagate: Context variables whose values at a call its tasks have, too, as objects or as names "module:name".
            Their values must pickle, except in threads.
        quote_items: Whether messages about a failed task quote its arguments, each cut to some characters. False, as
            for data that must not reach logs: they name the function and the number of the item alone.
        memory_per_worker: The memory that a worker process needs, in bytes or as a text such as "2 GiB". There are at
            most as many workers as fit into the memory of the machine, or of the control group if that has less, but at
            least 1.
        worker_memory_limit: The memory that a worker process may have, in bytes or as a text. One that has more after
            a task is replaced. One that has more during a task is killed, and the task raises WorkerLost. It is
            for kind="process" only, as is `memory_per_worker`.
        address: With kind="dask": the scheduler's address such as "tls://host:8786", the path of a scheduler file, or a
            cluster object, as of `dask-jobqueue`. None: that of `client`, or of Dask's configuration. If there is none,
            tasks run as with `worker_kind` on this machine, so that the program can be tried without a cluster.
        client: With kind="dask": the program's own `distributed.Client`, which the pool leaves open. With kind="mpi":
            the executor of `mpi4py.futures.MPICommExecutor`. None: the ranks that wait in `python -m mpi4py.futures`.
        worker_kind: With kind="dask" and "mpi": the kind of the workers on each machine. None: "process".
        insecure: With kind="dask": whether connections to other machines are used that are not encrypted.

    Raises:
        ValueError: An argument is out of its range, or contradicts another.
        TypeError: An argument has a wrong type.
        PoolClosed: By calls, after `close`. It is a ValueError, too.
        WorkerLost: By the call whose worker died. Other tasks go on.
        InitializerFailed: By all calls, once no worker can be made.
        ClusterLost: By all calls, with kind="dask", once the scheduler does not answer any more.
        PoolPartyError: By all calls in a forked child, since the pool belongs to its parent.

    Guarantees:
        All methods may be called from any thread, and from signal handlers. Opening waits neither for initializers nor
        for modules of `preload`. A task runs at most once, unless `options(retries=)` says otherwise. Leaving a `with`
        block terminates the pool, as in the standard library. So do the end of the program and the end of the last
        reference to the pool.
    """

    _sends_by_value = False  # whether workers have nothing of the program's `__main__`; see `codec.dumps_current`
    _options: Options | None = None
    _check: Callable[[Any], object] = staticmethod(functions.check)  # of each call's function
    _viewed: ComposablePool | None = None  # the pool of which this is a view with options

    @explained
    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        *,
        kind: Kind = "process",
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
        self._context = context
        config = PoolConfig(
            kind=kind,
            processes=processes,
            initializer=initializer,
            initargs=initargs,
            maxtasksperchild=maxtasksperchild,
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
        self._engine, self._keeper = open_engine(config, ComposablePool, by_value=self._sends_by_value)
        self._processes = self._max_workers = self._engine.n_workers  # the latter as in executors: Dask reads it

    # ---- options ----

    def options(self, **options: Unpack[CallOptions]) -> Self:
        """Return a view of this pool whose calls have options: `pool.options(timeout_s=5).map(f, xs)`. Does not block.

        The methods take the same keywords for one call: `pool.map(f, xs, timeout_s=5)`. Only `submit` does not, since
        it passes its keywords to the function.

        The view has all methods of the pool and is cheap to make, and never changes. Its own `options` returns a view
        with these and the further ones. An item of `map`, `starmap` or `imap` counts as a task of its own: with
        `timeout_s`, `retries` or `errors` the chunk size is 1.

        Args:
            **options: `timeout_s`: a task raises TaskTimeout when it has run for so many seconds. The time that it
                waits for a worker does not count. `deadline_s`: a call raises TaskTimeout so many seconds after it was
                submitted, whether its tasks wait or run; for `imap`, what has no outcome by then is replaced by one
                TaskTimeout. `retries`: how often a task that fails is run again. `retry_on`: the exception class for
                which this is done, or a tuple of classes; None, the default, stands for WorkerLost. The last error has
                the earlier ones as notes. `errors`: "return": what a task raises, or its WorkerLost or TaskTimeout,
                takes the place of its result, so that those of the other items are not lost; "raise", the default:
                the call raises the first. Type checkers do not know that the results of "return" may be exceptions,
                unless you say so: `sizes: list[int | BaseException] = pool.map(...)`. `on_cancel`: "abandon", "wait" or
                "kill"; see `AsyncResult.cancel` and `AsyncResult.outcome`. `context`: True, in threads only: tasks run
                in a copy of the caller's context; False: they have none of the caller's context variables; None: what
                the pool does.

        Returns:
            A view, which keeps the pool alive.

        Raises:
            TypeError: An option has a wrong type, or is unknown.
            ValueError: An option is out of its range, `on_cancel="kill"` is used for another kind than "process", or
                `context=True` for another one than "thread".

        Guarantees:
            A task whose time is up raises TaskTimeout at that time. Its process gets SIGTERM, and SIGKILL a second
            later, and is replaced. In a thread or an interpreter SystemExit is raised in the task's Python code; a C
            function continues, and its worker is busy for as long: `statistics().n_overdue` counts such tasks. Other
            tasks are not affected. Each task has one outcome, however often it is tried.
        """
        from pool_party._core.options import changed, view_of

        return view_of(self, changed(self._options, options, self._engine.kind))

    # ---- one call ----

    def apply[R](
        self,
        func: Callable[..., R],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] = {},
        **options: Unpack[CallOptions],
    ) -> R:
        """Run `func(*args, **kwds)` in a worker, and return its result. Blocks until then.

        Args:
            func: The function.
            args: Its positional arguments.
            kwds: Its keyword arguments.
            **options: Options of this call; see `options`.

        Returns:
            What `func` returned.

        Raises:
            PoolClosed: The pool was closed.
            TypeError: `func` cannot be called, or is a coroutine function.
            WorkerLost: The worker died.
            Exception: Whatever `func` raised, with the worker's traceback as its cause.
        """
        if options:
            return self.options(**options).apply(func, args, kwds)
        return get(self.apply_async(func, args, kwds))

    def apply_async[R](
        self,
        func: Callable[..., R],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] = {},
        callback: Callback[R] = None,
        error_callback: Callback[BaseException] = None,
        **options: Unpack[CallOptions],
    ) -> AsyncResult[R]:
        """Start `func(*args, **kwds)` in a worker. Does not block, except to pickle the arguments.

        Args:
            func: The function.
            args: Its positional arguments.
            kwds: Its keyword arguments.
            callback: A function that is called with the result, in a thread of the pool's own, before `get` returns.
            error_callback: A function that is called instead, with the exception, if there is one.
            **options: Options of this call; see `options`.

        Returns:
            An `AsyncResult`.

        Raises:
            PoolClosed: The pool was closed.
            TypeError: `func` cannot be called, or is a coroutine function.
        """
        if options:
            return self.options(**options).apply_async(func, args, kwds, callback, error_callback)
        self._check(func)
        engine = self._engine
        result: AsyncResult[R] = AsyncResult(engine, self, callback, error_callback)
        engine.submit_call(result, func, tuple(args), dict(kwds), self._options)
        return result

    def submit[**P, R](self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> PoolFuture[R]:
        """Start `fn(*args, **kwargs)` in a worker, as executors do. Does not block, except to pickle the arguments.

        It is for libraries that expect an executor, such as Dask: `dask.config.set(pool=pool)`.

        Args:
            fn: The function.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            A `PoolFuture`, which is a `concurrent.futures.Future`.

        Raises:
            PoolClosed: The pool was closed.
            TypeError: `fn` cannot be called, or is a coroutine function.
        """
        from pool_party._core.futures import FutureCall

        self._check(fn)
        call = FutureCall(self._engine)
        future: PoolFuture[R] = call.future
        call.owner = self
        self._engine.submit_call(call, fn, args, kwargs, self._options)
        return future

    # ---- many calls ----

    def map[T, R](
        self,
        func: Callable[[T], R],
        iterable: Iterable[T],
        chunksize: int | None = None,
        *,
        progress: Progress = None,
        **options: Unpack[CallOptions],
    ) -> list[R]:
        """Return `[func(x) for x in iterable]`, computed in workers. Blocks until all tasks have run.

        Args:
            func: A function of one argument.
            iterable: The arguments, one for each call. One without a length is read completely before the first task
                starts. A data set or another sequence that is not in memory is read while tasks run, up to its length.
                If reading it fails, the call raises that once all tasks that were submitted have run.
            chunksize: The number of items in each task. None: a number that gives each worker about four tasks.
            progress: What shows how far the call is: True for a bar, or what docs/howto/progress.md lists.
            **options: Options of this call; see `options`.

        Returns:
            The results, in the order of `iterable`.

        Raises:
            PoolClosed: The pool was closed.
            ValueError: `chunksize` is less than 1.
            TypeError: `func` cannot be called, or is a coroutine function, or `progress` is of another type.
            WorkerLost: A worker died.
            Exception: The first failure that arrived, once all tasks have run.
        """
        if options:
            return self.options(**options).map(func, iterable, chunksize, progress=progress)
        watch = open_watch(progress)
        return get(self.map_async(func, iterable, chunksize), watch)

    def map_async[T, R](
        self,
        func: Callable[[T], R],
        iterable: Iterable[T],
        chunksize: int | None = None,
        callback: Callback[list[R]] = None,
        error_callback: Callback[BaseException] = None,
        **options: Unpack[CallOptions],
    ) -> MapResult[R]:
        """Start `map`. Does not block, except to read the input and to pickle it.

        Args:
            func: A function of one argument.
            iterable: The arguments, one for each call. One without a length is read completely before the first task
                starts. A data set or another sequence that is not in memory is read while tasks run, up to its length.
                If reading it fails, the call raises that once all tasks that were submitted have run.
            chunksize: The number of items in each task. None: a number that gives each worker about four tasks.
            callback: A function that is called with the list of results, in a thread of the pool's own, before `get`
                returns.
            error_callback: A function that is called instead, with the first failure, if there is one.
            **options: Options of this call; see `options`.

        Returns:
            A `MapResult`.

        Raises:
            PoolClosed: The pool was closed.
            ValueError: `chunksize` is less than 1.
            TypeError: `func` cannot be called, or is a coroutine function.
        """
        if options:
            return self.options(**options).map_async(func, iterable, chunksize, callback, error_callback)
        return self._map(func, iterable, chunksize, callback, error_callback, star=False)

    def starmap[*Ts, R](
        self,
        func: Callable[[*Ts], R],
        iterable: Iterable[tuple[*Ts]] | Iterable[list[Any]],
        chunksize: int | None = None,
        *,
        progress: Progress = None,
        **options: Unpack[CallOptions],
    ) -> list[R]:
        """Return `[func(*x) for x in iterable]`, computed in workers. Blocks until all tasks have run.

        Args:
            func: The function.
            iterable: Tuples of arguments, one for each call. It is read as by `map`.
            chunksize: The number of items in each task. None: a number that gives each worker about four tasks.
            progress: What shows how far the call is: True for a bar, or what docs/howto/progress.md lists.
            **options: Options of this call; see `options`.

        Returns:
            The results, in the order of `iterable`.

        Raises:
            PoolClosed: The pool was closed.
            ValueError: `chunksize` is less than 1.
            TypeError: `func` cannot be called, or is a coroutine function, or `progress` is of another type.
            WorkerLost: A worker died.
            Exception: The first failure that arrived, once all tasks have run.
        """
        if options:
            return self.options(**options).starmap(func, iterable, chunksize, progress=progress)
        watch = open_watch(progress)
        return get(self.starmap_async(func, iterable, chunksize), watch)

    def starmap_async[*Ts, R](
        self,
        func: Callable[[*Ts], R],
        iterable: Iterable[tuple[*Ts]] | Iterable[list[Any]],
        chunksize: int | None = None,
        callback: Callback[list[R]] = None,
        error_callback: Callback[BaseException] = None,
        **options: Unpack[CallOptions],
    ) -> MapResult[R]:
        """Start `starmap`. Does not block, except to read the input and to pickle it.

        Args:
            func: The function.
            iterable: Tuples of arguments, one for each call. It is read as by `map`.
            chunksize: The number of items in each task. None: a number that gives each worker about four tasks.
            callback: A function that is called with the list of results, in a thread of the pool's own, before `get`
                returns.
            error_callback: A function that is called instead, with the first failure, if there is one.
            **options: Options of this call; see `options`.

        Returns:
            A `MapResult`.

        Raises:
            PoolClosed: The pool was closed.
            ValueError: `chunksize` is less than 1.
            TypeError: `func` cannot be called, or is a coroutine function.
        """
        if options:
            return self.options(**options).starmap_async(func, iterable, chunksize, callback, error_callback)
        return self._map(func, iterable, chunksize, callback, error_callback, star=True)

    def _map(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None,
        callback: Callback[Any],
        error_callback: Callback[BaseException],
        star: bool,
    ) -> MapResult[Any]:
        self._engine.check_running()
        self._check(func)
        items = take(iterable)
        n_items = length_of(iterable) if items is None else len(items)
        if n_items is None:
            items = list(iterable)
            n_items = len(items)
        if chunksize is None:
            chunksize = max(1, -(-n_items // (4 * self._engine.n_workers)))
            if self._options is not None and self._options.is_per_item:
                chunksize = 1
        elif chunksize < 1:
            raise ValueError(f"Chunksize must be 1+, not {chunksize}")
        if self._options is not None:
            self._options.check_chunk(chunksize)
        if n_items == 0:
            callback = error_callback = None  # as in the standard library
            items = []
        ahead = 0 if items is not None else self._engine.n_workers * AHEAD_PER_WORKER
        collects = self._options is not None and self._options.errors == "return"
        made = CollectingResult if collects else MapResult
        result: MapResult[Any] = made(
            self._engine, self, callback, error_callback, n_items, chunksize, _native.JOB_MAP, ahead
        )
        if items is None:
            result.ahead = result.small_ahead = ahead
            result.large_bytes = AHEAD_BYTES // ahead
            self._engine.submit_input(result, func, islice(iter(iterable), n_items), star, self._options)
        else:
            self._engine.submit_map(result, func, items, star, self._options)
        return result

    # ---- iterators ----

    def imap[T, R](
        self,
        func: Callable[[T], R],
        iterable: Iterable[T],
        chunksize: int = 1,
        buffersize: int | None = None,
        *,
        progress: Progress = None,
        **options: Unpack[CallOptions],
    ) -> IMapIterator[R]:
        """Iterate over `func(x) for x in iterable`, in order. Does not block; the iterator does.

        Args:
            func: A function of one argument.
            iterable: The arguments, one for each call. It may be endless.
            chunksize: The number of items in each task.
            buffersize: The number of items that may be read ahead of the consumer. None: all items of a list, a range,
                an array or another collection in memory, and otherwise 64 tasks for each worker, or fewer if they are
                large.
            progress: What shows how far the call is: True for a bar, or what docs/howto/progress.md lists.
            **options: Options of this call; see `options`.

        Returns:
            An `IMapIterator`. Its `next(timeout)` works with any chunk size.

        Raises:
            PoolClosed: The pool was closed.
            ValueError: `chunksize` or `buffersize` is less than 1.
            TypeError: `func` cannot be called, or is a coroutine function, or `buffersize` is no integer.
        """
        if options:
            return self.options(**options).imap(func, iterable, chunksize, buffersize, progress=progress)
        return self._imap(func, iterable, chunksize, buffersize, ordered=True, progress=progress)

    def imap_unordered[T, R](
        self,
        func: Callable[[T], R],
        iterable: Iterable[T],
        chunksize: int = 1,
        buffersize: int | None = None,
        *,
        progress: Progress = None,
        **options: Unpack[CallOptions],
    ) -> IMapIterator[R]:
        """Iterate as `imap` does, with results as they arrive. Does not block; the iterator does.

        Args:
            func: A function of one argument.
            iterable: The arguments, one for each call. It may be endless.
            chunksize: The number of items in each task.
            buffersize: The number of items that may be read ahead of the consumer; see `imap`.
            progress: What shows how far the call is: True for a bar, or what docs/howto/progress.md lists.
            **options: Options of this call; see `options`.

        Returns:
            An `IMapIterator`.

        Raises:
            PoolClosed: The pool was closed.
            ValueError: `chunksize` or `buffersize` is less than 1.
            TypeError: `func` cannot be called, or is a coroutine function, or `buffersize` is no integer.
        """
        if options:
            return self.options(**options).imap_unordered(func, iterable, chunksize, buffersize, progress=progress)
        return self._imap(func, iterable, chunksize, buffersize, ordered=False, progress=progress)

    def _imap(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int,
        buffersize: int | None,
        ordered: bool,
        progress: Progress,
    ) -> IMapIterator[Any]:
        from pool_party._core.streams import IMapIterator, StreamCall

        engine = self._engine
        engine.check_running()
        self._check(func)
        if chunksize < 1:
            raise ValueError(f"Chunksize must be 1+, not {chunksize}")
        if self._options is not None:
            self._options.check_chunk(chunksize)
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError(f"buffersize must be an integer or None, not {buffersize!r}")
        if buffersize is not None and buffersize < 1:
            raise ValueError(f"buffersize must be None or 1+, not {buffersize}")
        watch = open_watch(progress)
        total = None if watch is None else length_of(iterable)
        items = take(iterable) if buffersize is None else None
        if items is not None and not (type(items) is range and items[MAX_STREAM * chunksize :]):
            call = StreamCall(engine, len(items), chunksize, ordered)
            engine.submit_map(call, func, items, False, self._options)
        else:
            window = engine.n_workers * AHEAD_PER_WORKER if buffersize is None else -(-buffersize // chunksize)
            call = StreamCall(engine, 0, chunksize, ordered, window)
            if buffersize is None:
                call.large_bytes = AHEAD_BYTES // window
            engine.submit_input(call, func, iter(iterable), False, self._options)
        return IMapIterator(engine, call, self, follow_stream(call, total, watch))

    # ---- asyncio ----

    @classmethod
    def aopen(cls, *args: Any, **kwargs: Any) -> Opening[Self]:
        """Open a pool without blocking asyncio's event loop: `async with ComposablePool.aopen(4) as pool`.

        Args:
            *args: The arguments of the class.
            **kwargs: Its keyword arguments.

        Returns:
            An object to await for the pool, or to use in `async with`, which ends as `async with pool` does.

        Raises:
            Exception: When the object is awaited: whatever the class raises.
        """
        from pool_party._core.awaiting import Opening

        return Opening(lambda: cls(*args, **kwargs), cls.terminate)

    def amap[T, R](
        self,
        func: Callable[[T], R],
        iterable: Iterable[T] | AsyncIterable[T],
        *,
        limit: int | None = None,
        ordered: bool = True,
        on_cancel: OnCancel | None = None,
        **options: Unpack[TaskOptions],
    ) -> AsyncIterator[R]:
        """Iterate asynchronously over `func(x) for x in iterable`: `async for y in pool.amap(f, xs)`. Does not block.

        The iteration ends with the first task that raises. When it ends for this reason, or because it was cancelled or
        closed, the tasks that no worker has begun are withdrawn. After a `break`, asyncio closes the iteration a moment
        later; `contextlib.aclosing` does so at once.

        Args:
            func: A function of one argument.
            iterable: The arguments, which may be endless. An asynchronous iterable is read by an asyncio task of its
                own, any other iterable by the event loop's thread as results are taken.
            limit: The largest number of tasks that are submitted while their results have not been taken. None: 64
                for each worker.
            ordered: Whether results come in the order of the input. Otherwise they come as they arrive.
            on_cancel: What happens to tasks that workers have begun when the iteration ends; see
                `AsyncResult.outcome`. None: what `options(on_cancel=)` says, or "abandon".
            **options: Options of this call; see `options`.

        Returns:
            An asynchronous generator, for one event loop of any thread.

        Raises:
            PoolClosed: The pool was closed.
            TypeError: `func` cannot be called, or is a coroutine function, or `iterable` cannot be iterated over.
            ValueError: `limit` is less than 1, or `on_cancel` is not one of the three, or not for this kind of workers.
        """
        if options:
            return self.options(**options).amap(func, iterable, limit=limit, ordered=ordered, on_cancel=on_cancel)
        from pool_party._core import async_map
        from pool_party._core.options import check_on_cancel

        self._engine.check_running()
        self._check(func)
        if on_cancel is None:
            on_cancel = "abandon" if self._options is None else self._options.on_cancel
        check_on_cancel(on_cancel, self._engine.kind)
        if limit is None:
            limit = self._engine.n_workers * AHEAD_PER_WORKER
        elif limit < 1:
            raise ValueError(f"limit must be None or 1+, not {limit}")
        source = iterable if isinstance(iterable, AsyncIterable) else iter(iterable)
        return async_map.results(lambda item: self.apply_async(func, (item,)), source, limit, ordered, on_cancel)

    async def aterminate(self) -> None:
        """Do what `terminate` does. Does not block the event loop, and never raises.

        Cancelling it does not end the wait.
        """
        from pool_party._core.awaiting import in_thread

        await in_thread(self.terminate, is_patient=True)

    async def ajoin(self, timeout: float | None = None) -> None:
        """Do what `join` does. Does not block the event loop.

        Args:
            timeout: The longest wait in seconds. None: no limit.

        Raises:
            ValueError: The pool was neither closed nor terminated.
            multiprocessing.TimeoutError: The workers have not ended within `timeout` seconds.
            CannotWait: As `join`.
        """
        from pool_party._core.awaiting import in_thread

        self._engine.check_may_wait()

        await in_thread(lambda: self.join(timeout))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aterminate()

    # ---- the end ----

    def close(self) -> None:
        """Refuse further calls; the workers end when the last call is done. Does not block, and never raises."""
        self._engine.close()

    def terminate(self) -> None:
        """Stop the workers now; calls that are pending raise PoolTerminated.

        Blocks until processes are dead, and other workers without a task have ended; for those on other machines, 12
        seconds at most. A task that a thread or an interpreter runs is not waited for: `join` does that. Processes with
        a task get SIGTERM. Those without one end by themselves, so that exit functions of their libraries run; SIGTERM
        follows after 1 second. After 3 seconds, processes get SIGKILL. Threads and interpreters get SystemExit in their
        Python code. It never raises, and does nothing in a forked child.
        """
        self._engine.terminate()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the workers' end, after `close` or `terminate`. Blocks until then.

        Args:
            timeout: The longest wait in seconds. None: no limit.

        Raises:
            ValueError: The pool was neither closed nor terminated.
            multiprocessing.TimeoutError: The workers have not ended within `timeout` seconds.
            CannotWait: The end of the pool needs the calling thread, which runs a task of it, for example. It is a
                RuntimeError, too.
            PoolPartyError: In a forked child, since the pool belongs to its parent.
        """
        self._engine.check_may_wait()
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
        engine = None if self._viewed is not None else self.__dict__.get("_engine")
        if engine is not None and engine.is_running and not sys.is_finalizing():  # its keeper's end will end it
            warn(f"unclosed running pool_party pool {self!r}", ResourceWarning, source=self, stacklevel=2)

    # ---- looking ----

    def trace(self, path: str | os.PathLike[str], *, max_events: int = 100_000) -> Tracing:
        """Record what each worker does from now on, as a timeline for Perfetto and chrome://tracing. Does not block.

        The file is written at the end of a `with` block, or by `stop()` of the object that is returned, or at the
        latest when the pool ends.

        Args:
            path: The file.
            max_events: The number of events that are kept. The oldest are dropped, and the file says how many.

        Returns:
            A `Tracing`, which is a context manager.

        Raises:
            OSError: The file cannot be written.
            PoolPartyError: The pool is being traced already, or does not run any more.
        """
        return self._engine.trace(path, max_events)

    def statistics(self) -> Statistics:
        """Return the pool's counts at this moment. Does not block, and never raises.

        Returns:
            A `Statistics`. In a forked child it has the counts of the moment of the fork.
        """
        return self._engine.statistics()

    @property
    def kind(self) -> Kind:
        """The kind of the workers: "thread", "process", "interp", "dask" or "mpi", never an alias."""
        return self._engine.kind

    @property
    def _pool(self) -> list[WorkerHandle]:
        """The living workers. Programs read their `pid` and `is_alive`."""
        return self._engine.workers

    @property
    def _ctx(self) -> Any:
        """The `multiprocessing` context. Programs ask it for the start method."""
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
    """A `ComposablePool` of threads, with the arguments of `multiprocessing.pool.ThreadPool`.

    Args:
        processes: The number of workers; see `ComposablePool`.
        initializer: A function that each worker calls once, before its first task.
        initargs: The arguments of `initializer`.
        context: Whether each task runs in a copy of the caller's context variables. None: as `threading.Thread` does;
            see `ComposablePool`.
        preload: Names of modules that are imported before the first task.
        **options: `policy`, `threads_per_worker`, `oversubscription`, `affinity`, `scope`, `log`, `output` and
            `propagate`, and for processes those of memory; see `ComposablePool`.

    Raises:
        ValueError: An argument is out of its range.
        TypeError: An argument has a wrong type.

    Guarantees:
        Those of `ComposablePool`: any thread may use it, and opening does not block.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        *,
        context: bool | None = None,
        preload: Iterable[str] = (),
        **options: Unpack[PoolOptions],
    ) -> None:
        super().__init__(processes, initializer, initargs, kind="thread", context=context, preload=preload, **options)


class ProcessPool(ComposablePool):
    """A `ComposablePool` of processes.

    Args:
        processes: The number of workers; see `ComposablePool`.
        initializer: A function that each worker calls once, before its first task.
        initargs: The arguments of `initializer`.
        maxtasksperchild: The number of tasks after which a worker is replaced. None: never.
        context: A `multiprocessing` context or its name. None: Python's default.
        preload: Names of modules that each worker imports when it starts.
        **options: `policy`, `threads_per_worker`, `oversubscription`, `affinity`, `scope`, `log`, `output` and
            `propagate`, and for processes those of memory; see `ComposablePool`.

    Raises:
        ValueError: An argument is out of its range, or the context is "fork" while a pool of interpreters is open.
        TypeError: An argument has a wrong type.

    Guarantees:
        Those of `ComposablePool`: any thread may use it, and opening does not block for initializers. Workers end with
        their parent, even if it is killed.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        *,
        preload: Iterable[str] = (),
        **options: Unpack[PoolOptions],
    ) -> None:
        super().__init__(
            processes, initializer, initargs, maxtasksperchild, context, kind="process", preload=preload, **options
        )


class InterpreterPool(ComposablePool):
    """A `ComposablePool` of interpreters, each with a GIL of its own.

    Args:
        processes: The number of workers; see `ComposablePool`.
        initializer: A function that each worker calls once, before its first task.
        initargs: The arguments of `initializer`.
        maxtasksperchild: The number of tasks after which a worker is replaced. None: never.
        extensions: Names of packages that are loaded although they do not support interpreters; see `ComposablePool`.
        preload: Names of modules that each worker imports when it starts.
        **options: `policy`, `threads_per_worker`, `oversubscription`, `affinity`, `scope`, `log`, `output` and
            `propagate`, and for processes those of memory; see `ComposablePool`.

    Raises:
        ValueError: An argument is out of its range.
        TypeError: An argument has a wrong type.

    Guarantees:
        Those of `ComposablePool`: any thread may use it, and opening does not block for initializers. A child that is
        forked while it is open crashes, which is CPython's limit.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        *,
        extensions: Iterable[str] | None = None,
        preload: Iterable[str] = (),
        **options: Unpack[PoolOptions],
    ) -> None:
        super().__init__(
            processes,
            initializer,
            initargs,
            maxtasksperchild,
            kind="interp",
            extensions=extensions,
            preload=preload,
            **options,
        )


tell_names(globals())
