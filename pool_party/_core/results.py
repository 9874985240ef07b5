"""What calls return: AsyncResult and MapResult. Futures are in futures.py, imap's iterators in streams.py.

Each is a Job of the channel, which stores the outcome (native/python/calls.c). Python code runs only afterwards: the
thread that asks for a failed outcome makes its exception here, and callbacks.py runs the callbacks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator

from pool_party import _native
from pool_party._core.outcomes import error_of, place_in
from pool_party._core.places import note
from pool_party._ground.log import log_exception
from pool_party._ground.records import Generic, R, R_co, tell_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pool_party._core.engine import Engine
    from pool_party._core.options import Supervision
    from pool_party._ground.choices import OnCancel

type Callback[V] = Callable[[V], object] | None


def timed_out() -> Exception:
    """Make the exception for a wait that took too long. multiprocessing is imported only then."""
    from multiprocessing import TimeoutError

    return TimeoutError()


def call_back[V](callback: Callback[V], value: V) -> None:
    """Call a user's callback. What it raises is logged, since no caller waits for it."""
    if callback is None:
        return
    try:
        callback(value)
    except BaseException:
        log_exception("a callback raised; the pool goes on")


class Call(_native.Job):
    """A call in progress."""

    has_parts = False  # whether several workers may run tasks of it
    first: int | None = None  # the number of its first item in the input; None: it is a call without one
    size = 0  # of a call that runs several items of an executor's map: how many
    is_star = False  # whether each item holds the arguments of a call
    n_missing = 0  # of an input that was read while tasks ran: how many items its last task has less than `chunk`
    small_ahead = 0  # `ahead` for tasks with small arguments
    large_bytes = 0  # larger arguments have a limit of their own, of all such tasks together; 0: they have none
    supervision: Supervision | None = None  # for the supervisor, if the call has options
    _failure: BaseException | None = None  # made once by `error`, so that every caller gets the same exception

    def __init__(self, engine: Engine, n_items: int = 1, chunk: int = 1, kind: int = 0, window: int = 0) -> None:
        if kind != _native.JOB_SINGLE:  # a new job is one of a single call
            super().__init__(n_items, chunk, kind, window)
        self._engine = engine

    def error(self) -> BaseException:
        """Return the exception of a failed call, which is the same object each time."""
        if self._failure is None:  # if two threads make one, the first prevails
            self.__dict__.setdefault("_failure", self._make_error())
        assert self._failure is not None, "made above"
        return self._failure

    def _make_error(self) -> BaseException:
        return self.error_from(self.failed, self.status, self.value)

    def error_from(self, index: int, status: int, value: Any) -> BaseException:
        """Return the exception for a failed task of this call; -1: for a failure of the whole call."""
        error = self._error_of(status, value)
        if index < 0 or status == _native.STATUS_CANCELLED:
            return error
        return note(error, self, index, place_in(status, value), self._engine.quotes)

    def _error_of(self, status: int, value: Any) -> BaseException:
        return error_of(status, value)

    @property
    def returns_error(self) -> bool:
        """Whether the exception of its one task takes the place of the result."""
        return self.supervision is not None and self.supervision.options.errors == "return" and self.failed >= 0

    @property
    def on_cancel(self) -> OnCancel:
        """What happens to a task that a worker has begun when the call is cancelled, unless that says otherwise."""
        return "abandon" if self.supervision is None else self.supervision.options.on_cancel

    def cancel_as(self, on_cancel: OnCancel | None) -> bool:
        """Cancel the call: `AsyncResult.cancel`. Return False if that is impossible."""
        if on_cancel is not None:
            from pool_party._core.options import check_on_cancel

            check_on_cancel(on_cancel, self._engine.kind)
        how = on_cancel or self.on_cancel
        if how == "kill" and self.has_parts:
            return self._engine.kill(self)
        return self._engine.cancel(self) or (how == "kill" and self._engine.kill(self))

    def run_callbacks(self) -> None:
        """Run the callbacks. The callback thread calls this once, when the outcome is decided."""

    @property
    def n_done(self) -> int:
        """How many items are in tasks that have an outcome of their own. The last task counts as if it were full."""
        return min(self.n_items, self.n_delivered * self.chunk)

    # ---- for asyncio: awaiting.py ----

    @property
    def engine(self) -> Engine:
        """The engine to which the call was submitted."""
        return self._engine

    @property
    def awaiters(self) -> deque[Callable[[], object]]:
        """The functions to call once the call is done. Any thread may add, take and discard one."""
        awaiters: deque[Callable[[], object]] = self.__dict__.setdefault("_awaiters", deque())
        return awaiters

    def add_awaiter(self, tell: Callable[[], object]) -> bool:
        """Have the thread of callbacks call `tell` once the call is done. Return False if the outcome is decided.

        In that case `tell` may be called or not, and the call is done in a moment.
        """
        self.awaiters.append(tell)
        # `tell_awaiters` runs after the call is done. So either it finds `tell`, or we see here that the call is done.
        if self.watch() or (self.callbacks != _native.CALLBACKS_NONE and not self.done):
            return True
        self.discard_awaiter(tell)
        return False

    def discard_awaiter(self, tell: Callable[[], object]) -> None:
        """Remove a function that `add_awaiter` has added, unless it has been called."""
        try:
            self.awaiters.remove(tell)
        except ValueError:
            pass

    def tell_awaiters(self) -> None:
        """Call each function of `awaiters` once. The call is done by then."""
        awaiters = self.__dict__.get("_awaiters")  # a thread that adds the first one later sees that the call is done
        try:
            while awaiters:
                awaiters.popleft()()
        except IndexError:
            pass  # another thread has discarded the last one


