"""The worker set of a pool: it starts workers, notices their ends, and fills empty worker slots.

It knows nothing of calls. The engine finds out what a dead worker was doing (`Channel.reap`), and decides whether the
pool gives up. The background thread, which no signal handler interrupts, starts all workers except the first set of
forked ones. A thread that ends the pool first calls `stop`, and then ends the workers that it finds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

from pool_party import _native
from pool_party._ground.errors import describe_exit
from pool_party._ground.limits import name_limit, near_limit
from pool_party._ground.log import attempt, log_exception
from pool_party._workers.base import Setup, WorkerHandle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pool_party._budget import enforcer
    from pool_party._observe.trace import Tracing

SIGHUP, SIGINT, SIGKILL, SIGTERM = 1, 2, 9, 15  # importing `signal` is slow
REQUESTS = (-SIGHUP, -SIGINT, -SIGTERM)  # exit codes of processes that somebody has asked to end
GRACE_S = 1.0  # how long the end waits for idle workers, and for interrupted tasks to clean up
KILL_AFTER_S = 3.0  # how long a worker process may take to obey SIGTERM
RETRY_S = 0.01  # until a failed start is tried again; doubled each time
RETRY_MAX_S = 1.0
N_TRIES = 8  # failed starts in a row before a pool without workers gives up, after 1.3 s of pauses


def _worker_class(kind: str) -> type[WorkerHandle]:
    if kind == "thread":
        from pool_party._workers.thread import ThreadWorker

        return ThreadWorker
    if kind == "interp":
        from pool_party._workers.interp.worker import InterpreterWorker

        return InterpreterWorker
    from pool_party._workers.process import ProcessWorker

    return ProcessWorker


def _enforcer_of(
    setup: Setup, channel: _native.Channel, pid_of: Callable[[int], int | None]
) -> enforcer.Enforcer | None:
    if setup.plan is None:
        return None
    from pool_party._budget import enforcer

    return enforcer.Enforcer(setup.plan, channel, pid_of, setup.are_forked)


def _answer(ask: Callable[..., bool], *args: object) -> bool:
    """Return what a worker's method answers; True if it raises, since asking again would be no use."""
    answers: list[bool] = []
    return not attempt(lambda: answers.append(ask(*args))) or answers[0]


