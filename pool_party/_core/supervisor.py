"""Enforces the options of calls: the thread that ends tasks whose time is up, and the decision whether one is retried.

The thread starts with the first call that needs it, and exists once for each pool. It learns from the worker slots
which tasks run since when, so workers notify nobody. While timed calls are pending, it looks again after the shortest
of their timeouts: a task that begins between two looks cannot be due before the second. Otherwise it sleeps.

Each attempt of a task is decided once, by the thread of the supervisor if its time is up, and by the background thread
if it has failed. Which of the two it is, is found out under `_deciding`, a lock under which no code of the user's runs.
"""

import contextlib
import heapq
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from signal import SIGKILL, SIGTERM
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from pool_party import _native
from pool_party._core.options import Again, Exceptions, Options, Supervision
from pool_party._core.places import task_of
from pool_party._ground.broken import TaskTimeout, WorkerLost
from pool_party._ground.log import log_exception
from pool_party._ground.threads import PoolThread, start_thread
from pool_party._workers.loop import safe_repr

if TYPE_CHECKING:
    from pool_party._core.remote_slots import RemoteSlots
    from pool_party._core.results import Call
    from pool_party._core.submit import Submitter
    from pool_party._core.workers import WorkerSet

GRACE_S = 1.0  # from SIGTERM to SIGKILL
RETRY_S = 0.005  # until something is tried again for which no notification will come
REVIEW_S = 1.0  # between reviews of all pending calls, at least; guess
REVIEW_PART = 100  # reviews take at most one part in so many of the time
NEVER = float("inf")

type Held = tuple[int, int, int]  # the task that a worker runs: id of its call, index, begun_ns


def supervision_of(call: "Call") -> Supervision:
    """Return what is known of a call that has options."""
    assert call.supervision is not None, "the supervisor looks at no other calls"
    return call.supervision


def _timeout_of(call: Any) -> float:
    """Return the timeout of a pending call; NEVER if no task of it can become due."""
    supervision: Supervision | None = getattr(call, "supervision", None)
    if (
        supervision is None
        or supervision.options.timeout_s is None
        or (getattr(call, "is_fed", False) and call.remaining == 0)
    ):
        return NEVER
    return supervision.options.timeout_s


def _is_of(error: BaseException, retry_on: Exceptions | None) -> bool:
    try:
        return isinstance(error, WorkerLost if retry_on is None else retry_on)
    except Exception:  # of a metaclass of the user's
        log_exception("it could not be checked whether a task is to be tried again; it is not")
        return False


def _note_causes(error: BaseException, causes: list[BaseException]) -> None:
    """Add to an error why earlier attempts of its task have failed."""
    with contextlib.suppress(Exception):  # the class of the error is the user's, and may refuse notes
        for n, cause in enumerate(causes, 1):
            error.add_note(f"attempt {n} of {len(causes) + 1} failed: {safe_repr(cause)}")


class _Overdue:
    """A task that goes on although its call has its outcome. It is interrupted, or its process killed."""

    __slots__ = ("at_s", "held", "is_killed")

    def __init__(self, held: Held, at_s: float, is_killed: bool) -> None:
        self.held = held
        self.at_s = at_s  # when to do the next step; NEVER: all was done
        self.is_killed = is_killed  # the next step is SIGKILL, not SIGTERM


