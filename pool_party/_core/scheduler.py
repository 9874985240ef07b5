"""Calls on their way into the channel and out of it: submitting, feeding, outcomes, the end.

Any number of threads use a scheduler at once. Calls queue in `_backlog`; whoever gets `_feeding` moves them into the
channel while there is room and looks again after releasing it, so nobody waits for another thread's pickling and no
entry is left behind. `_leading` decides who takes results, `_crew` looks after the workers. `_lock` guards the few
words that decide who does what, and is never held while foreign code runs.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any

from pool_party import _native
from pool_party._core import exit as _exit
from pool_party._core.crew import Crew
from pool_party._core.errors import PoolClosed, PoolPartyError, PoolTerminated, initializer_failed
from pool_party._core.functions import Functions, Published
from pool_party._core.interrupts import uninterrupted
from pool_party._core.leading import Leading
from pool_party._core.log import log_exception
from pool_party._core.outcomes import error_of
from pool_party._core.results import PoolJob, Ticket
from pool_party.workers.base import Setup, Worker
from pool_party.workers.thread import start_thread

if TYPE_CHECKING:
    import os

    from pool_party._core.statistics import Statistics
    from pool_party._core.streams import IMapJob
    from pool_party.observe.trace import Tracing

INIT, RUN, CLOSE, TERMINATE = "INIT", "RUN", "CLOSE", "TERMINATE"
WINDOW_PER_WORKER = 64  # tasks of an unsized imap input read ahead; guess: fills the channel's latency many times over


class _Single:
    """A task that waits for room in the channel."""

    __slots__ = ("function", "index", "job", "mode", "payload")

    def __init__(self, job: PoolJob, index: int, mode: int, function: Any, payload: Any) -> None:
        self.job = job
        self.index = index
        self.mode = mode
        self.function = function
        self.payload = payload


class _Many:
    """The tasks of a map from the job's cursor on, pickled as they are put."""

    __slots__ = ("function", "items", "job", "mode", "published")

    def __init__(self, job: PoolJob, items: list[Any], mode: int, function: Any) -> None:
        self.job = job
        self.items = items
        self.mode = mode
        self.function = function
        self.published: Published | None = None


class _InitReports(_native.Job):
    """Where workers' reports of a failed initializer arrive: job number 0."""

    def __init__(self, scheduler: "Scheduler") -> None:
        super().__init__(0, 1)
        self._scheduler = scheduler

    def _deliver(self, index: int, status: int, value: Any) -> None:
        self._scheduler.break_pool(error_of(_native.STATUS_FAILED, value))


