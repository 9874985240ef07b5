"""The interface of `concurrent.futures`, for workers of every kind. Translation only: the engine does the work."""

import itertools
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from time import monotonic
from typing import TYPE_CHECKING, Any

from pool_party import _native
from pool_party._core.engine import RUN, Engine
from pool_party._core.outcomes import future_error_of
from pool_party._core.results import Call
from pool_party._options import open_engine
from pool_party.budget.policies import Scope

if TYPE_CHECKING:
    import os

    from pool_party._core.statistics import Statistics
    from pool_party.observe.trace import Tracing

_log = logging.getLogger("concurrent.futures")


class PoolFuture(Future[Any]):
    """A Future of a ComposableExecutor. It counts as running from the moment that a worker begins its task.

    The outcome is the call's, and can be had as soon as the call is done. The state that `concurrent.futures` keeps of
    a Future, which `wait` and `as_completed` look at, follows a moment later, in the thread that runs its callbacks.
    """

    _call: "_FutureCall"

    def cancel(self) -> bool:
        """Cancels the call unless a worker has begun it."""
        return self._call.cancel()

    def cancelled(self) -> bool:
        """Whether the call was cancelled."""
        return self._call.is_cancelled()

    def done(self) -> bool:
        """Whether the call was cancelled or has its outcome."""
        return self._call.settled

    def running(self) -> bool:
        """Whether a worker runs the call now."""
        return not self.done() and self._call.is_begun()

    def result(self, timeout: float | None = None) -> Any:
        """The call's value, or raises what it raised; TimeoutError after `timeout` seconds."""
        error = self.exception(timeout)
        if error is None:
            return self._call.value
        try:
            raise error
        finally:
            del self, error  # no cycle of the exception, its traceback and this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call raised, or None; TimeoutError after `timeout` seconds. Raises: CancelledError."""
        if not self._call.wait(timeout):
            raise TimeoutError
        if self._call.is_cancelled():
            raise CancelledError
        return None if self._call.status == _native.STATUS_OK else self._call.error()


class _FutureCall(Call):
    """The call behind a Future."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.callbacks = _native.CALLBACKS_AFTER
        self.future = PoolFuture()
        self.future._call = self

    def run_callbacks(self) -> None:
        """Tells the Future, which wakes who waits for it by means of `concurrent.futures`, and calls back."""
        future = self.future
        if self.is_cancelled():
            Future.cancel(future)
            future.set_running_or_notify_cancel()
        elif future.set_running_or_notify_cancel():
            if self.status == _native.STATUS_OK:
                future.set_result(self.value)
            else:
                future.set_exception(self.error())

    def _make_error(self) -> BaseException:
        return future_error_of(self.status, self.value)

    def is_cancelled(self) -> bool:
        return self.settled and self.status == _native.STATUS_CANCELLED

    def cancel(self) -> bool:
        return self._engine.cancel(self) or self.is_cancelled()

    def is_begun(self) -> bool:
        return self._engine.is_begun(self)

    def wait(self, timeout: float | None) -> bool:
        return self.done or self._engine.wait(self, timeout)


class ComposableExecutor(Executor):
    """A `concurrent.futures.Executor` of workers of any kind.

    max_workers: number of workers; None: the CPUs that this process may use.
    initializer, initargs: called once in each worker; if that fails the executor is broken (InitializerFailed).
    kind, context, policy and what follows: as in ComposablePool.
    max_tasks_per_child: tasks after which a worker is replaced.

    A worker that dies fails the one future whose call it ran, with WorkerLost; the others go on.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        *,
        kind: str = "process",
        context: Any = None,
        max_tasks_per_child: int | None = None,
        policy: Any = "static",
        threads_per_worker: int | None = None,
        oversubscription: float = 1.0,
        affinity: bool | None = None,
        scope: Scope = "pool",
        extensions: Iterable[str] | None = None,
        preload: Iterable[str] = (),
    ) -> None:
        if max_workers is not None and max_workers < 1:
            raise ValueError("max_workers must be greater than 0")
        self._engine, self._keeper = open_engine(
            kind,
            max_workers,
            initializer,
            initargs,
            max_tasks_per_child,
            context,
            _log_broken,
            extensions=extensions,
            preload=preload,
            policy=policy,
            threads_per_worker=threads_per_worker,
            oversubscription=oversubscription,
            affinity=affinity,
            scope=scope,
        )
        self._engine.drains_at_exit = True
        self._max_workers = self._engine.n_workers

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Starts fn(*args, **kwargs) in a worker."""
        engine = self._engine
        if engine.state != RUN:
            from pool_party._core.errors import PoolClosed

            raise PoolClosed("cannot schedule new futures after shutdown")
        engine.check_running()
        call = _FutureCall(engine)
        engine.submit_call(call, fn, args, kwargs)
        return call.future

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[Any]:
        """An iterator over fn(*x) for x in zip(*iterables), in order.

        timeout: seconds from this call after which `next` raises TimeoutError. chunksize: items per task.
        buffersize: tasks that may be submitted ahead of the consumer; None: all.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError("buffersize must be an integer or None")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        deadline = None if timeout is None else monotonic() + timeout
        calls = zip(*iterables, strict=False)
        chunks: Iterator[list[Any]] = iter(lambda: list(itertools.islice(calls, chunksize)), [])
        futures = deque(self.submit(_run_chunk, fn, chunk) for chunk in itertools.islice(chunks, buffersize))
        return _in_order(weakref.ref(self), fn, chunks, futures, deadline)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """No more calls; with `wait`, returns when all that were submitted are done."""
        if cancel_futures:
            for call in self._engine.calls():
                if isinstance(call, _FutureCall):
                    call.cancel()
        self._engine.close()
        if wait:
            self._engine.join()

    def trace(self, path: "str | os.PathLike[str]", *, max_events: int = 100_000) -> "Tracing":
        """Records what each worker does from now on; see `ComposablePool.trace`."""
        return self._engine.trace(path, max_events)

    def statistics(self) -> "Statistics":
        """The executor's counts at this moment."""
        return self._engine.statistics()

    def __repr__(self) -> str:
        s = self.statistics()
        return (
            f"<{type(self).__name__} kind={s.kind} state={self._engine.state} workers={s.n_workers} "
            f"pending={s.n_pending} completed={s.n_completed}>"
        )


def _run_chunk(fn: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[Any]:
    return [fn(*args) for args in calls]


def _in_order(
    executor: "weakref.ref[ComposableExecutor]",
    fn: Callable[..., Any],
    chunks: Iterator[list[Any]],
    futures: "deque[Future[Any]]",
    deadline: float | None,
) -> Iterator[Any]:
    """Results in order; each one taken lets one more task in."""
    try:
        while futures:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            results = futures[0].result(left)
            futures.popleft()
            owner, chunk = executor(), next(chunks, None)
            if owner is not None and chunk is not None:
                futures.append(owner.submit(_run_chunk, fn, chunk))
            del owner
            results.reverse()
            while results:
                yield results.pop()
    finally:
        for future in futures:
            future.cancel()


def _log_broken(cause: BaseException) -> None:
    _log.critical("Exception in initializer:", exc_info=cause)