class WorkerSet:
    """The workers of a pool. Methods are for the background thread alone, unless a heading says otherwise."""

    def __init__(self, setup: Setup, channel: _native.Channel) -> None:
        config = setup.config
        n_workers = config.processes or 0
        self.slots: list[WorkerHandle | None] = [None] * n_workers
        self.is_stopping = False  # workers were told to end and none is started; set before the channel's stop flag
        self.n_started = 0
        self.n_lost = 0
        self._ends_workers = False  # `terminate` or `kill` was called: whoever dies from then on is not lost
        self.tracing: Tracing | None = None
        self._kind = config.kind
        self._setup = setup
        self._channel = channel
        self._worker_class = _worker_class(config.kind)
        self._spared: list[WorkerHandle] = []  # processes that `terminate` has left to end by themselves
        self._reported: deque[WorkerHandle] = deque()  # processes whose death the watcher has noticed
        self._watcher: Any = None
        self._n_false_starts = 0
        self._n_ended_on_request = 0  # of those that a signal has ended which this process has not seen
        self._n_taken = 0  # results taken by the time of the last false start
        self._n_failed_starts = 0  # in a row
        self._n_interrupts = [0] * n_workers  # of this process, when the last worker in a slot was started
        self._retry_at: float | None = None
        self._look_at: float | None = 0.0 if setup.memory_limit else None  # when to look at the memory of processes
        self.enforcer = _enforcer_of(setup, channel, self._pid_of)
        self.relay = setup.relay
        self.memory_limit = setup.memory_limit  # bytes of each process, or 0
        self._end_naming: Callable[[], None] | None = None

    # ---- starting ----

    def prepare(self) -> None:
        """Make the watcher and put budgets into force, before the first worker starts."""
        if self._kind == "process":
            from pool_party._workers.watcher import Watcher

            self._watcher = Watcher(self._report_death, self._channel)
        if self.relay is not None:
            self.relay.open()
        if self._kind == "thread" and self._setup.config.log:
            from pool_party._workers.relaying import Naming

            Naming.open()
            self._end_naming = Naming.close
        if self.enforcer is not None:
            self._setup.entry = self.enforcer.open()
            for n in range(len(self.slots)):
                self.enforcer.grant(n)

    def start(self) -> None:
        """Start all workers. Takes no lock: a signal handler may interrupt the thread that starts forked ones."""
        for n in range(len(self.slots)):
            if not self.is_stopping:
                self._start_worker(n)

    def follow(self) -> None:
        """Watch and balance the first workers. The threads for that start after the last fork."""
        for worker in self.slots:
            if worker is not None:
                self._enrol(worker)
        if self._watcher is not None:
            self._watcher.start()
        if self.relay is not None:
            self.relay.start(self._channel)
        if self.enforcer is not None:
            self.enforcer.start()

    def _pid_of(self, n: int) -> int | None:
        worker = self.slots[n]
        return None if worker is None else worker.pid

    def _start_worker(self, n: int) -> None:
        self._channel.open_slot(n)
        if self.relay is not None:
            self.relay.note_start(n)
        self._n_interrupts[n] = _native.n_interrupts()
        worker = self._worker_class(self._channel, n, self._setup)
        self.slots[n] = worker
        self.n_started += 1  # before the worker can have finished a task
        try:
            worker.start()
        except BaseException:
            self.n_started -= 1
            raise

    def _enrol(self, worker: WorkerHandle) -> None:
        """Note a worker that was started.

        If another thread stops the pool meanwhile, one of the two ends the worker: either that thread finds it in its
        slot, or this one sees `is_stopping`, which the other set first.
        """
        worker.enrol()
        if (tracing := self.tracing) is not None:
            tracing.note_start(worker)
        if self._watcher is not None:
            self._watcher.watch(worker)
        if self.is_stopping:
            worker.terminate()

    def _report_death(self, worker: WorkerHandle) -> None:
        """Called by the watcher's thread."""
        self._reported.append(worker)
        self._channel.notify_all()

    # ---- their end ----

    def note_ready(self) -> None:
        """Note which workers have run their initializer."""
        for worker in self.slots:
            if worker is None or worker.was_ready:
                continue
            state = self._channel.state_of(worker.n)
            if state in (_native.WORKER_READY, _native.WORKER_EXITED):
                worker.was_ready = state == _native.WORKER_READY
                if worker.was_ready:
                    self._n_false_starts = self._n_ended_on_request = 0

    def take_ended(self) -> list[WorkerHandle]:
        """Return the workers that have ended, each once. They keep their slots until `remove`. It never raises."""
        ended = [worker for worker in self.slots if worker is not None and self._has_exited(worker)]
        while self._reported:
            ended.append(self._reported.popleft())
        ended = [worker for worker in ended if self.slots[worker.n] is worker]
        for worker in ended:
            attempt(worker.join)
        return ended

    def _has_exited(self, worker: WorkerHandle) -> bool:
        """Whether a thread or interpreter has exited.

        For processes the watcher reports it, once they are really dead.
        """
        return worker.sentinel is None and self._channel.state_of(worker.n) == _native.WORKER_EXITED

    def remove(self, worker: WorkerHandle, was_lost: bool) -> None:
        """Empty the slot of a worker that has ended."""
        self.slots[worker.n] = None
        self.n_lost += bool(was_lost or worker.exitcode) and not self._ends_workers

    def put_away(self, worker: WorkerHandle, n_done: int) -> str | None:
        """Release what a removed worker had. Return the reason if the pool must give up. It never raises."""
        self.slots[worker.n] = None  # if `remove` has not done it
        if self.enforcer is not None:
            attempt(self.enforcer.forget, worker.pid)
        if (tracing := self.tracing) is not None:
            attempt(tracing.note_end, worker)
        if self.relay is not None:
            attempt(self.relay.note_end, worker.n)
        attempt(worker.release)
        if worker.was_ready or n_done > 0 or self.is_stopping:
            return None
        return self._note_false_start(worker)

    def _note_false_start(self, worker: WorkerHandle) -> str | None:
        """Count workers that ended before they were ready while no task was done.

        Return an error text after too many. Signals that the program's whole process group gets, as Ctrl-C in a
        terminal, say nothing about the next worker. Many more of those must have ended workers, since one that sends
        itself such a signal looks the same.
        """
        if self._channel.n_taken != self._n_taken:
            self._n_taken = self._channel.n_taken
            self._n_false_starts = self._n_ended_on_request = 0
        if self._was_interrupted(worker):
            n, limit = self._n_ended_on_request, N_TRIES * len(self.slots)
        else:
            self._n_false_starts += 1
            n, limit = self._n_false_starts, max(3, len(self.slots))
        if n <= limit:
            return None
        reason = getattr(worker, "error", "") or f"the last one {describe_exit(worker.exitcode)}"
        reason += near_limit()
        return f"{n} workers in a row ended before their initializer had run; {reason}"

    def _was_interrupted(self, worker: WorkerHandle) -> bool:
        """Whether a signal to the whole program may have ended a worker. Starting the next one waits then, for longer
        each time that all have ended so.

        A child of a fork server that was there before the first pool exits with code 1 on Ctrl-C.
        """
        is_seen = self._n_interrupts[worker.n] != _native.n_interrupts()
        if worker.exitcode not in REQUESTS and not (is_seen and worker.exitcode == 1):
            return False
        pause_s = RETRY_S * 2 ** (self._n_ended_on_request // len(self.slots))
        self._n_ended_on_request = 0 if is_seen else self._n_ended_on_request + 1
        self._retry_at = monotonic() + min(RETRY_MAX_S, pause_s)
        return True

    # ---- replacing them ----

    def fill_slots(self) -> BaseException | None:
        """Start a worker in each empty slot. After a failure the next try follows a pause, which grows each time.

        Return the last error if the pool has no worker left and could start none in `N_TRIES` tries.
        """
        if self._retry_at is not None and monotonic() < self._retry_at:
            return None
        self._retry_at = None
        for n, worker in enumerate(self.slots):
            if worker is not None or self.is_stopping:
                continue
            try:
                if self.enforcer is not None:
                    self.enforcer.grant(n)
                self._start_worker(n)
                if (started := self.slots[n]) is not None:
                    self._enrol(started)
                self._n_failed_starts = 0
            except BaseException as error:
                self._abandon(n)
                name_limit(error)
                return self._note_failed_start(error)
        return None

    def _abandon(self, n: int) -> None:
        """Empty a slot whose worker could not be started. It may be a process all the same, which must not use it."""
        worker, self.slots[n] = self.slots[n], None
        if worker is not None:
            for step in (worker.enrol, worker.kill, worker.join, worker.release):
                attempt(step)

    def _note_failed_start(self, error: BaseException) -> BaseException | None:
        self._n_failed_starts += 1
        if self._n_failed_starts == 1:
            log_exception("a worker could not be started; it is tried again")
        self._retry_at = monotonic() + min(RETRY_MAX_S, RETRY_S * 2 ** (self._n_failed_starts - 1))
        return error if self._n_failed_starts >= N_TRIES and not any(self.slots) else None

    def retry_in_s(self) -> float | None:
        """Seconds until `fill_slots` or `look_at_memory` must be called again, or None if neither must."""
        times = [at for at in (self._retry_at, self._look_at) if at is not None]
        return max(0.0, min(times) - monotonic()) if times else None

    def look_at_memory(self) -> None:
        """Kill processes that are above their memory limit amid a task, if it is time to look."""
        if self._look_at is None or monotonic() < self._look_at:
            return
        from pool_party._workers import memory_limits

        for worker in self.slots:
            if worker is not None:
                memory_limits.end_if_above(worker, self.memory_limit, self._channel.is_busy)  # type: ignore[arg-type]
        self._look_at = monotonic() + memory_limits.PERIOD_S

    # ---- ending them; any thread ----

    def stop(self) -> None:
        """Prevent further workers from being started."""
        self.is_stopping = True

    def interrupt(self) -> None:
        """Raise exceptions in tasks, and wait up to GRACE_S while they clean up.

        Only the background thread calls this, after `stop`.
        """
        living = [worker for worker in self.slots if worker is not None]
        for worker in living:
            attempt(worker.interrupt)
        deadline = monotonic() + GRACE_S
        for worker in living:
            worker.join(max(0.0, deadline - monotonic()))

    def terminate(self, spares_idle: bool = False) -> bool:
        """Stop workers in the middle of their tasks.

        Never blocks. If it returns False, call it again a little later. `spares_idle` leaves processes without a task
        to end by themselves, as the channel's stop flag tells them to: `wait_ended` ends those that do not. SIGTERM
        could interrupt what their libraries do at a process's exit, such as removing the names of semaphores.
        """
        self._ends_workers = True
        living = [worker for worker in self.slots if worker is not None]
        self._spared = [worker for worker in living if spares_idle and self._is_idle_process(worker)]
        answers = [_answer(worker.terminate) for worker in living if worker not in self._spared]
        return all(answers)

    def _is_idle_process(self, worker: WorkerHandle) -> bool:
        is_starting = self._channel.state_of(worker.n) == _native.WORKER_STARTING
        return self._kind == "process" and not is_starting and not self._channel.is_busy(worker.n)

    def kill(self) -> bool:
        """As `terminate`, but send SIGKILL to processes at once."""
        self._ends_workers = True
        answers = [_answer(worker.kill) for worker in self.slots if worker is not None]
        return all(answers)

    def kill_if(
        self, n: int, holds: Callable[[], bool], number: int = SIGKILL, patience_s: float | None = None
    ) -> bool:
        """Stop the process in a slot for a moment, and send it a signal if `holds()` meanwhile.

        Blocks for that time, and returns False if the process has not stopped after `patience_s` seconds.
        """
        worker = self.slots[n]
        return worker is None or worker.kill_if(lambda: self.slots[n] is worker and holds(), number, patience_s)

    def interrupt_task(self, n: int, begun_ns: int) -> bool:
        """Raise SystemExit in the Python code of the timed task that began then, in a thread or an interpreter.

        Return False to be called again a little later.
        """
        worker = self.slots[n]
        return worker is None or worker.interrupt_task(begun_ns)

    def wait_ended(self) -> None:
        """After `terminate`: waits for the workers that end promptly, and kills processes that do not."""
        begin = monotonic()
        for worker in list(self.slots):
            if worker is not None:
                attempt(self._wait_ended, worker, begin)

    def _wait_ended(self, worker: WorkerHandle, begin: float) -> None:
        def ends_within(patience_s: float) -> bool:
            return worker.join(max(0.0, begin + patience_s - monotonic()))

        worker.enrol()
        if self._kind != "process":
            if not self._channel.is_busy(worker.n):
                ends_within(GRACE_S)
            return
        if worker in self._spared and not ends_within(GRACE_S):
            worker.terminate()
        if not ends_within(KILL_AFTER_S):
            worker.kill()
            worker.join()

    def give_up(self) -> None:
        """After a failed start: ends the workers that were started, which nothing watches, and empties the slots."""
        self.terminate()
        self.wait_ended()
        for n, worker in enumerate(self.slots):
            if worker is not None and _answer(worker.join, 0):
                self.slots[n] = None
                attempt(worker.release)

    def is_over(self) -> bool:
        """Whether the last worker has ended for good."""
        return self.is_stopping and not any(self.slots)

    def end_threads(self) -> None:
        """End what outlives the workers: the relay, the watcher, the enforcer, and interpreters made early that no
        worker has taken.
        """
        if self._setup.begun:
            from pool_party._workers.interp import prestart

            attempt(prestart.give_up, self._setup.begun)
        if self._watcher is not None:
            attempt(self._watcher.stop)
        if self.enforcer is not None:
            attempt(self.enforcer.close)
        if self._end_naming is not None:
            attempt(self._end_naming)
        if self.relay is not None:
            attempt(self.relay.end)

    # ---- looking; any thread ----

    @property
    def n_workers(self) -> int:
        """The number of worker slots."""
        return len(self.slots)

    def budget(self) -> tuple[str | None, tuple[int, ...], int, int, int, float]:
        """The policy, each worker's threads now, the numbers of lends, reclaims and waits at the gate, and seconds
        waited.
        """
        force = self.enforcer
        if force is None:
            return None, (), 0, 0, 0, 0.0
        return force.policy, force.n_threads, *force.lends(), *force.waits()

    @property
    def n_starting(self) -> int:
        """Workers whose initializer has not run yet."""
        living = [worker.n for worker in self.slots if worker is not None]
        return sum(self._channel.state_of(n) == _native.WORKER_STARTING for n in living)
