"""The workers of a pool: starting them, noting their death, replacing them."""

import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from pool_party import _native
from pool_party._core.errors import PoolPartyError, describe_exit, worker_lost
from pool_party._core.log import log_exception
from pool_party.workers.base import Setup, Worker

if TYPE_CHECKING:
    from pool_party.budget import enforcer
    from pool_party.observe.trace import Tracing

GRACE_S = 1.0  # how long terminate waits for idle threads and interpreters; they end in some ms
KILL_AFTER_S = 3.0  # how long a worker process may take to obey SIGTERM


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
) -> "enforcer.Enforcer | None":
    if setup.plan is None:
        return None
    from pool_party.budget import enforcer

    are_forked = setup.context is not None and setup.context.get_start_method() == "fork"
    return enforcer.Enforcer(setup.plan, channel, pid_of, are_forked)


class Crew:
    """The workers of a pool. Only the leader buries and replaces; `starting` orders that with the pool's end."""

    def __init__(
        self,
        kind: str,
        n_workers: int,
        setup: Setup,
        channel: _native.Channel,
        jobs: dict[int, Any],
        is_broken: Callable[[], bool],
        break_pool: Callable[[BaseException], object],
    ) -> None:
        self.workers: list[Worker | None] = [None] * n_workers
        self.is_stopping = False  # workers were told to end: none is replaced
        self.n_started = self.n_lost = self._n_false_starts = 0
        self._n_taken = 0  # results when the last of these was counted
        self._kind = kind
        self._n_workers = n_workers
        self._setup = setup
        self._channel = channel
        self._jobs = jobs
        self._is_broken = is_broken
        self._break_pool = break_pool
        self._worker_class = _worker_class(kind)
        self._starting = threading.Lock()  # held while a worker is started: after a stop, none is
        self._dead: list[Worker] = []  # processes that the watcher has reported; under `_reporting`
        self._reporting = threading.Lock()
        self._watcher: Any = None
        self.enforcer = _enforcer_of(setup, channel, self._pid_of)
        self.tracing: Tracing | None = None  # written under the scheduler's lock

    def start(self) -> None:
        """Starts all workers, and then the watcher: they are forked from a process with a thread less."""
        if self._kind == "process":
            from pool_party.workers.watcher import Watcher

            self._watcher = Watcher(self._report_death)
        if self.enforcer is not None:
            self._setup.gate = self.enforcer.open()
        for n in range(self._n_workers):
            self._start_worker(n)
        if self._watcher is not None:
            self._watcher.start()
        if self.enforcer is not None:
            self.enforcer.start()

    def _pid_of(self, n: int) -> int | None:
        worker = self.workers[n]
        return None if worker is None else worker.pid

    def _start_worker(self, n: int) -> None:
        self._channel.open_lane(n)
        if self.enforcer is not None:
            self.enforcer.grant(n)
        worker = self._worker_class(self._channel, n, self._setup)
        self.workers[n] = worker
        self.n_started += 1
        if (tracing := self.tracing) is not None:
            tracing.note_start(worker)
        if self._watcher is not None:
            self._watcher.watch(worker)

    def _report_death(self, worker: Worker) -> None:
        """Called by the watcher's thread."""
        with self._reporting:
            self._dead.append(worker)
        self._channel.announce()

    def handle_events(self) -> None:
        """As leader: notes which workers are ready, buries those that have ended, replaces them."""
        try:
            if not self._channel.take_events():
                return
            if self.enforcer is not None:
                self.enforcer.look()
            self._note_ready()
            self._bury_ended()
            self._fill_places()
        except BaseException:
            self._channel.announce()  # a signal came between: whoever leads next begins again
            raise

    def _note_ready(self) -> None:
        for worker in self.workers:
            if worker is None or worker.was_ready:
                continue
            if self._channel.look(worker.n)[0] in (_native.LANE_READY, _native.LANE_EXITED):
                worker.was_ready = self._channel.look(worker.n)[0] == _native.LANE_READY
                self._n_false_starts = 0 if worker.was_ready else self._n_false_starts

    def _bury_ended(self) -> None:
        ended = [worker for worker in self.workers if worker is not None and self._has_ended(worker)]
        with self._reporting:
            ended.extend(self._dead)
        if not ended:
            return
        self._channel.take(self._jobs)  # their last results, which came before their end
        for worker in ended:
            self._bury(worker)
            with self._reporting:
                if worker in self._dead:
                    self._dead.remove(worker)

    def _has_ended(self, worker: Worker) -> bool:
        """Processes are reported by the watcher, once they are really dead."""
        return worker.sentinel is None and self._channel.look(worker.n)[0] == _native.LANE_EXITED

    def _bury(self, worker: Worker) -> None:
        if self.workers[worker.n] is not worker:
            return
        worker.join()
        n_done = self._channel.look(worker.n)[1]
        if self.enforcer is not None:
            self.enforcer.forget(worker.pid)
        if (tracing := self.tracing) is not None:
            tracing.note_end(worker)
        lost = self._channel.bury(worker.n)
        self.workers[worker.n] = None
        job = self._jobs.get(lost[0]) if lost else None
        if lost and job is not None:
            self.n_lost += 1
            job.fail_task(lost[1], self._loss(worker))
        elif worker.exitcode:
            self.n_lost += 1
        if self.is_stopping or self._is_broken():
            if self.is_over():
                self._channel.summon()  # the background thread ends
            return
        if not worker.was_ready and n_done == 0:
            self._note_false_start(worker)

    def _fill_places(self) -> None:
        """Starts a worker in each empty place, also where a start has failed before or was interrupted."""
        errors = [self._replace(n) for n, worker in enumerate(self.workers) if worker is None and not self.is_stopping]
        if any(errors) and not any(self.workers):
            self._break_pool(next(filter(None, errors)))

    def _loss(self, worker: Worker) -> PoolPartyError:
        return worker_lost(
            f"worker {worker.name} (pid {worker.pid}) {describe_exit(worker.exitcode)} while it ran this task; "
            "the pool has replaced it and other tasks are not affected",
            worker.pid,
            worker.exitcode,
        )

    def _note_false_start(self, worker: Worker) -> None:
        """Gives up when workers die again and again before they are ready, and no task gets done meanwhile."""
        if self._channel.n_taken != self._n_taken:
            self._n_taken = self._channel.n_taken
            self._n_false_starts = 0
        self._n_false_starts += 1
        if self._n_false_starts <= max(3, self._n_workers):
            return
        reason = getattr(worker, "error", "") or f"the last one {describe_exit(worker.exitcode)}"
        self._break_pool(
            worker_lost(
                f"{self._n_false_starts} workers in a row ended before their initializer had run; {reason}. "
                "With the start methods spawn and forkserver a script must make its pool under "
                'if __name__ == "__main__"',
                worker.pid,
                worker.exitcode,
            )
        )

    def _replace(self, n: int) -> Exception | None:
        """Starts a worker; the error if that failed, which is tried again at the next event."""
        try:
            with self._starting:
                if not self.is_stopping:
                    self._start_worker(n)
        except Exception as error:
            log_exception("a worker could not be replaced")
            return error
        return None

    def budget(self) -> tuple[str | None, tuple[int, ...], int, int, int, float]:
        """The policy's name, each worker's threads now, lends and reclaims, waits at the gate and their seconds."""
        force = self.enforcer
        if force is None:
            return None, (), 0, 0, 0, 0.0
        return force.policy, force.n_threads, *force.lends(), *force.waits()

    @property
    def n_starting(self) -> int:
        """Workers whose initializer has not run yet."""
        living = [worker.n for worker in self.workers if worker is not None]
        return sum(self._channel.look(n)[0] == _native.LANE_STARTING for n in living)

    def is_over(self) -> bool:
        """Whether the last worker has ended for good."""
        return self.is_stopping and not any(self.workers)

    def stop(self, how: int) -> None:
        """Tells workers to end, as `Channel.stop`; none is started after that."""
        with self._starting:
            self.is_stopping = True
        self._channel.stop(how)

    def terminate(self) -> None:
        """Stops workers in the middle of their tasks. Never blocks."""
        for worker in self.workers:
            if worker is not None:
                worker.terminate()

    def reap(self) -> None:
        """After `terminate`: waits for those that end at once, and makes sure that processes do."""
        deadline = monotonic() + KILL_AFTER_S
        for worker in list(self.workers):
            if worker is None:
                continue
            if self._kind == "process":
                if not worker.join(max(0.0, deadline - monotonic())):
                    worker.kill()
                    worker.join()
            elif self._channel.look(worker.n)[2] is None:
                worker.join(GRACE_S)

    def join(self, deadline: float | None) -> bool:
        """Waits for all workers' end, until a time of `monotonic`; whether they have ended."""
        with self._starting:  # one whose start began before the stop is among them
            workers = list(self.workers)
        for worker in workers:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            if worker is not None and not worker.join(left):
                return False
        return True

    def dismiss(self) -> None:
        """After the last worker's end: forgets them all and ends the threads that looked after them."""
        self.end_threads()
        self.workers = [None] * self._n_workers

    def end_threads(self) -> None:
        """Ends the thread that watches processes and the one that balances their budgets, if there are any."""
        if self._watcher is not None:
            self._watcher.stop()
        if self.enforcer is not None:
            self.enforcer.close()
