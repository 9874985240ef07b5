"""The worker set of a pool: it starts workers, notices their ends, and fills empty worker slots (`places`).

It knows nothing of calls. The engine finds out what a dead worker was doing (`Channel.reap`), and decides whether the
pool gives up. The background thread, which no signal handler interrupts, starts all workers except the first set of
forked ones. A thread that ends the pool first calls `stop`, and then ends the workers that it finds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

from pool_party import _native
from pool_party._core.errors import describe_exit
from pool_party._core.log import log_exception
from pool_party.workers.base import Setup, Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pool_party.budget import enforcer
    from pool_party.observe.trace import Tracing

SIGKILL = 9  # importing `signal` is slow
GRACE_S = 1.0  # how long the end waits for idle workers, and for interrupted tasks to clean up
KILL_AFTER_S = 3.0  # how long a worker process may take to obey SIGTERM
RETRY_S = 0.01  # until a failed start is tried again; doubled each time
RETRY_MAX_S = 1.0
N_TRIES = 8  # failed starts in a row before a pool without workers gives up, after 1.3 s of pauses


def _worker_class(kind: str) -> type[Worker]:
    if kind == "thread":
        from pool_party.workers.thread import ThreadWorker

        return ThreadWorker
    if kind == "interp":
        from pool_party.workers.interp.worker import InterpreterWorker

        return InterpreterWorker
    from pool_party.workers.process import ProcessWorker

    return ProcessWorker


def _enforcer_of(
    setup: Setup, channel: _native.Channel, pid_of: Callable[[int], int | None]
) -> enforcer.Enforcer | None:
    if setup.plan is None:
        return None
    from pool_party.budget import enforcer

    are_forked = setup.context is not None and setup.context.get_start_method() == "fork"
    return enforcer.Enforcer(setup.plan, channel, pid_of, are_forked)


class WorkerSet:
    """The workers of a pool. Methods are for the background thread alone, unless a heading says otherwise."""

    def __init__(self, kind: str, n_workers: int, setup: Setup, channel: _native.Channel) -> None:
        self.places: list[Worker | None] = [None] * n_workers
        self.is_stopping = False  # workers were told to end and none is started; set before the channel's stop flag
        self.n_started = 0
        self.n_lost = 0
        self._ends_workers = False  # `terminate` or `kill` was called: whoever dies from then on is not lost
        self.tracing: Tracing | None = None
        self._kind = kind
        self._setup = setup
        self._channel = channel
        self._worker_class = _worker_class(kind)
        self._spared: list[Worker] = []  # processes that `terminate` has left to end by themselves
        self._reported: deque[Worker] = deque()  # processes whose death the watcher has noticed
        self._watcher: Any = None
        self._n_false_starts = 0
        self._n_taken = 0  # results taken by the time of the last false start
        self._n_failed_starts = 0  # in a row
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
            from pool_party.workers.watcher import Watcher

            self._watcher = Watcher(self._report_death)
        if self.relay is not None:
            self.relay.open()
        if self._setup.names_records:
            from pool_party.workers.relaying import Naming

            Naming.open()
            self._end_naming = Naming.close
        if self.enforcer is not None:
            self._setup.gate = self.enforcer.open()
            for n in range(len(self.places)):
                self.enforcer.grant(n)

    def start(self) -> None:
        """Start all workers. Takes no lock: a signal handler may interrupt the thread that starts forked ones."""
        for n in range(len(self.places)):
            if not self.is_stopping:
                self._start_worker(n)

    def follow(self) -> None:
        """Watch and balance the first workers. The threads for that start after the last fork."""
        for worker in self.places:
            if worker is not None:
                self._enrol(worker)
        if self._watcher is not None:
            self._watcher.start()
        if self.relay is not None:
            self.relay.start()
        if self.enforcer is not None:
            self.enforcer.start()

    def _pid_of(self, n: int) -> int | None:
        worker = self.places[n]
        return None if worker is None else worker.pid

    def _start_worker(self, n: int) -> None:
        self._channel.open_slot(n)
        if self.relay is not None:
            self.relay.note_start(n)
        worker = self._worker_class(self._channel, n, self._setup)
        self.places[n] = worker
        self.n_started += 1  # before the worker can have finished a task
        try:
            worker.start()
        except BaseException:
            self.n_started -= 1
            raise

    def _enrol(self, worker: Worker) -> None:
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

    def _report_death(self, worker: Worker) -> None:
        """Called by the watcher's thread."""
        self._reported.append(worker)
        self._channel.notify_all()

    # ---- their end ----

    def note_ready(self) -> None:
        """Note which workers have run their initializer."""
        for worker in self.places:
            if worker is None or worker.was_ready:
                continue
            state = self._channel.state_of(worker.n)
            if state in (_native.WORKER_READY, _native.WORKER_EXITED):
                worker.was_ready = state == _native.WORKER_READY
                self._n_false_starts = 0 if worker.was_ready else self._n_false_starts

    def take_ended(self) -> list[Worker]:
        """Return the workers that have ended, each once. They keep their slots until `remove`."""
        ended = [worker for worker in self.places if worker is not None and self._has_exited(worker)]
        while self._reported:
            ended.append(self._reported.popleft())
        ended = [worker for worker in ended if self.places[worker.n] is worker]
        for worker in ended:
            worker.join()
        return ended

    def _has_exited(self, worker: Worker) -> bool:
        """Whether a thread or interpreter has exited.

        For processes the watcher reports it, once they are really dead.
        """
        return worker.sentinel is None and self._channel.state_of(worker.n) == _native.WORKER_EXITED

    def remove(self, worker: Worker, n_done: int, was_lost: bool) -> str | None:
        """Empty the slot of a worker that has ended. Return the reason if the pool must give up."""
        if self.enforcer is not None:
            self.enforcer.forget(worker.pid)
        if (tracing := self.tracing) is not None:
            tracing.note_end(worker)
        if self.relay is not None:
            self.relay.note_end(worker.n)
        self.places[worker.n] = None
        self.n_lost += bool(was_lost or worker.exitcode) and not self._ends_workers
        worker.release()
        if worker.was_ready or n_done > 0 or self.is_stopping:
            return None
        return self._note_false_start(worker)

    def _note_false_start(self, worker: Worker) -> str | None:
        """Count workers that ended before they were ready while no task was done.

        Return an error text after too many.
        """
        if self._channel.n_taken != self._n_taken:
            self._n_taken = self._channel.n_taken
            self._n_false_starts = 0
        self._n_false_starts += 1
        if self._n_false_starts <= max(3, len(self.places)):
            return None
        reason = getattr(worker, "error", "") or f"the last one {describe_exit(worker.exitcode)}"
        return (
            f"{self._n_false_starts} workers in a row ended before their initializer had run; {reason}. "
            "With the start methods spawn and forkserver a script must make its pool under "
            'if __name__ == "__main__"'
        )

    # ---- replacing them ----

    def fill_places(self) -> Exception | None:
        """Start a worker in each empty slot. After a failure the next try follows a pause, which grows each time.

        Return the last error if the pool has no worker left and could start none in `N_TRIES` tries.
        """
        if self._retry_at is not None and monotonic() < self._retry_at:
            return None
        self._retry_at = None
        for n, worker in enumerate(self.places):
            if worker is not None or self.is_stopping:
                continue
            try:
                if self.enforcer is not None:
                    self.enforcer.grant(n)
                self._start_worker(n)
                if (started := self.places[n]) is not None:
                    self._enrol(started)
                self._n_failed_starts = 0
            except Exception as error:
                self.places[n] = None
                return self._note_failed_start(error)
        return None

    def _note_failed_start(self, error: Exception) -> Exception | None:
        self._n_failed_starts += 1
        if self._n_failed_starts == 1:
            log_exception("a worker could not be started; it is tried again")
        self._retry_at = monotonic() + min(RETRY_MAX_S, RETRY_S * 2 ** (self._n_failed_starts - 1))
        return error if self._n_failed_starts >= N_TRIES and not any(self.places) else None

    def retry_in_s(self) -> float | None:
        """Seconds until `fill_places` or `look_at_memory` must be called again, or None if neither must."""
        times = [at for at in (self._retry_at, self._look_at) if at is not None]
        return max(0.0, min(times) - monotonic()) if times else None

    def look_at_memory(self) -> None:
        """Kill processes that are above their memory limit amid a task, if it is time to look."""
        if self._look_at is None or monotonic() < self._look_at:
            return
        from pool_party.workers import memory_limits

        for worker in self.places:
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
        living = [worker for worker in self.places if worker is not None]
        for worker in living:
            worker.interrupt()
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
        living = [worker for worker in self.places if worker is not None]
        self._spared = [worker for worker in living if spares_idle and self._is_idle_process(worker)]
        answers = [worker.terminate() for worker in living if worker not in self._spared]
        return all(answers)

    def _is_idle_process(self, worker: Worker) -> bool:
        is_starting = self._channel.state_of(worker.n) == _native.WORKER_STARTING
        return self._kind == "process" and not is_starting and not self._channel.is_busy(worker.n)

    def kill(self) -> bool:
        """As `terminate`, but send SIGKILL to processes at once."""
        self._ends_workers = True
        answers = [worker.kill() for worker in self.places if worker is not None]
        return all(answers)

    def kill_if(
        self, n: int, holds: Callable[[], bool], number: int = SIGKILL, patience_s: float | None = None
    ) -> bool:
        """Stop the process in a slot for a moment, and send it a signal if `holds()` meanwhile.

        Blocks for that time, and returns False if the process has not stopped after `patience_s` seconds.
        """
        worker = self.places[n]
        return worker is None or worker.kill_if(lambda: self.places[n] is worker and holds(), number, patience_s)

    def interrupt_task(self, n: int, begun_ns: int) -> bool:
        """Raise SystemExit in the Python code of the timed task that began then, in a thread or an interpreter.

        Return False to be called again a little later.
        """
        worker = self.places[n]
        return worker is None or worker.interrupt_task(begun_ns)

    def wait_ended(self) -> None:
        """After `terminate`: waits for the workers that end promptly, and kills processes that do not."""
        begin = monotonic()

        def ends_within(worker: Worker, patience_s: float) -> bool:
            return worker.join(max(0.0, begin + patience_s - monotonic()))

        for worker in list(self.places):
            if worker is None:
                continue
            worker.enrol()
            if self._kind != "process":
                if not self._channel.is_busy(worker.n):
                    ends_within(worker, GRACE_S)
                continue
            if worker in self._spared and not ends_within(worker, GRACE_S):
                worker.terminate()
            if not ends_within(worker, KILL_AFTER_S):
                worker.kill()
                worker.join()

    def give_up(self) -> None:
        """After a failed start: ends the workers that were started, which nothing watches, and empties the slots."""
        self.terminate()
        self.wait_ended()
        for n, worker in enumerate(self.places):
            if worker is not None and worker.join(0):
                worker.release()
                self.places[n] = None

    def is_over(self) -> bool:
        """Whether the last worker has ended for good."""
        return self.is_stopping and not any(self.places)

    def end_threads(self) -> None:
        """End what outlives the workers: the relay, the watcher, the enforcer, and interpreters made early that no
        worker has taken.
        """
        if self._setup.begun:
            from pool_party.workers.interp import prestart

            prestart.give_up(self._setup.begun)
        if self._watcher is not None:
            self._watcher.stop()
        if self.enforcer is not None:
            self.enforcer.close()
        if self._end_naming is not None:
            self._end_naming()
        if self.relay is not None:
            self.relay.end()

    # ---- looking; any thread ----

    @property
    def n_workers(self) -> int:
        """The number of worker slots."""
        return len(self.places)

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
        living = [worker.n for worker in self.places if worker is not None]
        return sum(self._channel.state_of(n) == _native.WORKER_STARTING for n in living)