class Supervisor:
    """Enforces the options of a pool's calls. Any thread may call methods, unless their heading says otherwise."""

    def __init__(
        self, channel: _native.Channel, submitter: "Submitter", workers: "WorkerSet | RemoteSlots", kind: str
    ) -> None:
        self.n_retried = 0
        self._channel = channel
        self._submitter = submitter
        self._workers = workers
        self._is_process = kind == "process"
        self._thread: threading.Thread | None = None
        self._inbox: SimpleQueue[Callable[[], object] | None] = SimpleQueue()  # its `put` may be called by a handler
        self._deciding = threading.Lock()
        self._again: deque[tuple[Call, int]] = deque()  # tasks that the background thread is to submit again
        # The rest is the supervising thread's own; other threads only read `_shortest_s` and copy `_overdue`.
        self._shortest_s = NEVER  # no pending call has a shorter timeout
        self._deadlines: list[tuple[float, int, weakref.ref[Call]]] = []  # a heap
        self._ending: dict[int, tuple[Call, bool]] = {}  # id -> a settled call with tasks to end; whether by SIGKILL
        self._overdue: dict[int, _Overdue] = {}  # worker -> the task that it is to give up
        self._reviewed_s = monotonic()
        self._review_after_s = REVIEW_S

    # ---- calls ----

    def oversee(self, call: "Call", options: Options, again: Again, kept: dict[int, Any] | None = None) -> None:
        """Prepare a call with options, before it is admitted. Raises RuntimeError if no thread can start.

        again, kept: see `Supervision`.
        """
        call.supervision = Supervision(options, again, kept)
        call.is_timed = True
        if options.retries:
            self._channel.intercept(call, _native.INTERCEPT_FAILURES)
        if options.deadline_s is not None or options.timeout_s is not None:
            self._start()

    def note_admitted(self, call: "Call") -> None:
        """Begin to watch the time of a call that `oversee` has prepared."""
        supervision = supervision_of(call)
        timeout_s = supervision.options.timeout_s
        if supervision.due_s is not None and call.id:  # a call that could not be encoded has its outcome, and no id
            self._inbox.put(partial(self._add_deadline, supervision.due_s, call.id, weakref.ref(call)))
        # The call is in the table before this check. So either it is seen here that `_review` has raised the figure,
        # or `_review`, which raises it before it reads the table, finds the call.
        if timeout_s is not None and timeout_s < self._shortest_s:
            self._inbox.put(partial(self._shorten, timeout_s))

    def kill(self, call: "Call") -> bool:
        """Cancel a call, and kill the processes that run its tasks. Return False if it has its outcome."""
        self._start()
        if not self._channel.settle(call, _native.STATUS_CANCELLED, None):
            return False
        self._inbox.put(partial(self._end_tasks, call, True))
        return True

    def n_overdue(self) -> int:
        """Return the number of tasks that still run although their time is up."""
        return sum(self._runs(n, overdue.held) for n, overdue in self._overdue.copy().items())

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = PoolThread(self._run, "pool_party-supervisor", self._channel)
        if self.__dict__.setdefault("_started", thread) is thread:  # of several callers, the first starts it
            try:
                start_thread(thread)
            except BaseException:
                del self.__dict__["_started"]
                raise
            self._thread = thread

    # ---- for the background thread ----

    def attend(self) -> None:
        """Decide about outcomes that were kept back, and submit again what is to be tried again."""
        for call, index, status, value, n in self._channel.take_intercepted():
            self.note_outcome(call, index, status, value, n)
        while self._again:
            self._submitter.add_again(*self._again.popleft())

    def note_outcome(self, call: "Call", index: int, status: int, value: Any, n: int) -> None:
        """Decide about the outcome of an attempt that worker n has made: it is delivered, tried again, or dropped."""
        superseded = supervision_of(call).superseded
        with self._deciding:
            if (n, index) in superseded:
                superseded.discard((n, index))
                return
        if status == _native.STATUS_OK:
            self._channel.deliver(call, index, status, value)
        else:
            self._fail(call, index, call.error_from(index, status, value))

    def end(self) -> None:
        """End the thread, before the channel is closed.

        If it runs a finalizer of the user's that itself waits for the pool's end, it is not waited for.
        """
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join(GRACE_S)

    # ---- decisions ----

    def _fail(self, call: "Call", index: int, error: BaseException) -> None:
        """Have a task tried again that has failed, or make the error its outcome.

        The attempt is nobody else's to decide: it has ended, or is superseded.
        """
        supervision = supervision_of(call)
        causes = supervision.causes.get(index, [])
        if (
            len(causes) < supervision.options.retries
            and _is_of(error, supervision.options.retry_on)
            and not call.settled
        ):
            supervision.causes.setdefault(index, causes).append(error)
            self.n_retried += 1
            self._again.append((call, index))
            self._channel.notify()
            return
        supervision.causes.pop(index, None)
        _note_causes(error, causes)
        self._channel.deliver(call, index, _native.STATUS_RAISED, error)

    def _time_out(self, n: int, call: "Call", held: Held) -> None:
        """Fail the attempt that worker n is making, unless it has ended just now."""
        supervision = supervision_of(call)
        with self._deciding:
            self._channel.intercept(call, _native.INTERCEPT_ALL)  # from here on its outcome comes to `note_outcome`,
            if not self._runs(n, held):  # unless it was on its way before
                return
            supervision.superseded.add((n, held[1]))
        self._give_up(n, held, kills=False)
        task = task_of(call, held[1], call.engine.quotes)
        self._fail(
            call, held[1], TaskTimeout(f"the task ran for more than {supervision.options.timeout_s:g} s: {task}")
        )

    # ---- the thread ----

    def _run(self) -> None:
        pause_s = 0.0
        while True:
            try:
                if not self._take_requests(pause_s):
                    return
                pause_s = self._look()
            except BaseException:
                log_exception("watching the time of tasks failed; it goes on")
                pause_s = REVIEW_S

    def _take_requests(self, pause_s: float) -> bool:
        """Carry out the requests of other threads, after a pause without one. Return False to end the thread."""
        try:
            request = self._inbox.get(
                timeout=None if pause_s == NEVER else min(max(0.0, pause_s), threading.TIMEOUT_MAX)
            )
            while request is not None:
                request()
                request = self._inbox.get_nowait()
        except Empty:
            return True
        return False

    def _add_deadline(self, due_s: float, call_id: int, call: "weakref.ref[Call]") -> None:
        heapq.heappush(self._deadlines, (due_s, call_id, call))

    def _shorten(self, timeout_s: float) -> None:
        self._shortest_s = min(self._shortest_s, timeout_s)

    def _look(self) -> float:
        """Do what is due. Return the seconds until something may be due again."""
        now_s = monotonic()
        while self._deadlines and self._deadlines[0][0] <= now_s:
            self._miss_deadline(heapq.heappop(self._deadlines)[2]())
        next_s = self._deadlines[0][0] if self._deadlines else NEVER
        if self._shortest_s < NEVER:
            next_s = min(next_s, now_s + self._shortest_s, self._look_at_workers(now_s))
        if self._ending:
            self._find_tasks_to_end()
            next_s = min(next_s, now_s + RETRY_S if self._ending else NEVER)
        next_s = min(next_s, self._press())
        if now_s >= self._reviewed_s + self._review_after_s:
            self._review()
        return next_s - monotonic()

    def _look_at_workers(self, now_s: float) -> float:
        """Time out tasks. Return when the next of those that run will be due."""
        next_s = NEVER
        for n in range(len(self._workers.slots)):
            if (task := self._channel.task_of(n)) is None:
                continue
            held, call = task[:3], task[3]
            supervision: Supervision | None = getattr(call, "supervision", None)
            if (
                supervision is None
                or supervision.options.timeout_s is None
                or call.settled
                or (n, held[1]) in supervision.superseded
            ):
                continue
            due_s = held[2] / 1e9 + supervision.options.timeout_s
            if due_s <= now_s:
                self._time_out(n, call, held)
            else:
                next_s = min(next_s, due_s)
        return next_s

    def _miss_deadline(self, call: "Call | None") -> None:
        if call is None or call.settled:
            return
        supervision = supervision_of(call)
        error = TaskTimeout(f"the deadline has passed: {supervision.options.deadline_s:g} s after the call")
        if not call.has_parts:
            _note_causes(error, supervision.causes.get(0, []))
        if self._channel.settle(call, _native.STATUS_RAISED, error):
            self._end_tasks(call, kills=False)

    def _end_tasks(self, call: "Call", kills: bool) -> None:
        """Withdraw the tasks of a settled call that no worker has begun, and end the others."""
        self._channel.revoke(call)
        self._ending[call.id] = call, kills

    def _find_tasks_to_end(self) -> None:
        """Give up the tasks of settled calls. One that was just claimed may not be entered in its worker's slot yet."""
        for call, kills in list(self._ending.values()):
            is_complete = True
            for n in self._channel.holders(call) or ():
                task = self._channel.task_of(n)
                if task is None or task[0] != call.id:
                    is_complete = False
                elif n not in self._overdue or self._overdue[n].held != task[:3]:
                    self._give_up(n, task[:3], kills)
            if is_complete:
                del self._ending[call.id]

    def _review(self) -> None:
        """Forget what calls that are done have asked for, by looking at all that are pending."""
        begin_s = perf_counter()
        if self._shortest_s < NEVER:
            self._shortest_s = NEVER
            self._shorten(min(map(_timeout_of, self._channel.jobs()), default=NEVER))
        self._deadlines = [entry for entry in self._deadlines if (call := entry[2]()) is not None and not call.settled]
        heapq.heapify(self._deadlines)
        self._reviewed_s = monotonic()
        self._review_after_s = max(REVIEW_S, REVIEW_PART * (perf_counter() - begin_s))

    # ---- tasks that are to end ----

    def _runs(self, n: int, held: Held) -> bool:
        """Whether worker n still runs this task, and has not answered."""
        task = self._channel.task_of(n)
        return task is not None and task[:3] == held

    def _give_up(self, n: int, held: Held, kills: bool) -> None:
        self._overdue[n] = _Overdue(held, monotonic(), kills)

    def _press(self) -> float:
        """Interrupt or kill the workers of tasks that are to end. Return when to do so again."""
        for n, overdue in list(self._overdue.items()):
            if overdue.at_s <= monotonic():
                self._press_one(n, overdue)
        return min((overdue.at_s for overdue in self._overdue.values()), default=NEVER)

    def _press_one(self, n: int, overdue: _Overdue) -> None:
        if not self._runs(n, overdue.held):
            del self._overdue[n]
        elif not self._is_process:
            is_done = self._workers.interrupt_task(n, overdue.held[2])
            overdue.at_s = NEVER if is_done else monotonic() + RETRY_S
        elif not self._workers.kill_if(
            n, partial(self._runs, n, overdue.held), SIGKILL if overdue.is_killed else SIGTERM, RETRY_S
        ):
            overdue.at_s = monotonic() + RETRY_S  # it could not be stopped in time: it may be inside a system call
        else:
            overdue.at_s = NEVER if overdue.is_killed else monotonic() + GRACE_S
            overdue.is_killed = True