class Scheduler:
    """The engine of a pool. Its workers are running when it is made."""

    def __init__(
        self,
        kind: str,
        n_workers: int,
        channel: _native.Channel,
        setup: Setup,
        on_broken: Callable[[BaseException], object] | None = None,
    ) -> None:
        self.kind = kind
        self.n_workers = n_workers
        self.state = INIT
        self.is_foreign = False  # we are in a child that was forked from the pool's process
        self.drains_at_exit = False  # finishes what was submitted before the interpreter ends
        self._on_broken = on_broken
        self._by_reference = kind == "thread"
        self._channel = channel
        self._functions = Functions(self._channel)
        self._jobs: dict[int, Any] = {0: _InitReports(self)}
        self._crew = Crew(kind, n_workers, setup, self._channel, self._jobs, self._is_broken, self.break_pool)
        self._leading = Leading(
            self._channel, self._jobs, self._crew.handle_events, self._feed, self._check_not_foreign
        )
        self._lock = self._leading.lock
        self._feeding = threading.Lock()
        self._backlog: deque[_Single | _Many] = deque()
        self._idle = Ticket()  # over when the pool is closed and no job is left
        self._cause: BaseException | None = None  # why the pool is broken
        self._is_abandoned = self._is_released = False  # the owner is garbage: terminate, close
        self._is_exiting = False  # the interpreter ends
        self._job_ids = itertools.count(1)
        self._n_submitted = self._n_failed = 0
        self._background = threading.Thread(target=self._run_background, name="pool_party-background")
        try:
            _native.hold_interrupts(self._start)
        except BaseException:
            _native.hold_interrupts(self._undo_start)
            raise

    def _start(self) -> None:
        self._crew.start()
        self.state = RUN
        _exit.register(self, self.kind)
        start_thread(self._background)

    def _undo_start(self) -> None:
        self._stop_now()
        self._crew.end_threads()

    # ---- submitting ----

    @property
    def is_running(self) -> bool:
        """Whether calls can be submitted."""
        return self.state == RUN and self._cause is None and not self.is_foreign

    def check_running(self) -> None:
        """Raises why nothing can be submitted, if so."""
        if self.is_running:
            return
        self._check_not_foreign()
        if self._is_broken():
            raise self._broken()
        raise PoolClosed("Pool not running")

    def _check_not_foreign(self) -> None:
        if self.is_foreign:
            raise PoolPartyError(
                "this pool belongs to the process that made it; a forked child must make a pool of its own"
            )

    def _is_broken(self) -> bool:
        return self._cause is not None

    def next_job_id(self) -> int:
        return next(self._job_ids)

    def submit_call(self, job: PoolJob, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """One call of fn. What does not pickle fails the job at once."""
        _native.hold_interrupts(self._submit_call, job, fn, args, kwargs)

    def _submit_call(self, job: PoolJob, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._admit(job, 1, fn, args)
        try:
            function, payload = self._encode_call(job, fn, args, kwargs)
        except Exception as error:
            job.fail(error)
            return
        self._enqueue(_Single(job, 0, _native.MODE_CALL, function, payload))

    def _encode_call(self, job: PoolJob, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if self._by_reference:
            return fn, (args, kwargs)
        published = self._open_function(job, fn) if self._functions.is_keepable(fn) else None
        if published is None:
            return None, self._channel.encode((fn, args, kwargs))
        return published, self._channel.encode((args, kwargs))

    def _open_function(self, job: PoolJob, fn: Any) -> Published | None:
        """Publishes the job's function if that can be done now; the job then holds it until it is finished."""
        if not self._feeding.acquire(blocking=False):
            return None
        try:
            return self._open_function_feeding(job, fn)
        finally:
            self._feeding.release()
            self._feed()  # a leader may have left it to us

    def _open_function_feeding(self, job: PoolJob, fn: Any) -> Published | None:
        published = self._functions.open(fn)
        if published is not None:
            with self._lock:
                published.n_users += 1
            job.function = published
        return published

    @uninterrupted
    def submit_map(self, job: PoolJob, fn: Any, items: list[Any], star: bool) -> None:
        """A call of fn for each item, in tasks of job.chunk items."""
        n_tasks = -(-len(items) // job.chunk)
        self._admit(job, n_tasks, fn)
        if n_tasks == 0:
            job._complete()
            return
        self._enqueue(_Many(job, items, self._mode(job, star), fn))

    def _mode(self, job: PoolJob, star: bool) -> int:
        if job.chunk == 1:
            return _native.MODE_STAR if star else _native.MODE_ITEM
        return _native.MODE_STARCHUNK if star else _native.MODE_CHUNK

    @uninterrupted
    def submit_stream(self, job: "IMapJob", fn: Any, source: Iterator[Any]) -> None:
        """A call of fn for each item of an iterator, which a thread of its own reads a window ahead."""
        self._admit(job, 0, fn)
        thread = threading.Thread(target=self._read_stream, args=(job, fn, source), name="pool_party-imap")
        start_thread(thread)

    def _read_stream(self, job: "IMapJob", fn: Any, source: Iterator[Any]) -> None:
        index = 0
        while job.wait_for_slot():
            items: list[Any] = []
            try:
                for _ in range(job.chunk):
                    items.append(next(source))
            except StopIteration:
                pass
            except BaseException as error:  # the generator's own error is the outcome of its place
                self._count(1)
                index += 1
                job.fail_task(index - 1, error)
                break
            if items:
                self._put_stream_task(job, fn, index, items)
                index += 1
            if len(items) < job.chunk:
                break
        job.end_input(index)

    def _put_stream_task(self, job: "IMapJob", fn: Any, index: int, items: list[Any]) -> None:
        self._count(1)
        if job.chunk == 1:
            call: tuple[Any, ...] = (fn, (items[0],), {})
        else:
            call = (_call_each, (fn, items), {})
        try:
            if self._by_reference:
                function, payload = call[0], call[1:]
            else:
                function, payload = None, self._channel.encode(call)
        except Exception as error:
            job.fail_task(index, error)
            return
        self._enqueue(_Single(job, index, _native.MODE_CALL, function, payload))

    def _admit(self, job: PoolJob, n_tasks: int, fn: Any, args: tuple[Any, ...] = ()) -> None:
        with self._lock:
            self.check_running()
            self._jobs[job.id] = job
            self._n_submitted += n_tasks
        if (tracing := self._crew.tracing) is not None:
            tracing.note_call(job.id, fn, args)

    def _count(self, n_tasks: int) -> None:
        with self._lock:
            self._n_submitted += n_tasks

    def _enqueue(self, entry: _Single | _Many) -> None:
        self._backlog.append(entry)
        self._feed()

    def _feed(self) -> None:
        """Moves the backlog into the channel while there is room.

        A leader that learns of new room while we hold `_feeding` leaves the feeding to us: hence the second look.
        """
        while self._backlog and self._feeding.acquire(blocking=False):
            try:
                is_full = not self._put_next()
            finally:
                self._feeding.release()
            if is_full and self._channel.is_starved:
                return

    def _put_next(self) -> bool:
        """Puts the oldest entry; False if there is no room. Only who holds `_feeding` removes entries."""
        if not self._backlog:
            return True
        entry = self._backlog[0]
        if entry.job.settled:
            complete = True
        elif isinstance(entry, _Single):
            complete = self._put_single(entry)
        else:
            complete = self._put_many(entry)
        if complete:
            self._backlog.popleft()
        return complete

    def _put_single(self, entry: _Single) -> bool:
        function = entry.function.ref if isinstance(entry.function, Published) else entry.function
        job = entry.job
        try:
            with self._lock:  # so that `cancel` sees it either outside or inside the channel
                if job.settled:
                    return True
                job.sequence = self._channel.put(job.id, entry.index, entry.mode, function, entry.payload)
        except Exception as error:
            job.fail_task(entry.index, error)
            return True
        return job.sequence >= 0

    def _put_many(self, entry: _Many) -> bool:
        function = entry.function
        try:
            if not self._by_reference:
                if entry.published is None:
                    entry.published = self._open_function_feeding(entry.job, function)
                if entry.published is None:
                    return False
                function = entry.published.ref
        except Exception as error:
            entry.job.fail(error)
            return True
        while True:
            try:
                return self._channel.put_many(entry.job, entry.items, entry.mode, function)
            except Exception as error:  # this task's argument: the others go on
                entry.job.cursor += 1
                entry.job.fail_task(entry.job.cursor - 1, error)

    # ---- waiting ----

    def wait(self, job: Ticket, timeout: float | None) -> bool:
        """Waits until a job is done; False after `timeout` seconds."""
        return _native.hold_interrupts(self._leading.wait, job, timeout)  # not `uninterrupted`, which costs a call more

    def open(self, ticket: Ticket) -> None:
        """Ends a ticket's wait."""
        self._leading.open(ticket)

    def _run_background(self) -> None:
        """Leads when results come and nobody waits for one."""
        me = get_ident()
        while not self._crew.is_over():
            self._channel.wait_background()
            if self._leading.try_lead(me):
                try:
                    self._leading.lead(None, None)
                except BaseException:
                    log_exception("delivering results failed; the pool goes on")
                finally:
                    self._leading.step_down()
            if self._is_abandoned:
                self.terminate()
            elif self._is_released:
                self.close()
        self._finish_trace()
        self._crew.end_threads()

    # ---- outcomes ----

    def settle(self, job: PoolJob) -> bool:
        """Claims the right to decide a job's outcome; False if that was done before."""
        with self._lock:
            if job.settled:
                return False
            job.settled = True
            return True

    def count_failure(self) -> None:
        with self._lock:
            self._n_failed += 1

    def finish(self, job: PoolJob) -> None:
        """The job's outcome is there and its callbacks have run: wakes who waits for it."""
        with self._lock:
            job.settled = True
            job.remaining = 0
            job.done = True
            self._jobs.pop(job.id, None)
            published, job.function = job.function, None
            if published is not None:
                published.n_users -= 1
                self._functions.close_if_unused(published)
            self._leading.wake(job)
            self._stop_if_done()
        if self._channel.has_pins and self._feeding.acquire(blocking=False):
            try:
                self._channel.unpin()
            finally:
                self._feeding.release()
            self._feed()  # a leader may have left it to us

    def _stop_if_done(self) -> None:
        if self.state != RUN and len(self._jobs) == 1 and not self._idle.done:
            self._crew.is_stopping = True
            self._channel.stop(_native.STOP_DRAIN)
            self.open(self._idle)

    @uninterrupted
    def cancel(self, job: PoolJob) -> bool:
        """Takes back a single task that no worker has begun."""
        with self._lock:
            if job.settled or (job.sequence >= 0 and not self._channel.revoke(job.sequence)):
                return False
            job.settled = True
        self.finish(job)
        return True

    def is_begun(self, job: PoolJob) -> bool:
        """Whether a worker runs the job now."""
        return any(self._channel.look(n)[2] == job.id for n in range(self.n_workers))

    # ---- workers ----

    def break_pool(self, cause: BaseException) -> None:
        """No worker can work: every pending job fails, and every later call."""
        with self._lock:
            if self._cause is not None:
                return
            self._cause = cause
        if self._on_broken is not None:
            self._on_broken(cause)
        self._crew.is_stopping = True  # we are the leader, who alone replaces workers
        self._channel.stop(_native.STOP_NOW)
        self._fail_all(self._broken)
        self._crew.terminate()

    def _broken(self) -> PoolPartyError:
        error = initializer_failed(f"the pool is broken, since no worker can be made: {self._cause!r}")
        error.__cause__ = self._cause
        return error

    def _fail_all(self, make_error: Callable[[], BaseException]) -> None:
        for job in self.jobs():
            job.fail(make_error())
        self._feed()  # drops what they had left to put

    # ---- the end ----

    @uninterrupted
    def close(self) -> None:
        """No more calls; workers end when the last one is done."""
        with self._lock:
            if self.state == RUN and not self.is_foreign:
                self.state = CLOSE
                self._stop_if_done()

    def join(self, timeout: float | None = None) -> bool:
        """Waits for the end of a closed pool; False after `timeout` seconds."""
        self._check_not_foreign()
        deadline = None if timeout is None else monotonic() + timeout
        for job in self.jobs():
            job.lift_window()
        if self.state == CLOSE and not self._is_broken() and not self.wait(self._idle, timeout):
            return False
        if not self._crew.join(deadline):
            return False
        _native.hold_interrupts(self._finish)
        return True

    def _finish(self) -> None:
        self._finish_trace()
        self._stop_threads()

    @uninterrupted
    def terminate(self) -> None:
        """Stops workers in the middle of their tasks; what is pending fails with PoolTerminated."""
        if self.is_foreign:
            return
        with self._lock:
            was, self.state = self.state, TERMINATE
        if was == TERMINATE:
            return
        self._stop_now()

    def _stop_now(self) -> None:
        self._crew.stop(_native.STOP_NOW)
        self.state = TERMINATE
        self._crew.terminate()
        if not self._is_exiting:  # else only daemon threads can wait for results: they stay where they are
            self._fail_all(lambda: PoolTerminated("Pool not running: it was terminated while this call was pending"))
        self.open(self._idle)
        self._crew.reap()
        self._finish_trace()
        if self.kind == "process" and not self._is_exiting:
            self._stop_threads()

    def _stop_threads(self) -> None:
        """After the last worker: ends the watcher and the background thread."""
        self._crew.dismiss()
        self._channel.summon()
        background = self._background
        if background.ident and background is not threading.current_thread() and not self._leading.is_mine():
            background.join()

    def end_at_exit(self) -> None:
        """Ends a forgotten pool before the interpreter ends; interpreters must have ended by then."""
        if self.drains_at_exit and not self._is_broken():
            self.close()
            self.join()
            return
        self._is_exiting = self._background.daemon
        self.terminate()
        while self.kind == "interp" and not self._crew.join(monotonic() + 0.25):
            self._crew.terminate()  # once more: a task may have swallowed the exception

    def abandon(self) -> None:
        """The pool object is garbage: the background thread terminates. Takes no lock, for any thread may collect."""
        self._is_abandoned = True
        self._channel.summon()

    def release(self) -> None:
        """The executor is garbage: as `close`, by the background thread. Takes no lock either."""
        self._is_released = True
        self._channel.summon()

    def disown(self) -> None:
        """We are in a forked child: the workers are our parent's."""
        self.is_foreign = True
        self._crew.tracing = None
        self._leading.forget()
        self._lock = self._leading.lock

    # ---- looking ----

    def trace(self, path: "str | os.PathLike[str]", max_events: int) -> "Tracing":
        """Begins to record what the workers do."""
        from pool_party.observe.trace import Tracing

        if max_events < 1:
            raise ValueError(f"max_events must be 1 or more, not {max_events}")
        about = {"kind": self.kind, "policy": self._crew.budget()[0]}
        tracing = Tracing(path, max_events, self._channel, self.n_workers, about, self._forget_trace)
        with self._lock:
            self.check_running()
            if (other := self._crew.tracing) is not None:
                raise PoolPartyError(f"this pool is being traced already, to {other.path}")
            self._crew.tracing = tracing
        try:
            tracing.start(lambda: self.workers, self._crew.budget()[1])
        except BaseException:
            self._crew.tracing = None
            raise
        if self._crew.enforcer is not None:
            self._crew.enforcer.on_grant = tracing.note_budget
        return tracing

    def _forget_trace(self) -> None:
        if self._crew.enforcer is not None:
            self._crew.enforcer.on_grant = None
        self._crew.tracing = None

    def _finish_trace(self) -> None:
        if (tracing := self._crew.tracing) is not None:
            tracing.finish()

    @property
    def workers(self) -> list[Worker]:
        """The living workers."""
        return [worker for worker in self._crew.workers if worker is not None]

    @uninterrupted
    def jobs(self) -> list[PoolJob]:
        """The calls in progress."""
        with self._lock:
            return [job for job in self._jobs.values() if isinstance(job, PoolJob)]

    @uninterrupted
    def statistics(self) -> "Statistics":
        """The counts at this moment."""
        from pool_party._core.statistics import Statistics

        with self._lock:
            pending = sum(job.remaining for job in self._jobs.values()) - 1
            return Statistics(
                self.kind,
                self.n_workers,
                self._n_submitted,
                max(0, self._n_submitted - pending),
                self._n_failed,
                pending,
                self._crew.n_started,
                self._crew.n_lost,
                *self._crew.budget(),
                self._crew.n_starting,
            )


def _call_each(fn: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """A chunk of imap."""
    return [fn(item) for item in items]
