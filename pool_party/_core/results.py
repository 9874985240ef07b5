"""What calls return: AsyncResult and MapResult; imap's iterators are in _imap.py.

Each is a Job of the channel: `_deliver` and `_complete` are called by whichever thread leads (takes results). Outcomes
are settled once, under the scheduler's lock; callbacks run before waiters wake, as in `multiprocessing.Pool`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pool_party import _native
from pool_party._core.log import log_exception
from pool_party._core.outcomes import error_of

if TYPE_CHECKING:
    from pool_party._core.scheduler import Scheduler

type Callback = Callable[[Any], object] | None


def timed_out() -> Exception:
    from multiprocessing import TimeoutError

    return TimeoutError()


def call_back(callback: Callback, value: Any) -> None:
    """Calls a user's callback; what it raises is logged, since nobody waits for it."""
    if callback is None:
        return
    try:
        _native.allow_interrupts(callback, value)
    except KeyboardInterrupt:
        raise
    except BaseException:
        log_exception("a callback raised; the pool goes on")


class Ticket(_native.Job):
    """Something to wait for, until it is `done`. `waiters` belongs to the scheduler's lock."""

    settled: bool = False  # the outcome is decided, though callbacks may still run

    def __init__(self, job_id: int = 0, n_items: int = 1, chunk: int = 1, store: bool = False) -> None:
        super().__init__(job_id, n_items, chunk, store)
        self.waiters: list[Any] = []


class PoolJob(Ticket):
    """A call in progress: what the scheduler needs to know of it. Its lists belong to the scheduler's lock."""

    function: Any = None  # the scheduler's entry for its function, released when the job is finished
    sequence: int = -1  # of a single task, once it is in the channel
    is_abandoned: bool = False

    def __init__(self, scheduler: "Scheduler", n_items: int, chunk: int = 1, store: bool = False) -> None:
        super().__init__(scheduler.next_job_id(), n_items, chunk, store)
        self._scheduler = scheduler

    def _deliver(self, index: int, status: int, value: Any) -> None:
        """Called by the channel with the outcome of a task."""
        if status == _native.STATUS_OK:
            self._settle(True, value)
        else:
            self.fail_task(index, error_of(status, value))

    def _complete(self) -> None:
        """Called by the channel when it has stored the last result."""

    def fail_task(self, index: int, error: BaseException) -> None:
        """One task has failed."""
        self._scheduler.count_failure()
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """The whole call has failed; tasks that still run are ignored."""
        self._settle(False, error)

    def _settle(self, success: bool, value: Any) -> None:
        if not self._scheduler.settle(self):
            return
        try:
            self._show(success, value)
        finally:
            self._scheduler.finish(self)

    def _show(self, success: bool, value: Any) -> None:
        """Makes the outcome, a value or an exception, known to the user."""
        raise NotImplementedError

    def lift_window(self) -> None:
        """Read all input now: the pool is being joined."""


class AsyncResult(PoolJob):
    """The result of `apply_async`; safe to use from any thread."""

    def __init__(
        self,
        scheduler: "Scheduler",
        callback: Callback = None,
        error_callback: Callback = None,
        n_items: int = 1,
        chunk: int = 1,
        store: bool = False,
        owner: object = None,
    ) -> None:
        super().__init__(scheduler, n_items, chunk, store)
        self._callback = callback
        self._error_callback = error_callback
        self._owner = owner  # keeps the pool alive until the result is there
        self._success = False
        self._value: Any = None

    def ready(self) -> bool:
        """Whether the outcome is there."""
        return self.done

    def successful(self) -> bool:
        """Whether the call returned without raising. Raises ValueError before the outcome is there."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._success

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the outcome, at most `timeout` seconds."""
        if not self.done:
            self._scheduler.wait(self, timeout)

    def get(self, timeout: float | None = None) -> Any:
        """The value, or raises what the task raised; `multiprocessing.TimeoutError` after `timeout` seconds."""
        if not self.done and not self._scheduler.wait(self, timeout):
            raise timed_out()
        if self._success:
            return self._value
        try:
            raise self._value
        finally:
            del self  # no cycle of the exception, its traceback and this frame

    def _show(self, success: bool, value: Any) -> None:
        self._success = success
        self._value = value
        callback = self._callback if success else self._error_callback
        self._callback = self._error_callback = self._owner = None
        call_back(callback, value)


class MapResult(AsyncResult):
    """The result of `map_async`: a list in the order of the input, or the first failure to arrive."""

    def _deliver(self, index: int, status: int, value: Any) -> None:
        self.fail_task(index, error_of(status, value))

    def fail_task(self, index: int, error: BaseException) -> None:
        if not self.settle(index, error):
            return
        self._scheduler.count_failure()
        if self.remaining <= 0:
            self._complete()

    def _complete(self) -> None:
        if self.failure is None:
            self._settle(True, self.take_results())
        else:
            self._settle(False, self.failure)
