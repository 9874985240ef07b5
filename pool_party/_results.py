"""What calls return: AsyncResult, MapResult and the iterators of imap.

Each is a Job of the channel: `_deliver` and `_complete` are called by whichever thread leads (takes results). Outcomes
are settled once, under the scheduler's lock; callbacks run before waiters wake, as in `multiprocessing.Pool`.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from pool_party import _native

if TYPE_CHECKING:
    from pool_party._scheduler import Scheduler

_log = logging.getLogger("pool_party")

type Callback = Callable[[Any], object] | None


def _timed_out() -> Exception:
    from multiprocessing import TimeoutError

    return TimeoutError()


def call_back(callback: Callback, value: Any) -> None:
    """Calls a user's callback; what it raises is logged, since nobody waits for it."""
    if callback is None:
        return
    try:
        callback(value)
    except KeyboardInterrupt:
        raise
    except BaseException:
        _log.exception("a callback raised; the pool goes on")


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
        raise NotImplementedError

    def _complete(self) -> None:
        raise NotImplementedError

    def fail_task(self, index: int, error: BaseException) -> None:
        """One task has failed."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """The whole call has failed; tasks that still run are ignored."""
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
            raise _timed_out()
        if self._success:
            return self._value
        try:
            raise self._value
        finally:
            del self  # no cycle of the exception, its traceback and this frame

    def _deliver(self, index: int, status: int, value: Any) -> None:
        if status == _native.STATUS_OK:
            self._settle(True, value)
        else:
            self.fail_task(index, self._scheduler.error_of(status, value))

    def fail_task(self, index: int, error: BaseException) -> None:
        self._scheduler.count_failure()
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        self._settle(False, error)

    def _settle(self, success: bool, value: Any) -> None:
        if not self._scheduler.settle(self):
            return
        self._success = success
        self._value = value
        callback = self._callback if success else self._error_callback
        self._callback = self._error_callback = self._owner = None
        try:
            call_back(callback, value)
        finally:
            self._scheduler.finish(self)


class MapResult(AsyncResult):
    """The result of `map_async`: a list in the order of the input, or the first failure to arrive."""

    def _deliver(self, index: int, status: int, value: Any) -> None:
        self.fail_task(index, self._scheduler.error_of(status, value))

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


class IMapJob(PoolJob):
    """An imap in progress. Tasks that are delivered but not yet asked for wait in `_arrived`."""

    def __init__(self, scheduler: "Scheduler", n_items: int, chunk: int, ordered: bool, window: int | None) -> None:
        super().__init__(scheduler, n_items, chunk)
        self._ordered = ordered
        self._lock = threading.Lock()
        self._arrived: dict[int, tuple[bool, Any]] = {}
        self._n_delivered = 0
        self._next = 0
        self._length: int | None = self.remaining if window is None else None
        self._failure: BaseException | None = None
        self._ticket: Ticket | None = None
        self._slots = None if window is None else threading.Semaphore(window)
        self.is_lifted = False
        self.remaining = 1  # until it is finished: tasks are counted here, not by the channel

    # ---- the input ----

    def wait_for_slot(self) -> bool:
        """Waits, as feeder, until one more task may be read; False if nobody wants it any more."""
        if self._slots is not None and not self.is_lifted:
            self._slots.acquire()
        return not (self.settled or self.is_abandoned)

    def end_input(self, length: int) -> None:
        """The input had `length` tasks."""
        with self._lock:
            if self.settled:
                return
            self._length = length
            self._wake()
        self._finish_if_done()

    def lift_window(self) -> None:
        self.is_lifted = True
        if self._slots is not None:
            self._slots.release()

    def abandon(self) -> None:
        """Nobody will ask for results any more: reads no more input."""
        self.is_abandoned = True
        if self._slots is not None:
            self._slots.release()

    # ---- outcomes ----

    def _deliver(self, index: int, status: int, value: Any) -> None:
        if status == _native.STATUS_OK:
            self._arrive(index, True, value)
        else:
            self.fail_task(index, self._scheduler.error_of(status, value))

    def fail_task(self, index: int, error: BaseException) -> None:
        self._scheduler.count_failure()
        self._arrive(index, False, error)

    def _arrive(self, index: int, success: bool, value: Any) -> None:
        with self._lock:
            if index in self._arrived or (self._ordered and index < self._next):
                return
            self._n_delivered += 1
            if not self.is_abandoned:
                self._arrived[index] = success, value
            if not self._ordered or index == self._next:
                self._wake()
        self._finish_if_done()

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self._length is None or self._n_delivered < self._length:
                self._failure = error
            self._length = self._n_delivered
            self._wake()
        self.abandon()
        self._finish_if_done()

    def _wake(self) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._scheduler.open(ticket)

    def _complete(self) -> None:
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if self._length is not None and self._n_delivered >= self._length and self._scheduler.settle(self):
            self._scheduler.finish(self)

    # ---- the consumer ----

    def next_task(self, timeout: float | None) -> tuple[bool, Any] | None:
        """The next task's outcome, or None at the end."""
        while True:
            with self._lock:
                found = self._take()
                if found is not None:
                    break
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    return False, failure
                if self._length is not None and self._n_delivered >= self._length and not self._arrived:
                    return None
                self._ticket = ticket = Ticket()
            if not self._scheduler.wait(ticket, timeout):
                raise _timed_out()
        if self._slots is not None:
            self._slots.release()
        return found

    def _take(self) -> tuple[bool, Any] | None:
        index = self._next if self._ordered else next(iter(self._arrived), -1)
        found = self._arrived.pop(index, None)
        if found is not None:
            self._next += 1
        return found


class IMapIterator(Iterator[Any]):
    """Iterator over the results of `imap` and `imap_unordered`; used by one thread at a time."""

    def __init__(self, job: IMapJob, owner: object) -> None:
        self._job = job
        self._owner = owner
        self._items: deque[Any] = deque()

    def __iter__(self) -> "IMapIterator":
        return self

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout: float | None = None) -> Any:
        """The next result. Raises `multiprocessing.TimeoutError` after `timeout` seconds, StopIteration at the end.

        A task's exception is raised in its place; the iteration can go on after it.
        """
        while not self._items:
            outcome = self._job.next_task(timeout)
            if outcome is None:
                self._owner = None
                raise StopIteration
            success, value = outcome
            if not success:
                raise cast(BaseException, value)
            if self._job.chunk == 1:
                return value
            self._items.extend(value)
        return self._items.popleft()

    def __del__(self) -> None:
        job = self.__dict__.get("_job")
        if job is not None:
            job.abandon()
