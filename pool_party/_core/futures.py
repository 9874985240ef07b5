"""A call whose outcome is a `Future` of `concurrent.futures`."""

from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures._base import LOGGER
from typing import TYPE_CHECKING, Any

from pool_party import _native
from pool_party._core.outcomes import future_error_of
from pool_party._core.results import Call
from pool_party._ground.records import R, tell_names

if TYPE_CHECKING:
    from pool_party._core.engine import Engine
    from pool_party._ground.choices import OnCancel


class PoolFuture(Future[R]):
    """A `concurrent.futures.Future` of a `ComposableExecutor`. It is running once a worker has begun its task.

    Raises:
        WorkerLost: By `result`, if the worker died.

    Guarantees:
        All methods may be called from any thread. `result` returns as soon as the call is done. `wait` and
        `as_completed` of `concurrent.futures`, and the callbacks that were added before, learn of it a moment later,
        from the thread that runs the callbacks.
    """

    _call: "FutureCall"

    def cancel(self, *, on_cancel: "OnCancel | None" = None) -> bool:
        """Cancel the call, unless a worker has begun it and is not to be killed. Does not block.

        Args:
            on_cancel: "kill", for kind="process" only: if a worker has begun the call, its process is killed and
                replaced, and no other call is affected. "abandon" and "wait": such a call continues. None: what
                `options(on_cancel=)` says, or "abandon".

        Returns:
            Whether the call is cancelled now.

        Raises:
            ValueError: `on_cancel` is not one of these, or not for this kind of workers.
        """
        return self._call.cancel(on_cancel)

    def cancelled(self) -> bool:
        """Return whether the call was cancelled. Does not block, and never raises.

        Returns:
            True if it was.
        """
        return self._call.is_cancelled()

    def done(self) -> bool:
        """Return whether the call was cancelled or has its outcome. Does not block, and never raises.

        Returns:
            True if so.
        """
        return self._call.settled

    def running(self) -> bool:
        """Return whether a worker runs the call now. Does not block, and never raises.

        Returns:
            True if so.
        """
        return not self.done() and self._call.is_begun()

    def result(self, timeout: float | None = None) -> R:
        """Return the call's value. Blocks until it is there.

        Args:
            timeout: The longest wait in seconds. None: no limit.

        Returns:
            What the function returned.

        Raises:
            TimeoutError: There is no outcome after `timeout` seconds. The call goes on.
            concurrent.futures.CancelledError: The call was cancelled.
            Exception: Whatever the function raised, with the worker's traceback as its cause.
        """
        error = self.exception(timeout)
        if error is None:
            return self._call.value  # type: ignore[no-any-return]  # workers say nothing of types
        if self._call.returns_error:
            return error  # type: ignore[return-value]  # as the caller has asked for
        try:
            raise error
        finally:
            del self, error  # breaks the reference cycle of exception, traceback and this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the call raised, or None. Blocks until the outcome is there.

        Args:
            timeout: The longest wait in seconds. None: no limit.

        Returns:
            The exception, or None if there is none.

        Raises:
            TimeoutError: There is no outcome after `timeout` seconds.
            concurrent.futures.CancelledError: The call was cancelled.
        """
        if not self._call.wait(timeout):
            raise TimeoutError
        if self._call.is_cancelled():
            raise CancelledError
        return None if self._call.status == _native.STATUS_OK else self._call.error()

    def add_done_callback(self, fn: Callable[[Future[R]], object]) -> None:
        """Have a function called with this future once the call was cancelled or has its outcome.

        Does not block, and never raises an Exception. If it was or has already, `fn` is called at once, in this thread,
        as `concurrent.futures` promises. Otherwise the thread that runs callbacks calls it. An exception of `fn` is
        logged by the logger "concurrent.futures".

        Args:
            fn: The function.
        """
        if not self.done():
            super().add_done_callback(fn)
            return
        try:
            fn(self)
        except Exception:
            LOGGER.exception("exception calling callback for %r", self)

    def set_result(self, result: R) -> None:
        """Give the future a result, in the place of the call's.

        Does not block. A worker that has begun the call goes on with it.

        Args:
            result: The result.

        Raises:
            concurrent.futures.InvalidStateError: The future is done.
        """
        self._call.set_outcome(_native.STATUS_OK, result)

    def set_exception(self, exception: BaseException | None) -> None:
        """Give the future an exception, as `set_result` gives it a result. Does not block.

        Args:
            exception: The exception. None: there is none, and the result is None.

        Raises:
            concurrent.futures.InvalidStateError: The future is done.
            TypeError: It is no exception.
        """
        if exception is None:
            self._call.set_outcome(_native.STATUS_OK, None)
        elif isinstance(exception, BaseException):
            self._call.set_outcome(_native.STATUS_RAISED, exception)
        else:
            raise TypeError(f"set_exception needs an exception, not {exception!r}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {id(self):#x} state={self._call.describe()}>"

    def _get_snapshot(self) -> tuple[bool, bool, Any, BaseException | None]:
        """What asyncio asks for from Python 3.15 on: whether it is done, and cancelled, its result, its exception."""
        if not self.done() or self.cancelled():
            return self.done(), self.cancelled(), None, None
        error = self.exception()
        return True, False, None if error is not None else self._call.value, error

    def __await__(self) -> Generator[object, None, R]:
        return self.outcome().__await__()

    def outcome(self, *, on_cancel: "OnCancel | None" = None) -> Coroutine[object, None, R]:
        """Return a coroutine of asyncio for the value; `await future` is short for `await future.outcome()`.

        If the coroutine is cancelled while nothing else awaits this future, the future is cancelled unless a worker has
        begun its call. Does not block.

        Args:
            on_cancel: What happens to a call that a worker has begun; see `AsyncResult.outcome`.

        Returns:
            A coroutine, for one event loop of any thread.

        Raises:
            ValueError: From the coroutine, if `on_cancel` is not one of the three, or not for this kind of workers.
            asyncio.CancelledError: From the coroutine, if it was cancelled, or the future was.
            WorkerLost: From the coroutine, if the worker died.
            Exception: From the coroutine: whatever the function raised.
        """
        from pool_party._core import awaiting

        return awaiting.outcome(self._call, on_cancel)


class FutureCall(Call):
    """The call behind a Future."""

    def __init__(self, engine: "Engine") -> None:
        super().__init__(engine)
        self.callbacks = _native.CALLBACKS_AFTER
        self.future: PoolFuture[Any] = PoolFuture()
        self.future._call = self

    def run_callbacks(self) -> None:
        """Pass the outcome to the Future, which wakes waiters of `concurrent.futures` and runs callbacks.

        The call then lets go of the Future, which refers to it, so that the value goes with the last reference to the
        Future and needs no garbage collection.
        """
        future = self.future
        del self.future
        if self.is_cancelled():
            Future.cancel(future)
            future.set_running_or_notify_cancel()
        elif future.set_running_or_notify_cancel():
            if self.status == _native.STATUS_OK:
                Future.set_result(future, self.value)
            else:
                Future.set_exception(future, self.error())

    def set_outcome(self, status: int, value: Any) -> None:
        if not self._engine.settle(self, status, value):
            raise InvalidStateError(f"the future is {self.describe()}")

    def _error_of(self, status: int, value: Any) -> BaseException:
        return future_error_of(status, value)

    def is_cancelled(self) -> bool:
        return self.settled and self.status == _native.STATUS_CANCELLED

    def describe(self) -> str:
        """Describe the state in the words of `concurrent.futures`, for `repr`."""
        if not self.settled:
            return "running" if self.is_begun() else "pending"
        if self.is_cancelled():
            return "cancelled"
        if self.status == _native.STATUS_OK:
            return f"finished returned {type(self.value).__name__}"
        return f"finished raised {type(self.error()).__name__}"

    def cancel(self, on_cancel: "OnCancel | None" = None) -> bool:
        return self.cancel_as(on_cancel) or self.is_cancelled()

    def is_begun(self) -> bool:
        return self._engine.is_begun(self)

    def wait(self, timeout: float | None) -> bool:
        return self.done or self._engine.wait(self, timeout)


tell_names(globals())