class AsyncResult(Call, Generic[R_co]):  # noqa: UP046  # type parameters of a class would import typing
    """The result of `apply_async`.

    Raises:
        Exception: By `get`: whatever the task raised.

    Guarantees:
        All methods may be called from any thread, as often as you like. An outcome never changes. If a signal handler's
        exception ends a wait, nothing is lost: the result can be asked for again. The pool lives until the outcome is
        there.
    """

    _callback: Callback[Any] = None
    _error_callback: Callback[BaseException] = None

    def __init__(
        self,
        engine: Engine,
        owner: object,
        callback: Callback[Any] = None,
        error_callback: Callback[BaseException] = None,
        n_items: int = 1,
        chunk: int = 1,
        kind: int = 0,
        window: int = 0,
    ) -> None:
        super().__init__(engine, n_items, chunk, kind, window)
        self.owner = owner  # keeps the pool alive until the outcome is there
        if callback is not None or error_callback is not None:
            self._callback = callback
            self._error_callback = error_callback
            self.callbacks = _native.CALLBACKS_BEFORE

    def ready(self) -> bool:
        """Return whether the outcome is there. Does not block, and never raises.

        Returns:
            True if it is.
        """
        return self.done

    def successful(self) -> bool:
        """Return whether the call returned without raising. Does not block.

        Returns:
            True if so.

        Raises:
            ValueError: The outcome is not there yet.
        """
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self.status == _native.STATUS_OK

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the outcome. Blocks until it is there, and never raises for it.

        Args:
            timeout: The longest wait in seconds. None: no limit.
        """
        if not self.done:
            self._engine.wait(self, timeout)

    def get(self, timeout: float | None = None) -> R_co:
        """Return the value. Blocks until it is there.

        Args:
            timeout: The longest wait in seconds. None: no limit.

        Returns:
            What the function returned.

        Raises:
            multiprocessing.TimeoutError: There is no outcome after `timeout` seconds. The call goes on.
            WorkerLost: The worker died.
            TaskTimeout: The time of a task was up; see `ComposablePool.options`.
            PoolTerminated: The pool was terminated before the call was done.
            concurrent.futures.CancelledError: The call was cancelled, or the task that awaited it, and the call with
                it; see `outcome`.
            Exception: Whatever the task raised, with the worker's traceback as its cause.
        """
        if not self.done and not self._engine.wait(self, timeout):
            raise timed_out()
        if self.status == _native.STATUS_OK:
            return self.value  # type: ignore[no-any-return]  # workers say nothing of types
        if self.returns_error:
            return self.error()  # type: ignore[return-value]  # as the caller has asked for
        try:
            raise self.error()
        finally:
            del self  # breaks the reference cycle of exception, traceback and this frame

    def cancel(self, *, on_cancel: OnCancel | None = None) -> bool:
        """Cancel the call. Does not block. `get` then raises `concurrent.futures.CancelledError`.

        Tasks that no worker has begun are withdrawn. So a map can be cancelled until it is done, and a single call only
        until a worker begins it, unless its process is killed.

        Args:
            on_cancel: What happens to tasks that workers have begun. "kill", for kind="process" only: their worker
                processes are killed and replaced, and no other task is affected. "abandon" and "wait": they continue.
                None: what `options(on_cancel=)` says, or "abandon".

        Returns:
            Whether the call is cancelled by this.

        Raises:
            ValueError: `on_cancel` is not one of these, or not for this kind of workers.
        """
        return self.cancel_as(on_cancel)

    def __await__(self) -> Generator[object, None, R_co]:
        return self.outcome().__await__()

    def outcome(self, *, on_cancel: OnCancel | None = None) -> Coroutine[object, None, R_co]:
        """Return a coroutine of asyncio for the value; `await result` is short for `await result.outcome()`.

        If the coroutine is cancelled while nothing else awaits this result, the tasks that no worker has begun are
        withdrawn. `get` then raises `concurrent.futures.CancelledError`. Does not block.

        Args:
            on_cancel: What happens to tasks that workers have begun by then. "abandon": they continue, and their
                results are ignored. "wait": the cancellation waits for their end. "kill", for kind="process" only:
                their worker processes are killed and replaced, and the cancellation waits for that. No other task is
                affected. None: what `options(on_cancel=)` says, or "abandon".

        Returns:
            A coroutine, for one event loop of any thread.

        Raises:
            ValueError: From the coroutine, if `on_cancel` is not one of these, or not for this kind of workers.
            asyncio.CancelledError: From the coroutine, if it was cancelled, or the call was.
            WorkerLost: From the coroutine, if the worker died.
            Exception: From the coroutine: whatever the task raised.
        """
        from pool_party._core import awaiting

        return awaiting.outcome(self, on_cancel)

    def run_callbacks(self) -> None:
        succeeded = self.status == _native.STATUS_OK
        callback = self._callback if succeeded else self._error_callback
        self._callback = self._error_callback = None
        if callback is not None:
            call_back(callback, self.value if succeeded else self.error())


class MapResult(AsyncResult[list[R]], Generic[R]):  # noqa: UP046
    """The result of `map_async`: a list in the order of the input.

    Raises:
        Exception: By `get`: the first failure that arrived, once all tasks have run.

    Guarantees:
        Those of `AsyncResult`: any thread may use it, and an outcome never changes.
    """

    has_parts = True
    first = 0


class CollectingResult(MapResult[R]):
    """The result of a map whose tasks' exceptions take the place of their results."""

    _errors: list[tuple[int, BaseException]] | None = None  # by the number of their item

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.collects = True

    @property
    def value(self) -> Any:
        """The list of results and exceptions, once the call is done; what has failed the whole call, if that has."""
        values, failures = super().value, self.failures
        if self.status == _native.STATUS_OK and failures and self._errors is None:
            made = [(index, self.error_from(index, status, value)) for index, status, value in failures]
            for index, error in self.__dict__.setdefault("_errors", made):  # of two threads' the first
                values[index] = error
        return values


tell_names(globals())
