"""The default executor: one for each kind of worker and the whole program, which opens it at its first use."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from time import monotonic

from pool_party import _native
from pool_party._budget.plan import Limits, make_plan
from pool_party._budget.policies import for_kind
from pool_party._config import arguments_of, resolve_context, resolve_kind
from pool_party._core.engine import RUN
from pool_party._core.following import count_calls, open_watch
from pool_party._core.nested import NestedMap, run, run_lazily
from pool_party._executor import ComposableExecutor
from pool_party._ground.errors import PoolPartyError
from pool_party._ground.imports import loaded
from pool_party._ground.records import TypedDict, overload, tell_names
from pool_party._workers import loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Unpack

    from pool_party._core.options import FurtherOptions
    from pool_party._ground.choices import Kind
    from pool_party._observe.progress import Progress

KIND = "POOL_PARTY_DEFAULT_KIND"
WORKERS = "POOL_PARTY_DEFAULT_WORKERS"
CHUNKS_PER_WORKER = 4  # as `ComposablePool.map` has by default

_lock = _native.Guard()  # held while an executor opens; reentrant, as a signal handler may use the executor meanwhile
_executors: dict[str, DefaultExecutor] = {}  # kind -> its executor
_configured: dict[str, Any] | None = None  # what `configure` was given
_is_used = False  # an executor was opened with that
_is_hooked = False  # the hooks for forks are registered
_here = threading.local()  # `is_worker`: the thread is a worker of the default executor of threads


def configure(
    *,
    kind: Kind | None = None,
    max_workers: int | None = None,
    initializer: Callable[..., object] | None = None,
    initargs: Iterable[Any] = (),
    context: Any = None,
    extensions: Iterable[str] | None = None,
    preload: Iterable[str] = (),
    **limits: Unpack[Limits],
) -> None:
    """Set what the default executor is like. It is for programs: once, before the first use. Does not block.

    A library that needs other workers makes a pool of its own.

    Args:
        kind: The kind that is used where none is named. None: the environment variable `POOL_PARTY_DEFAULT_KIND`, or
            else "process".
        max_workers: The number of workers. None: `POOL_PARTY_DEFAULT_WORKERS`, or else one for each CPU.
        initializer: A function that each worker calls once, before its first task.
        initargs: The arguments of `initializer`.
        context: A `multiprocessing` context for processes, or its name. None: "forkserver".
        extensions: Names of packages that interpreters load although they do not support them; see `ComposablePool`.
        preload: Names of modules that each worker imports when it starts.
        **limits: `policy`, which is "dynamic" by default, `threads_per_worker`, `oversubscription`, `affinity` and
            `scope`; see `ComposablePool`.

    Raises:
        PoolPartyError: It was called with other values before, or the default executor is in use already.
        ValueError: An argument is out of its range.
        TypeError: An argument has a wrong type, or there is no such option.

    Guarantees:
        Any thread may call it. A repeated call with the same values does nothing.
    """
    global _configured
    if kind is not None:
        kind = resolve_kind(kind)
    if max_workers is not None and max_workers < 1:
        raise ValueError(f"max_workers must be greater than 0, not {max_workers}")
    if unknown := sorted(limits.keys() - Limits.__annotations__.keys()):
        raise TypeError(f"configure has no option {unknown[0]!r}")
    make_plan("process", 1, **limits)  # which checks the values
    arguments = arguments_of(initializer, initargs)
    own = {"max_workers": max_workers, "initializer": initializer, "initargs": arguments, "context": context}
    names = {"extensions": extensions if extensions is None else tuple(extensions), "preload": tuple(preload)}
    given = {"kind": kind, **own, **names, **limits}
    with _lock:
        if _configured == given:
            return
        if _configured is not None:
            changed = [name for name in sorted({*given, *_configured}) if given.get(name) != _configured.get(name)]
            raise PoolPartyError(
                "pool_party.configure was called before, with another value of "
                f"{', '.join(changed)}: only the program configures the default executor, and once"
            )
        if _is_used:
            raise PoolPartyError("pool_party.configure must be called before the first use of the default executor")
        _configured = given


def default_executor(kind: Kind | None = None) -> DefaultExecutor:
    """Return the executor that all parts of the program share. Does not block: its first task opens it.

    Args:
        kind: "process", "thread", "interp" or an alias. None: what the program has configured, see `configure`.

    Returns:
        A `DefaultExecutor`, the same for the same kind each time.

    Raises:
        ValueError: The kind is unknown.

    Guarantees:
        Any thread may call it and use the result, also in tasks, and in a forked child, which opens workers of its own.
    """
    kind = _default_kind() if kind is None else resolve_kind(kind)
    return _executors.get(kind) or _executors.setdefault(kind, DefaultExecutor(kind))


class MapOptions(TypedDict, total=False):
    """The keyword arguments of `map`."""

    kind: Kind | None
    chunksize: int | None
    timeout: float | None
    progress: Progress


@overload
def map[A, R](fn: Callable[[A], R], a: Iterable[A], /, **options: Unpack[MapOptions]) -> list[R]: ...


@overload
def map[A, B, R](
    fn: Callable[[A, B], R], a: Iterable[A], b: Iterable[B], /, **options: Unpack[MapOptions]
) -> list[R]: ...


@overload
def map[R](
    fn: Callable[..., R],
    a: Iterable[Any],
    b: Iterable[Any],
    c: Iterable[Any],
    /,
    *iterables: Iterable[Any],
    **options: Unpack[MapOptions],
) -> list[R]: ...


def map[R](
    fn: Callable[..., R],
    *iterables: Iterable[Any],
    kind: Kind | None = None,
    chunksize: int | None = None,
    timeout: float | None = None,
    progress: Progress = None,
) -> list[R]:
    """Return `[fn(*x) for x in zip(*iterables)]`, computed by the default executor. Blocks until then.

    Args:
        fn: The function.
        *iterables: The arguments: one iterable for each parameter.
        kind: The kind of the workers; see `default_executor`.
        chunksize: The number of items in each task. None: a number that gives each worker about four tasks.
        timeout: The seconds after which TimeoutError is raised. None: no limit.
        progress: What shows how far the call is: True for a bar, or what docs/howto/progress.md lists.

    Returns:
        The results, in the order of the arguments.

    Raises:
        ValueError: The kind is unknown, or `chunksize` is less than 1.
        WorkerLost: A worker died.
        TimeoutError: There are results missing after `timeout` seconds.
        Exception: Whatever `fn` raised first, in the order of the arguments.

    Guarantees:
        Any thread may call it, also in tasks: see `DefaultExecutor`.
    """
    executor = default_executor(kind)
    n = count_calls(iterables)
    if n is None:
        calls = list(zip(*iterables, strict=False))
        n, iterables = len(calls), tuple(zip(*calls, strict=True))
    if n == 0:
        return []
    if chunksize is None:
        chunksize = executor._choose_chunksize(n)
    return list(executor.map(fn, *iterables, timeout=timeout, chunksize=chunksize, progress=progress))


class DefaultExecutor(Executor):
    """The executor that `default_executor` returns. It is opened by its first task, and ends with the program.

    Tasks may use it, too. In a worker that is a process or an interpreter, of whatever pool, calls run in that worker;
    those for processes also run in the daemonic processes of `multiprocessing`, which may have no children.
    In a worker of the default executor of threads, `submit` runs the call, and `map` does so with the help of workers
    that are idle. So calls may be nested as deep as you like, even with one worker, and there are never more tasks that
    run than workers. Arguments of nested calls are not copied.

    Raises:
        WorkerLost: By the future whose worker died. The others go on.
        InitializerFailed: By futures, if the initializer that was configured fails.

    Guarantees:
        All methods may be called from any thread. A task runs at most once. A forked child has workers of its own. At
        the end of the program, what was submitted is finished. A task may wait for what it submits, and for futures
        that were submitted before it.
    """

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._inner: ComposableExecutor | None = None
        self._users: deque[None] = deque()  # as many as there are threads that are submitting

    @property
    def kind(self) -> Kind:
        """The kind of the workers: "thread", "process" or "interp"."""
        return self._kind

    def submit[**P, R](self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Start `fn(*args, **kwargs)` in a worker. Does not block, except to open workers; in a task, runs it.

        Args:
            fn: The function.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            A `Future`. In a task it is done.

        Raises:
            PoolClosed: The program is ending.
        """
        if self._is_nested():
            return run(fn, args, kwargs)
        users = self._users
        users.append(None)
        try:
            return self._open().submit(fn, *args, **kwargs)
        finally:
            users.pop()

    @overload  # type: ignore[override]  # that of the standard library takes any function for any iterables
    def map[A, R](self, fn: Callable[[A], R], a: Iterable[A], /, **options: Unpack[FurtherOptions]) -> Iterator[R]: ...

    @overload
    def map[A, B, R](
        self, fn: Callable[[A, B], R], a: Iterable[A], b: Iterable[B], /, **options: Unpack[FurtherOptions]
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
        **options: Unpack[FurtherOptions],
    ) -> Iterator[R]: ...

    def map[R](
        self,
        fn: Callable[..., R],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        progress: Progress = None,
    ) -> Iterator[R]:
        """Iterate over `fn(*x) for x in zip(*iterables)`, in order. Does not block; the iterator does.

        In a task it blocks until all calls have run, or with `buffersize` runs each when its result is asked for.

        Args:
            fn: The function.
            *iterables: The arguments: one iterable for each parameter.
            timeout: The seconds from this call after which the iterator raises TimeoutError. None: no limit.
            chunksize: The number of items in each task.
            buffersize: The number of tasks that may be submitted ahead of the consumer. None: all.
            progress: What shows how far the call is: True for a bar, or what docs/howto/progress.md lists. In a task
                only functions and objects of yours do.

        Returns:
            An iterator over the results.

        Raises:
            PoolClosed: The program is ending.
            ValueError: `chunksize` or `buffersize` is less than 1.
            TypeError: `buffersize` is no integer, or `progress` is of another type.
            TimeoutError: By the iterator, after `timeout` seconds.
            Exception: By the iterator: whatever `fn` raised.
        """
        if self._is_nested():
            return self._map_nested(fn, iterables, timeout, buffersize, progress)
        users = self._users
        users.append(None)
        try:
            return self._open().map(
                fn, *iterables, timeout=timeout, chunksize=chunksize, buffersize=buffersize, progress=progress
            )
        finally:
            users.pop()

    def _map_nested(
        self,
        fn: Callable[..., Any],
        iterables: tuple[Iterable[Any], ...],
        timeout: float | None,
        buffersize: int | None,
        progress: Progress,
    ) -> Iterator[Any]:
        watch = None if isinstance(progress, bool | str) else open_watch(progress)  # calls in tasks have no bars
        calls = zip(*iterables, strict=False)
        deadline = None if timeout is None else monotonic() + timeout
        if buffersize is not None:
            return run_lazily(fn, calls, deadline)
        n_helpers = self._n_workers() - 1 if self._has_helpers() else 0
        return NestedMap(fn, list(calls), deadline, watch).run(self._submit_helper, n_helpers)

    def _submit_helper(self, fn: Callable[[], None]) -> Future[None]:
        return self._open().submit(fn)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing, since other parts of the program use this executor, too. Does not block, and never raises.

        Args:
            wait: Ignored.
            cancel_futures: Ignored.
        """

    def _is_nested(self) -> bool:
        if self._kind == "process" and _is_daemonic():
            return True
        return loop.is_remote or (self._kind == "thread" and getattr(_here, "is_worker", False))

    def _has_helpers(self) -> bool:
        """Whether this thread is one of the workers, which can help each other."""
        return self._kind == "thread" and not loop.is_remote

    def _n_workers(self) -> int:
        return self._open()._max_workers

    def _choose_chunksize(self, n_items: int) -> int:
        return 1 if self._is_nested() else max(1, -(-n_items // (CHUNKS_PER_WORKER * self._n_workers())))

    # ---- the workers ----

    def _open(self) -> ComposableExecutor:
        """Return the executor behind this one. It is opened if there is none, or if it has broken."""
        inner = self._inner
        if inner is not None and not _is_broken(inner):
            return inner
        with _lock:
            if self._inner is None or _is_broken(self._inner):
                opened = _open_outside_tasks(self._kind)
                if self._inner is None or _is_broken(self._inner):
                    self._inner = opened
                else:  # a signal handler was faster
                    opened.shutdown()
            return self._inner

    def _end_if_idle(self) -> None:
        """End the workers if nobody uses them. The next task opens others. Blocks until they have ended."""
        with _lock:
            inner, self._inner = self._inner, None  # from here on other threads open another one; they need the lock
            if inner is not None and (self._users or inner.statistics().n_pending):
                self._inner = inner
                return
        if inner is not None:
            inner.shutdown(wait=False)
            inner._engine.await_end()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} kind={self._kind} {'not open' if self._inner is None else repr(self._inner)}>"

    def __reduce__(self) -> Any:
        return default_executor, (self._kind,)


def _is_broken(inner: ComposableExecutor) -> bool:
    return inner._engine.state == RUN and not inner._engine.is_running


def _is_daemonic() -> bool:
    """Whether this process may have no children, like a worker of `multiprocessing.Pool`."""
    process = loaded("multiprocessing.process")
    return process is not None and process.current_process().daemon


# ---- opening ----


def _default_kind() -> Kind:
    kind = (_configured and _configured["kind"]) or os.environ.get(KIND) or "process"
    try:
        return resolve_kind(kind)
    except ValueError as error:
        raise ValueError(f"{KIND}: {error}") from None


def _default_workers() -> int | None:
    text = os.environ.get(WORKERS)
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ValueError(f"{WORKERS} must be a positive integer, not {text!r}")
    return int(text)


def _make_options(kind: str) -> dict[str, Any]:
    options = {**(_configured or {}), "kind": kind}
    if "policy" in options:
        options["policy"] = for_kind(options["policy"], kind)
    if options.get("max_workers") is None:
        options["max_workers"] = _default_workers()
    if kind == "thread":
        options["initargs"] = options.get("initializer"), options.get("initargs", ())
        options["initializer"] = _enter_worker
    if kind == "process" and options.get("context") is None:
        options["context"] = "forkserver"  # the program may have threads by now, with which forking is not safe
    if kind != "interp":
        options.pop("extensions", None)
    return options


def _enter_worker(initializer: Callable[..., object] | None, initargs: tuple[Any, ...]) -> None:
    _here.is_worker = True
    if initializer is not None:
        initializer(*initargs)


def _open_outside_tasks(kind: str) -> ComposableExecutor:
    """Open an executor. It has the program's CPUs, even if a task of a pool of threads is the first to use it."""
    global _is_used
    _is_used = True
    options = _make_options(kind)
    if kind == "process" and resolve_context(options["context"]).get_start_method() == "fork":
        end_idle_interpreters()
    if _native.own_grant() == 0:
        executor = ComposableExecutor(**options)
    else:
        executor = _open_in_thread(options)
    _watch_forks()
    return executor


