"""What calls return: AsyncResult and MapResult. Futures are in futures.py, imap's iterators in streams.py.

Each is a Job of the channel, which stores the outcome (native/python/calls.c). Python code runs only afterwards: the
thread that asks for a failed outcome makes its exception here, and callbacks.py runs the callbacks.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pool_party import _native
from pool_party._core.log import log_exception
from pool_party._core.outcomes import error_of

if TYPE_CHECKING:
    from pool_party._core.engine import Engine

type Callback = Callable[[Any], object] | None


def timed_out() -> Exception:
    """Make the exception for a wait that took too long. multiprocessing is imported only then."""
    from multiprocessing import TimeoutError

    return TimeoutError()


def call_back(callback: Callback, value: Any) -> None:
    """Call a user's callback. What it raises is logged, since no caller waits for it."""
    if callback is None:
        return
    try:
        callback(value)
    except BaseException:
        log_exception("a callback raised; the pool goes on")


class Call(_native.Job):
    """A call in progress."""

    _failure: BaseException | None = None  # made once by `error`, so that every caller gets the same exception

    def __init__(self, engine: "Engine", n_items: int = 1, chunk: int = 1, kind: int = 0, window: int = 0) -> None:
        super().__init__(n_items, chunk, kind, window)
        self._engine = engine

    def error(self) -> BaseException:
        """Return the exception of a failed call, which is the same object each time."""
        if self._failure is None:  # if two threads make one, the first prevails
            self.__dict__.setdefault("_failure", self._make_error())
        assert self._failure is not None, "made above"
        return self._failure

    def _make_error(self) -> BaseException:
        return error_of(self.status, self.value)

    def run_callbacks(self) -> None:
        """Run the callbacks. The callback thread calls this once, when the outcome is decided."""


class AsyncResult(Call):
    """The result of `apply_async`.

    Raises:
        Exception: By `get`: whatever the task raised.

    Guarantees:
        All methods may be called from any thread, as often as you like. An outcome never changes. If a signal handler's
        exception ends a wait, nothing is lost: the result can be asked for again. The pool lives until the outcome is
        there.
    """

    def __init__(
        self,
        engine: "Engine",
        callback: Callback = None,
        error_callback: Callback = None,
        n_items: int = 1,
        chunk: int = 1,
        kind: int = 0,
        owner: object = None,
    ) -> None:
        super().__init__(engine, n_items, chunk, kind)
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

    def get(self, timeout: float | None = None) -> Any:
        """Return the value. Blocks until it is there.

        Args:
            timeout: The longest wait in seconds. None: no limit.

        Returns:
            What the function returned.

        Raises:
            multiprocessing.TimeoutError: There is no outcome after `timeout` seconds. The call goes on.
            WorkerLost: The worker died.
            PoolTerminated: The pool was terminated before the call was done.
            Exception: Whatever the task raised, with the worker's traceback as its cause.
        """
        if not self.done and not self._engine.wait(self, timeout):
            raise timed_out()
        if self.status == _native.STATUS_OK:
            return self.value
        try:
            raise self.error()
        finally:
            del self  # breaks the reference cycle of exception, traceback and this frame

    def run_callbacks(self) -> None:
        succeeded = self.status == _native.STATUS_OK
        callback = self._callback if succeeded else self._error_callback
        self._callback = self._error_callback = None
        if callback is not None:
            call_back(callback, self.value if succeeded else self.error())


class MapResult(AsyncResult):
    """The result of `map_async`: a list in the order of the input.

    Raises:
        Exception: By `get`: the first failure that arrived, once all tasks have run.

    Guarantees:
        Those of `AsyncResult`: any thread may use it, and an outcome never changes.
    """
