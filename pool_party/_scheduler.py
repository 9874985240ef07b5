"""Who runs what: puts tasks into the channel, sees to it that somebody takes results, buries and replaces workers.

Any number of threads use a scheduler at once:

- *Putting.* Calls queue in `_backlog`; whoever gets `_feeding` moves them into the channel while there is room and looks
  again after releasing it, so nobody waits for another thread's pickling and no entry is left behind.
- *Taking.* One thread at a time is the *leader*: it takes results, settles jobs, runs callbacks and handles workers'
  events. A thread that waits for a result leads if nobody does, so a round trip needs no other thread. When it has what
  it wants, the longest-waiting thread leads, else the background thread, which sleeps in the channel all the while.
- `_lock` guards the few words that decide who does what, and is never held while foreign code runs.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import get_ident
from time import monotonic
from typing import Any

from pool_party import _exit, _native
from pool_party._errors import (
    InitializerFailed,
    PoolClosed,
    PoolPartyError,
    PoolTerminated,
    RemoteError,
    WorkerLost,
    describe_exit,
)
from pool_party._functions import Functions, Published
from pool_party._results import AsyncResult, IMapJob, PoolJob, Ticket
from pool_party.workers._base import Setup, Worker
from pool_party.workers.thread import start_thread

_log = logging.getLogger("pool_party")

INIT, RUN, CLOSE, TERMINATE = "INIT", "RUN", "CLOSE", "TERMINATE"
PUMP_DONE, PUMP_TIMEOUT, PUMP_EVENT, PUMP_ROOM = range(4)  # mirrors native/parent.c
WINDOW_PER_WORKER = 64  # tasks of an unsized imap input read ahead; guess: fills the channel's latency many times over
GRACE_S = 1.0  # how long terminate waits for idle threads and interpreters; they end in some ms
KILL_AFTER_S = 3.0  # how long a worker process may take to obey SIGTERM


@dataclass(frozen=True)
class Statistics:
    """A pool's counts at one moment. Tasks are what workers are handed: a chunk of a map is one task."""

    kind: str
    n_workers: int
    n_submitted: int
    n_completed: int
    n_failed: int
    n_pending: int
    n_workers_started: int
    n_workers_lost: int


@dataclass(eq=False)
class _Single:
    """A task that waits for room in the channel."""

    job: PoolJob
    index: int
    mode: int
    function: Any
    payload: Any


@dataclass(eq=False)
class _Many:
    """The tasks of a map from the job's cursor on, pickled as they are put."""

    job: PoolJob
    items: list[Any]
    mode: int
    function: Any
    published: Published | None = None


class _InitReports(_native.Job):
    """Where workers' reports of a failed initializer arrive: job number 0."""

    def __init__(self, scheduler: "Scheduler") -> None:
        super().__init__(0, 1)
        self._scheduler = scheduler

    def _deliver(self, index: int, status: int, value: Any) -> None:
        self._scheduler.break_pool(self._scheduler.error_of(_native.STATUS_FAILED, value))


def _worker_class(kind: str) -> type[Worker]:
    if kind == "thread":
        from pool_party.workers.thread import ThreadWorker

        return ThreadWorker
    if kind == "interp":
        from pool_party.workers.interp import InterpreterWorker

        return InterpreterWorker
    from pool_party.workers.process import ProcessWorker

    return ProcessWorker