def _open_in_thread(options: dict[str, Any]) -> ComposableExecutor:
    """Open an executor in a thread without a budget, on the CPUs of the main thread."""
    outcome: list[Future[ComposableExecutor]] = []

    def open_it() -> ComposableExecutor:
        os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))
        return ComposableExecutor(**options)

    thread = threading.Thread(target=lambda: outcome.append(run(open_it, (), {})), name="pool_party-opening")
    thread.start()
    thread.join()
    return outcome[0].result()


# ---- forks ----


def end_idle_interpreters() -> None:
    """End the interpreters of the default executor, if nobody uses them, so that a child can be forked."""
    if "interp" in _executors:
        _executors["interp"]._end_if_idle()


def _before_fork() -> None:
    """CPython crashes in a child that is forked while interpreters exist, so those that nobody uses end before."""
    if _native.n_interpreters():
        end_idle_interpreters()


def _forget() -> None:
    """Called in a forked child, where the workers are the parent's."""
    global _lock, _here
    _lock = _native.Guard()
    _here = threading.local()
    for executor in _executors.values():
        executor._inner = None
        executor._users = deque()


def _watch_forks() -> None:
    """Register the hooks, after the pool's own: in a child it disowns the workers before we forget them."""
    global _is_hooked
    if not _is_hooked:
        _is_hooked = True
        os.register_at_fork(before=_before_fork, after_in_child=_forget)


tell_names(globals())
