"""The iterators of `imap` and `imap_unordered`, and the calls behind them."""

import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from pool_party import _native
from pool_party._core.interrupts import uninterrupted
from pool_party._core.outcomes import error_of
from pool_party._core.results import PoolJob, Ticket, timed_out

if TYPE_CHECKING:
    from pool_party._core.scheduler import Scheduler


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

    @uninterrupted
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
            self.fail_task(index, error_of(status, value))

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

    @uninterrupted
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
                raise timed_out()
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