class Scheduler:
    """The engine of a pool. Its workers are running when it is made."""

    def __init__(
        self, kind: str, n_workers: int, setup: Setup, on_broken: Callable[[BaseException], object] | None = None
    ) -> None:
        self.kind = kind
        self.n_workers = n_workers
        self.state = INIT
        self.workers: list[Worker | None] = [None] * n_workers
        self._setup = setup
        self._on_broken = on_broken
        self._worker_class = _worker_class(kind)
        self._by_reference = kind == "thread"
        self._channel = _native.Channel(n_workers, self._by_reference)
        self._functions = Functions(self._channel)
        self._lock = threading.RLock()
        self._feeding = threading.Lock()
        self._starting = threading.Lock()  # held while a worker is started: after a stop, none is
        self._backlog: deque[_Single | _Many] = deque()
        self._jobs: dict[int, Any] = {0: _InitReports(self)}
        self._leader: object = None  # a thread's ident, or the lock that a follower waits on
        self._followers: deque[Any] = deque()
        self._idle = Ticket()  # over when the pool is closed and no job is left
        self._dead: deque[Worker] = deque()
        self._cause: BaseException | None = None  # why the pool is broken
        self.is_foreign = False  # we are in a child that was forked from the pool's process
        self._is_abandoned = self._is_released = False  # the owner is garbage: terminate, close
        self._is_stopping = False  # workers were told to end
        self._is_exiting = False  # the interpreter ends
        self.drains_at_exit = False  # finishes what was submitted before the interpreter ends
        self._last_job_id = 0
        self._n_submitted = self._n_failed = self._n_started = self._n_lost = self._n_false_starts = 0
        self._watcher: Any = None
        try:
            self._start_workers()
        except BaseException:
            self._stop_now()
            raise
        self.state = RUN
        self._background = threading.Thread(target=self._run_background, name="pool_party-background")
        _exit.register(self, kind)
        start_thread(self._background)

    # ---- submitting ----

    @property
    def is_running(self) -> bool:
        """Whether calls can be submitted."""
        return self.state == RUN and self._cause is None and not self.is_foreign

    def check_running(self) -> None:
        """Raises why nothing can be submitted, if so."""
        if self.is_running:
            return
        if self.is_foreign:
            raise PoolPartyError(
                "this pool belongs to the process that made it; a forked child must make a pool of its own"
            )
        if self._cause is not None:
            raise self._broken()
        raise PoolClosed("Pool not running")

    def next_job_id(self) -> int:
        with self._lock:
            self._last_job_id += 1
            return self._last_job_id

    def submit_call(self, job: PoolJob, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """One call of fn. What does not pickle fails the job at once."""
        self._admit(job, 1)
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

    def _open_function_feeding(self, job: PoolJob, fn: Any) -> Published | None:
        published = self._functions.open(fn)
        if published is not None:
            with self._lock:
                published.n_users += 1
            job.function = published
        return published

    def submit_map(self, job: PoolJob, fn: Any, items: list[Any], star: bool) -> None:
        """A call of fn for each item, in tasks of job.chunk items."""
        n_tasks = -(-len(items) // job.chunk)
        self._admit(job, n_tasks)
        if n_tasks == 0:
            job._complete()
            return
        self._enqueue(_Many(job, items, self._mode(job, star), fn))

    def _mode(self, job: PoolJob, star: bool) -> int:
        if job.chunk == 1:
            return _native.MODE_STAR if star else _native.MODE_ITEM
        return _native.MODE_STARCHUNK if star else _native.MODE_CHUNK

    def submit_stream(self, job: IMapJob, fn: Any, source: Iterator[Any]) -> None:
        """A call of fn for each item of an iterator, which a thread of its own reads a window ahead."""
        self._admit(job, 0)
        thread = threading.Thread(target=self._read_stream, args=(job, fn, source), name="pool_party-imap")
        start_thread(thread)

    def _read_stream(self, job: IMapJob, fn: Any, source: Iterator[Any]) -> None:
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

    def _put_stream_task(self, job: IMapJob, fn: Any, index: int, items: list[Any]) -> None:
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

    def _admit(self, job: PoolJob, n_tasks: int) -> None:
        with self._lock:
            self.check_running()
            self._jobs[job.id] = job
            self._n_submitted += n_tasks

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
        """Waits until the job is done, as leader if nobody leads; False after `timeout` seconds."""
        deadline = None if timeout is None else monotonic() + max(0.0, timeout)
        me = get_ident()
        is_nested = self._leader == me  # called by foreign code that we, the leader, run
        try:
            while not job.done and not (is_nested and job.settled):  # settled: in its own callback
                if self.is_foreign:
                    self.check_running()
                left = None if deadline is None else max(0.0, deadline - monotonic())
                if is_nested or self._try_lead(me):
                    if not self._lead(job, left):
                        return False
                elif not self._follow(job, me, left):
                    return False
            return True
        finally:
            if not is_nested and self._leader == me:
                self._step_down()

    def _try_lead(self, me: int) -> bool:
        with self._lock:
            if self._leader is None:
                self._leader = me
                self._channel.lead()
            return self._leader == me

    def _lead(self, job: Ticket | None, timeout: float | None) -> bool:
        while True:
            code = self._channel.pump(self._jobs, job, timeout)
            if code == PUMP_EVENT:
                self._handle_events()
            elif code == PUMP_ROOM:
                self._feed()
            else:
                return code == PUMP_DONE

    def _follow(self, job: Ticket, me: int, timeout: float | None) -> bool:
        """Waits for the job or for the lead. False after `timeout` seconds without either."""
        waiter = threading.Lock()
        waiter.acquire()
        with self._lock:
            if job.done or self._leader is None:
                return True
            job.waiters.append(waiter)
            self._followers.append(waiter)
        try:
            return waiter.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))
        finally:
            with self._lock:
                if waiter in job.waiters:
                    job.waiters.remove(waiter)
                if waiter in self._followers:
                    self._followers.remove(waiter)
                if self._leader is waiter:
                    self._leader = me

    def _step_down(self) -> None:
        with self._lock:
            if self._followers:
                waiter = self._followers.popleft()
                self._leader = waiter
                _release(waiter)
            else:
                self._leader = None
                self._channel.step_down()

    def open(self, ticket: Ticket) -> None:
        """Ends a ticket's wait."""
        with self._lock:
            ticket.done = True
            self._wake(ticket)

    def _wake(self, job: Ticket) -> None:
        for waiter in job.waiters:
            _release(waiter)
        if self._leader is not None and self._leader != get_ident():
            self._channel.announce()  # it may be the leader that waits for this job, asleep in the channel

    def _run_background(self) -> None:
        """Leads when results come and nobody waits for one."""
        me = get_ident()
        while not self._is_over():
            self._channel.wait_background()
            if self._is_abandoned and self.state != TERMINATE:
                self.terminate()
            elif self._is_released:
                self.close()
            if self._try_lead(me):
                try:
                    self._lead(None, None)
                except BaseException:
                    _log.exception("delivering results failed; the pool goes on")
                finally:
                    self._step_down()
        if self._watcher is not None:
            self._watcher.stop()

    def _is_over(self) -> bool:
        return self._is_stopping and not any(self.workers)

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
            self._wake(job)
            self._stop_if_done()

    def _stop_if_done(self) -> None:
        if self.state != RUN and len(self._jobs) == 1 and not self._idle.done:
            self._is_stopping = True
            self._channel.stop(_native.STOP_DRAIN)
            self.open(self._idle)

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

    def error_of(self, status: int, value: Any) -> BaseException:
        """The exception for a task's outcome that is no result."""
        if status == _native.STATUS_FAILED:
            return value if isinstance(value, BaseException) else _rebuild(*value)
        from multiprocessing.pool import MaybeEncodingError

        if status == _native.STATUS_UNENCODABLE:
            return MaybeEncodingError(_Verbatim(value[0]), _Verbatim(value[1]))
        error = RemoteError(f"the result of a task could not be unpickled here: {value!r}")
        error.__cause__ = value
        return error

    # ---- workers ----

    def _start_workers(self) -> None:
        if self.kind == "process":
            from pool_party.workers.watcher import Watcher

            self._watcher = Watcher(self._report_death)
        for n in range(self.n_workers):
            self._start_worker(n)
        if self._watcher is not None:
            self._watcher.start()

    def _start_worker(self, n: int) -> None:
        self._channel.open_lane(n)
        worker = self._worker_class(self._channel, n, self._setup)
        self.workers[n] = worker
        self._n_started += 1
        if self._watcher is not None:
            self._watcher.watch(worker)

    def _report_death(self, worker: Worker) -> None:
        """Called by the watcher's thread."""
        self._dead.append(worker)
        self._channel.announce()

    def _handle_events(self) -> None:
        """As leader: notes which workers are ready, buries those that have ended, replaces them."""
        if not self._channel.take_events():
            return
        for worker in self.workers:
            if worker is None or worker.was_ready:
                continue
            if self._channel.look(worker.n)[0] in (_native.LANE_READY, _native.LANE_EXITED):
                worker.was_ready = self._channel.look(worker.n)[0] == _native.LANE_READY
                self._n_false_starts = 0 if worker.was_ready else self._n_false_starts
        ended = [worker for worker in self.workers if worker is not None and self._has_ended(worker)]
        ended.extend(self._dead.copy())
        if not ended:
            return
        try:
            self._channel.pump(self._jobs)  # their last results, which came before their end
            for worker in ended:
                self._bury(worker)
        except BaseException:
            self._channel.announce()  # a signal came between: whoever leads next begins again
            raise

    def _has_ended(self, worker: Worker) -> bool:
        """Processes are reported by the watcher, once they are really dead."""
        return worker.sentinel is None and self._channel.look(worker.n)[0] == _native.LANE_EXITED

    def _bury(self, worker: Worker) -> None:
        if self.workers[worker.n] is not worker:
            return
        worker.join()
        if worker in self._dead:
            self._dead.remove(worker)
        n_done = self._channel.look(worker.n)[1]
        lost = self._channel.bury(worker.n)
        self.workers[worker.n] = None
        job = self._jobs.get(lost[0]) if lost else None
        if lost and job is not None:
            self._n_lost += 1
            job.fail_task(lost[1], self._loss(worker))
        elif worker.exitcode:
            self._n_lost += 1
        if self._is_stopping or self._cause is not None:
            self._channel.announce() if self._is_over() else None
            return
        if not worker.was_ready and n_done == 0:
            self._note_false_start(worker)
        if self._cause is None:
            self._replace(worker.n)

    def _loss(self, worker: Worker) -> WorkerLost:
        return WorkerLost(
            f"worker {worker.name} (pid {worker.pid}) {describe_exit(worker.exitcode)} while it ran this task; "
            "the pool has replaced it and other tasks are not affected",
            worker.pid,
            worker.exitcode,
        )

    def _note_false_start(self, worker: Worker) -> None:
        """Gives up when workers die again and again before they are ready."""
        self._n_false_starts += 1
        if self._n_false_starts <= max(3, self.n_workers):
            return
        reason = getattr(worker, "error", "") or f"the last one {describe_exit(worker.exitcode)}"
        self.break_pool(
            WorkerLost(
                f"{self._n_false_starts} workers in a row ended before their initializer had run; {reason}. "
                "With the start methods spawn and forkserver a script must make its pool under "
                'if __name__ == "__main__"',
                worker.pid,
                worker.exitcode,
            )
        )

    def _replace(self, n: int) -> None:
        try:
            with self._starting:
                if not self._is_stopping:
                    self._start_worker(n)
        except Exception as error:
            _log.exception("a worker could not be replaced")
            if not any(self.workers):
                self.break_pool(error)

    def break_pool(self, cause: BaseException) -> None:
        """No worker can work: every pending job fails, and every later call."""
        with self._lock:
            if self._cause is not None:
                return
            self._cause = cause
        if self._on_broken is not None:
            self._on_broken(cause)
        self._is_stopping = True  # we are the leader, who alone replaces workers
        self._channel.stop(_native.STOP_NOW)
        self._fail_all(self._broken)
        for worker in self.workers:
            if worker is not None:
                worker.terminate()

    def _broken(self) -> InitializerFailed:
        error = InitializerFailed(f"the pool is broken, since its initializer failed: {self._cause!r}")
        error.__cause__ = self._cause
        return error

    def _fail_all(self, make_error: Callable[[], BaseException]) -> None:
        for job in self.jobs():
            job.fail(make_error())
        self._feed()  # drops what they had left to put

    # ---- the end ----

    def close(self) -> None:
        """No more calls; workers end when the last one is done."""
        with self._lock:
            if self.state == RUN and not self.is_foreign:
                self.state = CLOSE
                self._stop_if_done()

    def join(self, timeout: float | None = None) -> bool:
        """Waits for the end of a closed pool; False after `timeout` seconds."""
        if self.is_foreign:
            self.check_running()
        deadline = None if timeout is None else monotonic() + timeout
        for job in self.jobs():
            job.lift_window()
        if self.state == CLOSE and self._cause is None and not self.wait(self._idle, timeout):
            return False
        for worker in list(self.workers):
            left = None if deadline is None else max(0.0, deadline - monotonic())
            if worker is not None and not worker.join(left):
                return False
        self._stop_threads()
        return True

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
        with self._starting:
            self._is_stopping = True
        self._channel.stop(_native.STOP_NOW)
        self.state = TERMINATE
        workers = [worker for worker in self.workers if worker is not None]
        for worker in workers:
            worker.terminate()
        if not self._is_exiting:  # else only daemon threads can wait for results: they stay where they are
            self._fail_all(lambda: PoolTerminated("Pool not running: it was terminated while this call was pending"))
        self.open(self._idle)
        if self.kind != "process":
            for worker in workers:
                if self._channel.look(worker.n)[2] is None:
                    worker.join(GRACE_S)  # it has nothing to do and ends at once
            return
        deadline = monotonic() + KILL_AFTER_S
        for worker in workers:
            if not worker.join(max(0.0, deadline - monotonic())):
                worker.kill()
                worker.join()
        if self._watcher is not None and not self._is_exiting:
            self._stop_threads()

    def _stop_threads(self) -> None:
        """After the last worker: ends the watcher and the background thread."""
        if self._watcher is not None:
            self._watcher.stop()
        self.workers = [None] * self.n_workers
        self._channel.announce()
        background = getattr(self, "_background", None)
        if background is not None and background is not threading.current_thread() and self._leader != get_ident():
            background.join()

    def end_at_exit(self) -> None:
        """Ends a forgotten pool before the interpreter ends; interpreters must have ended by then."""
        if self.drains_at_exit and self._cause is None:
            self.close()
            self.join()
            return
        self._is_exiting = self._background.daemon
        self.terminate()
        for worker in self.workers:
            while self.kind == "interp" and worker is not None and not worker.join(0.25):
                worker.terminate()  # once more: a task may have swallowed the exception

    def abandon(self) -> None:
        """The pool object is garbage: the background thread terminates. Takes no lock, for any thread may collect."""
        self._is_abandoned = True
        self._channel.announce()

    def release(self) -> None:
        """The executor is garbage: as `close`, by the background thread. Takes no lock either."""
        self._is_released = True
        self._channel.announce()

    def disown(self) -> None:
        """We are in a forked child: the workers are our parent's."""
        self.is_foreign = True
        self._lock = threading.RLock()  # another thread may have held it, or led, when we were forked
        self._leader = None

    # ---- looking ----

    def jobs(self) -> list[PoolJob]:
        """The calls in progress."""
        with self._lock:
            return [job for job in self._jobs.values() if isinstance(job, PoolJob)]

    def statistics(self) -> Statistics:
        """The counts at this moment."""
        with self._lock:
            pending = sum(job.remaining for job in self._jobs.values()) - 1
            return Statistics(
                self.kind,
                self.n_workers,
                self._n_submitted,
                max(0, self._n_submitted - pending),
                self._n_failed,
                pending,
                self._n_started,
                self._n_lost,
            )


def _call_each(fn: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """A chunk of imap."""
    return [fn(item) for item in items]


def _release(waiter: Any) -> None:
    """Wakes a follower, who may have been woken already for another reason."""
    if waiter.locked():
        waiter.release()


class _Verbatim(str):
    """A text whose repr is itself: a repr that was made in the worker."""

    __repr__ = str.__str__


def _rebuild(payload: bytes | None, text: str, traceback_text: str) -> BaseException:
    """A task's exception, with the remote traceback as its cause."""
    from multiprocessing.pool import RemoteTraceback

    from pool_party.wire import codec

    error: BaseException
    try:
        if payload is None:
            raise TypeError("it does not pickle")
        error = codec.decode(payload)
        if not isinstance(error, BaseException):
            raise TypeError(f"it unpickles as {type(error).__name__}")
    except Exception as reason:
        error = RemoteError(f"a task raised {text}, which could not be rebuilt here: {reason!r}")
    error.__cause__ = RemoteTraceback(traceback_text)
    return error
