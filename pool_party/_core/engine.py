"""The life of one pool: it opens, runs, breaks and ends. It joins the table of calls, the submitter and the worker set.

One thread of the pool, the background thread, does everything that happens to workers and everything that ends the
pool. No signal handler interrupts it, and no caller that waits for a result depends on it. Other threads store their
requests and notify it (`Channel.notify`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from time import monotonic, sleep

from pool_party import _native
from pool_party._core import exit as _exit
from pool_party._core import watching
from pool_party._core.callbacks import Callbacks
from pool_party._core.greenlets import check_threads
from pool_party._core.outcomes import error_of
from pool_party._core.places import task_of
from pool_party._core.submit import Submitter
from pool_party._core.waiting import is_needed, refuse, wait_for_end
from pool_party._core.workers import WorkerSet
from pool_party._ground.errors import (
    PoolClosed,
    PoolPartyError,
    PoolTerminated,
    describe_exit,
    initializer_failed,
    pool_damaged,
    worker_lost,
)
from pool_party._ground.log import attempt, log_exception
from pool_party._ground.threads import PoolThread, start_thread
from pool_party._workers.base import Setup, WorkerHandle, start_method
from pool_party._workers.preloading import describe_cause

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from typing import Any

    from pool_party._core.contexts import Carrier
    from pool_party._core.options import Options
    from pool_party._core.remote_slots import RemoteSlots
    from pool_party._core.results import Call
    from pool_party._core.statistics import Statistics
    from pool_party._core.streams import StreamCall
    from pool_party._core.supervisor import Supervisor
    from pool_party._observe.trace import Tracing
    from pool_party._wire.definitions import Receivers

RETRY_S = 0.002  # how soon the background thread retries something for which no notification will come
RETRY_MAX_S = 1.0  # the same, once it has failed many times in a row
END_PAUSE_S = 0.002  # between checks whether a worker still runs a task of a cancelled call, in a thread of its own
TRIM_S = 0.3  # between checks for idle memory, which is given back after two of them,
TRIM_BUSY_S = 3.0  # or the same while calls are pending, which will soon need the memory again; guess

INIT, RUN, CLOSE, TERMINATE = "INIT", "RUN", "CLOSE", "TERMINATE"


def _receivers(setup: Setup) -> Receivers:
    from pool_party._wire.definitions import Receivers  # pools of threads do not need it

    receivers = Receivers(start_method(setup.config.context), imports_main=not setup.omits_main)
    receivers.is_by_value = setup.by_value
    return receivers


def _look_at_generators(setup: Setup) -> Callable[[Any], object] | None:
    """Return what warns of generators of random numbers in the functions of calls; None: one worker gets all."""
    config = setup.config
    if config.kind == "thread" or config.processes == 1:
        return None
    method, imports_main = start_method(config.context), not setup.omits_main
    watch: list[Any] = []

    def look(function: Any) -> None:
        if "numpy.random" in sys.modules or "random" in sys.modules:
            if not watch:
                from pool_party._core.generators import Watch

                watch.append(Watch(method, imports_main))
            watch[0].look(function)

    return look


def _worker_set(setup: Setup, channel: _native.Channel) -> WorkerSet | RemoteSlots:
    if setup.broker is None:
        return WorkerSet(setup, channel)
    from pool_party._core.remote_slots import RemoteSlots

    return RemoteSlots(setup.broker)


class Engine:
    """The engine of a pool, which runs from `open` on. Thread-safe, also inside signal handlers."""

    def __init__(
        self,
        channel: _native.Channel,
        setup: Setup,
        on_broken: Callable[[BaseException], object] | None = None,
        carrier: Carrier | None = None,
    ) -> None:
        config = setup.config
        self.kind = config.kind
        self.quotes = config.quote_items  # whether messages about tasks may quote their arguments
        self.state = INIT
        self.is_inherited = False  # this process is a child that was forked from the pool's process
        self.drains_at_exit = False  # at exit, what was submitted runs to its end first
        self._on_broken = on_broken
        self._carrier = carrier  # wraps the functions of calls, so that they have the caller's context variables
        self._channel = channel
        is_by_reference = config.kind == "thread" or setup.broker is not None
        setup.receivers = None if is_by_reference else _receivers(setup)
        self._submitter = Submitter(channel, setup.receivers, setup.broker, _look_at_generators(setup))
        self._callbacks = Callbacks(channel)
        self._workers = _worker_set(setup, channel)
        self._broker = setup.broker
        self._supervisor: Supervisor | None = None  # made for the first call with options
        self._stopped = _native.Job()  # set once `terminate` has done its work
        self._ended = _native.Job()  # set once the last worker has ended and all resources are released
        self._cause: BaseException | None = None  # why the pool is broken
        self._trimmed_at = 0.0  # on the monotonic clock
        self._is_damaged = False  # somebody has overwritten the shared memory
        self._must_look = False  # something has happened to a worker
        self._n_failures = 0  # of the background thread's last rounds, in a row
        self._must_terminate = False  # some workers could not be interrupted; `terminate` must be called again
        self._interrupts = False  # the pool's end gives tasks a moment to clean up
        self._has_stopped = False  # the background thread has done what `terminate` asks for
        self._wants_end = False  # the background thread has been asked to terminate the pool
        self._is_forced = False  # `end_workers` ends the pool, so pending calls fail with WorkerLost
        self._kills = False  # the pool's end sends SIGKILL to processes at once
        self._is_exiting = False  # the interpreter is ending
        self._final: tuple[Any, ...] | None = None  # the workers' part of the statistics, once they have ended
        self._opened = _native.Job()  # set once the workers have been started, or one could not be; then:
        self._open_error: BaseException | None = None
        self._is_forking = False
        self._tracing = _native.Guard()  # guards the beginning of a trace, and the next line; never taken in a handler
        self._is_traceable = True  # until the pool's last trace was ended
        self._background = PoolThread(self._run, "pool_party-background", channel)

    def open(self, setup: Setup) -> _native.Keeper:
        """Start the workers, and return a keeper: the pool ends when the last reference to it is gone."""
        try:
            return self._open(setup)
        except BaseException:
            self._undo_open()
            raise

    def _open(self, setup: Setup) -> _native.Keeper:
        """Start the workers.

        Forked ones start here, before the pool has threads; others start in the background thread.
        """
        check_threads()
        self._is_forking = setup.are_forked
        if self._is_forking:
            _native.call_apart(lambda: self._try(self._workers.prepare))  # it takes locks
            if self._open_error is None:
                self._workers.start()
        start_thread(self._background)
        self.wait(self._opened)
        if self._open_error is not None:
            raise self._open_error
        _exit.register(self, self.kind)
        keeper = self._channel.keeper()
        self.state = RUN
        watching.tell(watching.on_open, self)
        return keeper

    def _undo_open(self) -> None:
        if self._background.ident is not None:
            self.terminate()
            return

        def undo() -> None:
            try:
                self._give_up()
            finally:
                self._give_back()

        _native.call_apart(undo)  # a signal handler that raises must not end it halfway

    def _give_up(self) -> None:
        """End the workers that were started, after another one failed to start."""
        self._ask_for_end()
        self._workers.give_up()

    @property
    def n_workers(self) -> int:
        """The number of workers. Nodes that join or are lost change it."""
        return self._workers.n_workers

    # ---- submitting ----

    @property
    def is_running(self) -> bool:
        """Whether calls can be submitted."""
        return self.state == RUN and self._cause is None and not self.is_inherited

    def check_running(self) -> None:
        """Raise an error that says why, if nothing can be submitted."""
        if self.state != RUN or self._cause is not None or self.is_inherited:  # `is_running`, without its frame
            raise self._why_not_running()

    def _why_not_running(self) -> PoolPartyError:
        if self.is_inherited:
            return _inherited()
        return PoolClosed("Pool not running") if self._cause is None else self._broken()

    def _check_not_inherited(self) -> None:
        if self.is_inherited:
            raise _inherited()

    def submit_call(
        self,
        call: Call,
        fn: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options | None = None,
    ) -> None:
        """Submit one call of fn. A pickling error is the call's outcome. Raises: PoolClosed and the like."""
        if self.state != RUN or self._cause is not None or self.is_inherited:  # as `check_running`
            raise self._why_not_running()
        carried = fn
        if options is not None or self._carrier is not None:
            carried, options = self._prepared(fn, options)
        if options is not None:
            self.supervisor.oversee(call, options, lambda index: (carried, args, kwargs))
        is_admitted = self._submitter.call(call, carried, args, kwargs)
        if not is_admitted or self._workers.tracing is not None:
            self._note(is_admitted, call, fn, args)
        if options is not None:
            self.supervisor.note_admitted(call)

    def submit_map(self, call: Call, fn: Any, items: Any, star: bool, options: Options | None = None) -> None:
        """Submit a call of fn for each item, in tasks of call.chunk items. Raises: as `submit_call`.

        items: what `inputs.take` has returned.
        """
        carried, options = self._prepared(fn, options)
        call.is_star = star
        if options is not None:
            self.supervisor.oversee(call, options, lambda i: (carried, tuple(items[i]) if star else (items[i],), {}))
        self._note(self._submitter.map(call, carried, items, star), call, fn)
        if options is not None:
            self.supervisor.note_admitted(call)

    def submit_input(
        self, call: Call, fn: Any, source: Iterator[Any], star: bool, options: Options | None = None
    ) -> None:
        """Submit a call of fn for each item of an iterator, which is read while tasks run.

        Raises: as `submit_call`; RuntimeError without a thread.
        """
        carried, options = self._prepared(fn, options)
        if options is not None:
            kept: dict[int, Any] = {}
            self.supervisor.oversee(
                call, options, lambda i: (carried, tuple(kept[i]) if star else (kept[i],), {}), kept
            )
        self._note(self._submitter.read(call, carried, source, star), call, fn)
        if options is not None:
            self.supervisor.note_admitted(call)

    @property
    def supervisor(self) -> Supervisor:
        """What enforces the options of calls. It is made when it is first used."""
        if self._supervisor is None:
            from pool_party._core.supervisor import Supervisor

            made = Supervisor(self._channel, self._submitter, self._workers, self.kind)
            self._supervisor = self.__dict__.setdefault("_first_supervisor", made)  # of several threads' the first
        return self._supervisor

    def submit_feed(self, call: StreamCall, fn: Any, options: Options | None = None) -> None:
        """Submit a call whose tasks `submit_to_feed` adds one by one, until `end_feed`. Raises: as `submit_call`.

        Of the options only `timeout_s` is for feeds.
        """
        call.limit_s = None if self._broker is None or options is None else options.timeout_s
        _, options = self._limited(fn, options)
        if options is not None:
            self.supervisor.oversee(call, options, lambda index: (fn, (), {}))
            call.is_fed = True
        call.called = fn
        self._note(self._channel.admit(call), call, fn)

    def submit_to_feed(self, call: StreamCall, fn: Any, index: int, value: Any) -> None:
        """Add a call of fn. A pickling error is its outcome. Raises: as `submit_call`."""
        self.check_running()
        if not call.reserve():
            raise self._why_not_running()
        self._submitter.add(call, self._limit(self._carried(fn), call.limit_s), index, value)
        if call.supervision is not None:
            self.supervisor.note_admitted(call)

    def end_feed(self, call: StreamCall, n_tasks: int) -> None:
        """Note that no more tasks will be added to the call."""
        self._channel.end_input(call, n_tasks)

    def _prepared(self, fn: Any, options: Options | None) -> tuple[Any, Options | None]:
        """Return the function as tasks call it, and the options that the supervisor enforces."""
        if options is None:
            return self._carried(fn), None
        return self._limited(self._carried(fn, options), options if options.is_watched else None)

    def _carried(self, fn: Any, options: Options | None = None) -> Any:
        """Wrap a function for the context variables of its tasks, as the call's options say, or else the pool."""
        wanted = options and options.context
        if wanted:
            from pool_party._core.contexts import InCopy

            return InCopy(fn)
        return fn if self._carrier is None or wanted is False else self._carrier(fn)

    def _limited(self, fn: Any, options: Options | None) -> tuple[Any, Options | None]:
        """Leave the time that tasks may run to the nodes, if there are any: they know when a worker begins one."""
        if self._broker is None or options is None or options.timeout_s is None:
            return fn, options
        from dataclasses import replace

        return self._limit(fn, options.timeout_s), replace(options, timeout_s=None)

    def _limit(self, fn: Any, limit_s: float | None) -> Any:
        if limit_s is None:
            return fn
        from pool_party._cluster.slots import Limited

        return Limited(fn, limit_s)

    def _note(self, is_admitted: bool, call: Call, fn: Any, args: tuple[Any, ...] = ()) -> None:
        if not is_admitted:
            raise self._why_not_running()
        if (tracing := self._workers.tracing) is not None:
            tracing.note_call(call.id, fn, args)

    # ---- waiting ----

    def wait(self, job: _native.Job, timeout: float | None = None) -> bool:
        """Wait until a job is done. Return False after `timeout` seconds, even if other results arrive meanwhile."""
        if self.is_inherited or self._is_exiting or self._callbacks.running:  # otherwise nothing is to be prepared
            return not self.begin_wait(job) or self._channel.wait(job, timeout)
        return self._channel.wait(job, timeout)

    def next(self, call: StreamCall, timeout: float | None) -> Any:
        """Return a stream's next (status, value, index), None at its end, or False after `timeout` seconds."""
        self.begin_wait(call)
        return self._channel.next(call, timeout)

    def begin_wait(self, job: _native.Job) -> bool:
        """Prepare the calling thread for waiting for a job: another thread takes over callbacks that it would run.

        Return False if it must not wait, since it runs a callback of that very job. Raise an error if the job will
        never be done.
        """
        if self.is_inherited:
            raise _inherited()
        if self._is_exiting and self._is_alone() and not job.done:
            raise PoolTerminated("Pool not running: the interpreter ended while this call was pending")
        if self._callbacks.running:
            if self._callbacks.is_of(job):
                return False
            self._callbacks.delegate()
        return True

    def _is_alone(self) -> bool:
        """Whether the interpreter runs its last finalizers, when the pool's threads have stopped for good."""
        return self._is_exiting and sys.is_finalizing()

    def cancel(self, call: Call) -> bool:
        """Withdraw the tasks of a call that no worker has begun. Return False if it is too late."""
        if self._broker is None:
            return self._channel.cancel(call)
        if self._channel.cancel(call):
            self._broker.withdraw(call.id, is_settled=True)
            return True
        if call.settled or not self._broker.withdraw(call.id, is_settled=False):
            return False
        self._channel.settle(call, _native.STATUS_CANCELLED, None)  # unless the broker's answer was faster
        return True

    def settle(self, call: Call, status: int, value: Any) -> bool:
        """Give a call an outcome, and withdraw its tasks that no worker has begun. Return False if it has one."""
        if not self._channel.settle(call, status, value):
            return False
        self._channel.revoke(call)
        if self._broker is not None:
            self._broker.withdraw(call.id, is_settled=True)
        return True

    def kill(self, call: Call) -> bool:
        """Cancel a call, and kill the processes that run tasks of it. Return False if it has its outcome."""
        return not self.is_inherited and self.supervisor.kill(call)

    def end(self, call: Call, kills: bool) -> None:
        """Withdraw the tasks of a call that no worker has begun, and wait until no worker runs one of the others.

        With `kills`, the worker processes that run them are killed. A process is stopped before it is checked which
        task it runs, since it may go on to a task of another call at any time. No such task is lost.
        """
        while True:
            self.cancel(call)
            holders = self._channel.holders(call)
            if not holders and call.settled:
                return
            for n in holders or ():
                if kills:
                    self._workers.kill_if(n, lambda n=n: n in (self._channel.holders(call) or ()))  # type: ignore[misc]
            sleep(END_PAUSE_S)

    def is_begun(self, call: Call) -> bool:
        """Whether a worker is running a task of the call now."""
        return self._channel.is_begun(call)

    # ---- the background thread ----

    def _run(self) -> None:
        try:
            self._start_workers()
            while not self._workers.is_over():
                self._channel.wait_background(self._pause_s())
                self._n_failures = 0 if attempt(self._attend) else self._n_failures + 1
        finally:
            self._give_back()

    def _start_workers(self) -> None:
        steps = () if self._is_forking else (self._workers.prepare, self._workers.start)
        for step in (*steps, self._workers.follow):
            self._try(step)
        try:
            if self._open_error is not None:
                self._give_up()
        finally:
            self._channel.set(self._opened)

    def _try(self, step: Callable[[], object]) -> None:
        """Do one step of opening, unless an earlier one has failed."""
        if self._open_error is None:
            try:
                step()
            except BaseException as error:
                self._open_error = error

    def _pause_s(self) -> float | None:
        """How long to sleep at most. It never raises: the channel must stay open while workers use it."""
        try:
            return self._retry_in_s()
        except BaseException:
            log_exception("looking after the pool failed; it goes on")
            return RETRY_MAX_S

    def _retry_in_s(self) -> float | None:
        if self._n_failures:  # what was not done must be done, though nothing may wake this thread for it
            return min(RETRY_MAX_S, RETRY_S * 2.0 ** min(self._n_failures, 10))
        if self._channel.must_retry or self._must_terminate:
            return RETRY_S
        if self._channel.wants_trim:
            return min(TRIM_S, self._workers.retry_in_s() or TRIM_S)
        return self._workers.retry_in_s()

    def _trim(self) -> None:
        """Give back memory that no value has needed for a while."""
        _, n_pending, _ = self._channel.call_counts()
        now = monotonic()
        if now < self._trimmed_at + (TRIM_BUSY_S if n_pending else TRIM_S):
            return
        self._trimmed_at = now
        self._channel.trim()

    def _attend(self) -> None:
        channel = self._channel
        if channel.is_damaged:
            self._is_damaged = True
            self._break(pool_damaged())
        channel.feed()
        channel.take_results()
        if self._supervisor is not None:
            self._supervisor.attend()
        if channel.wants_runner:
            self._start_callbacks()
        if channel.idle.done:
            self._workers.stop()
        self._must_look = channel.take_events() or self._must_look
        if self._must_look:
            self._look_at_workers()
            self._must_look = False  # unless that has raised
        for report in channel.take_reports():  # before slots are filled: it may be a worker's last message
            self._break(report if isinstance(report, BaseException) else error_of(_native.STATUS_FAILED, report))
        if channel.idle.done:  # checked again, since workers may have ended because of it after the first check
            self._workers.stop()
        if not self._workers.is_stopping:
            cause = self._workers.fill_slots()
            if cause is not None:
                self._break(cause)
            self._workers.look_at_memory()
        if channel.wants_trim:
            self._trim()
        if self._must_terminate:
            self._must_terminate = not self._end_workers()
        if self._wants_end and not self._has_stopped:
            self._stop()
        elif channel.is_abandoned and self.state == RUN:
            self._end_abandoned()

    def _end_abandoned(self) -> None:
        """End a pool object that is garbage. What was submitted to an executor still runs."""
        if self.drains_at_exit:
            self.close()
        else:
            self._ask_for_end()

    def _start_callbacks(self) -> None:
        try:
            self._callbacks.start()
        except RuntimeError:  # no thread can start: out of memory, or the interpreter is ending
            self._callbacks.run_here()

    def _look_at_workers(self) -> None:
        """Note which workers are ready, and reap those that have ended.

        Only the task that a dead worker held fails. It gets its outcome first, since what follows may raise: a
        process may be of a class of the program's own.
        """
        if self._workers.enforcer is not None:
            attempt(self._workers.enforcer.look)
        attempt(self._workers.note_ready)
        for worker in self._workers.take_ended():
            attempt(self._put_away, worker)

    def _put_away(self, worker: WorkerHandle) -> None:
        n_done = self._channel.n_done(worker.n)
        lost: tuple[Any, int] | None = (None, 0)
        try:
            lost = self._channel.reap(worker.n)
            self._workers.remove(worker, lost is not None)
            if lost is not None and lost[0] is not None:
                self._deliver_loss(*lost, worker)
        except BaseException as error:  # no memory: it is unknown which task is lost
            self._break(error)
        if (why := self._workers.put_away(worker, n_done)) is not None:
            self._break(worker_lost(why, worker.pid, worker.exitcode))

    def _deliver_loss(self, call: Any, index: int, worker: WorkerHandle) -> None:
        if call.supervision is not None:
            self.supervisor.attend()  # an earlier task's outcome may have been taken only when the worker was reaped
            self.supervisor.note_outcome(call, index, _native.STATUS_RAISED, self._loss(call, index, worker), worker.n)
        else:
            self._channel.deliver(call, index, _native.STATUS_RAISED, self._loss(call, index, worker))

    def _loss(self, call: Call, index: int, worker: WorkerHandle) -> PoolPartyError:
        """Return the error of the task that a dead worker held."""
        how = describe_exit(worker.exitcode)
        if getattr(worker, "was_cut_off", False):
            how += ", since the program has closed file descriptors of pool_party (as os.closerange does),"
        if n_bytes := getattr(worker, "burst_bytes", 0):
            from pool_party._budget import memory

            limit = memory.format_bytes(self._workers.memory_limit)
            how = f"was killed because it had {memory.format_bytes(n_bytes)}, more than worker_memory_limit={limit},"
        return worker_lost(
            f"worker {worker.name} (pid {worker.pid}) {how} while it ran this task: "
            f"{task_of(call, index, self.quotes)}. The pool has replaced it and other tasks are not affected",
            worker.pid,
            worker.exitcode,
        )

    def _break(self, cause: BaseException) -> None:
        """Break the pool, since no worker can work: every pending call fails, and so does every later one."""
        if self._cause is not None:
            return
        self._cause = cause
        self._channel.close_calls()
        if self._on_broken is not None:
            attempt(self._on_broken, cause)
        self._workers.stop()
        self._channel.stop(_native.STOP_NOW)
        self._fail_all(self._broken)
        self._must_terminate = not self._workers.terminate()

    def _broken(self) -> PoolPartyError:
        if self._is_damaged:
            return pool_damaged()
        assert self._cause is not None
        if self._broker is not None:
            from pool_party._ground.broken import ClusterLost

            if isinstance(self._cause, ClusterLost):
                return ClusterLost(str(self._cause))
        error = initializer_failed(f"the pool is broken, since no worker can be made: {describe_cause(self._cause)}")
        error.__cause__ = self._cause
        return error

    def _fail_all(self, make_error: Callable[[], BaseException]) -> None:
        for call in self._channel.jobs():
            attempt(lambda call=call: self._channel.settle(call, _native.STATUS_RAISED, make_error()))

    def _stop(self) -> None:
        """Do what `terminate` asks for."""
        self._has_stopped = True
        self._workers.stop()
        self._channel.stop(_native.STOP_NOW)
        # Fail the calls first, so that the SystemExit which interrupts a task does not become its outcome. While the
        # interpreter ends, only daemon threads can still wait for results, and those stay asleep.
        if not self._is_exiting:
            self._fail_all(self._lost if self._is_forced else _terminated)
        if self._interrupts:
            attempt(self._workers.interrupt)
        self._must_terminate = not self._end_workers(spares_idle=True)
        for step in (self._workers.wait_ended, self._flush_relay, self._finish_trace):
            attempt(step)
        self._channel.set(self._stopped)

    def _end_workers(self, spares_idle: bool = False) -> bool:
        return self._workers.kill() if self._kills else self._workers.terminate(spares_idle=spares_idle)

    def _lost(self) -> PoolPartyError:
        how = "kill_workers" if self._kills else "terminate_workers"
        return worker_lost(f"the executor's workers were ended by {how} while this call was pending", None, None)

    def _give_back(self) -> None:
        """End the other threads after the last worker has ended, and release memory and descriptors."""
        with self._tracing:
            self._is_traceable = False
        for step in (self._finish_trace, self._end_callbacks, self._note_end, self._workers.end_threads):
            attempt(step)
        attempt(self._submitter.clear)
        self._channel.set(self._stopped)
        self._channel.set(self._ended)
        if not self._is_exiting:  # at exit, daemon threads that wait for results keep waiting until the process ends
            self._channel.close()

    def _end_callbacks(self) -> None:
        """Let callbacks run, and end what may still give a call an outcome."""
        if not self._is_exiting:
            self._fail_all(lambda: PoolTerminated("Pool not running: it has ended"))
        if self._channel.wants_runner:
            self._start_callbacks()
        self._callbacks.end()
        if self._supervisor is not None:
            self._supervisor.end()

    def _note_end(self) -> None:
        if self.state != INIT:
            self._final = self._workers.budget()
            watching.tell(watching.on_end, self)

    # ---- the end ----

    def close(self) -> None:
        """Accept no more calls. Workers end when the last pending one is done."""
        if not self.is_inherited and self.state in (INIT, RUN):
            self._channel.close_calls()
            self.state = CLOSE

    def check_may_wait(self) -> None:
        """Raise an error if the calling thread must not wait for the pool's end: CannotWait if that end needs it."""
        self._check_not_inherited()
        if not self._is_alone() and self._is_needed():
            raise refuse()

    def _is_needed(self) -> bool:
        is_terminated = self.state == TERMINATE or self._cause is not None
        return is_needed(self._channel, is_terminated, self._has_delegated)

    def _has_delegated(self) -> bool:
        relay = self._workers.relay
        return self._callbacks.are_running_here() or (relay is not None and relay.is_handling())

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end of a closed pool. Return False after `timeout` seconds. Raises: as `check_may_wait`."""
        self.check_may_wait()
        return wait_for_end(self._channel, self.await_end, timeout)

    def await_end(self, timeout: float | None = None) -> bool:
        """As `join`, in a thread which that end certainly does not need."""
        if self._is_alone():
            return True
        deadline = None if timeout is None else monotonic() + timeout
        self._callbacks.leave()
        for call in self.calls():
            call.lift_window()
        if not self._wait_for_end(self._ended, timeout):
            return False
        self._background.join(None if deadline is None else max(0.0, deadline - monotonic()))
        return not self._background.is_alive()

    def terminate(self) -> None:
        """Stop workers in the middle of their tasks. Pending calls fail with PoolTerminated.

        Waits until processes are dead, and threads and interpreters without a task have ended, unless the pool's end
        needs the calling thread.
        """
        if self.is_inherited:
            return
        self._ask_for_end()
        if not self._is_alone() and not self._is_needed():
            self._wait_for_end(self._stopped)

    def _wait_for_end(self, event: _native.Job, timeout: float | None = None) -> bool:
        """Wait in a thread that needs the pool's end, which may be a log handler's. Return False after the timeout."""
        relay = self._workers.relay
        if relay is None:
            return self.wait(event, timeout)
        with relay.waiting_for_end():
            return self.wait(event, timeout)

    def _flush_relay(self) -> None:
        if self._workers.relay is not None:
            self._workers.relay.flush()

    def interrupt(self) -> None:
        """As `terminate`, but tasks have a moment to clean up; in processes KeyboardInterrupt is raised for that."""
        self._interrupts = True
        self.terminate()

    def end_workers(self, kills: bool) -> None:
        """As `terminate`, but do not wait, and let pending calls fail with WorkerLost."""
        if not self.is_inherited and self.state != TERMINATE:
            self._kills = kills
            self._is_forced = True
            self._ask_for_end()

    def _ask_for_end(self) -> None:
        self.state = TERMINATE
        self._wants_end = True
        self._workers.stop()
        self._channel.close_calls()
        self._channel.stop(_native.STOP_NOW)
        self._channel.notify()

    def end_at_exit(self) -> None:
        """End a pool that is still open when the interpreter ends.

        Its interpreters and processes must have ended by then. CPython hangs or crashes if interpreters have not, so
        they end also if a signal handler raises meanwhile, as that of Ctrl-C does.
        """
        try:
            self._end_at_exit()
        finally:
            if self.kind == "interp":
                self._end_interpreters()

    def _end_interpreters(self) -> None:
        try:
            self.terminate()
            while not self.await_end(0.25):
                self._workers.terminate()  # again, since a task may have swallowed the exception
        except BaseException:
            self._end_interpreters()
            raise

    def _end_at_exit(self) -> None:
        drains = self.drains_at_exit and self._cause is None and self.state != TERMINATE
        if drains and not _is_interrupted():
            self.close()
            self.await_end()
            return
        self._interrupts = drains
        self._is_exiting = self._background.daemon and not drains  # threads of the program may still wait for futures
        self.terminate()
        if self.kind == "process":
            self.await_end()

    def disown(self) -> None:
        """Called in a forked child, where the workers belong to the parent process."""
        self.is_inherited = True
        self._workers.tracing = None

    # ---- looking ----

    def trace(self, path: str | os.PathLike[str], max_events: int) -> Tracing:
        """Start recording what the workers do."""
        from pool_party._observe.trace import Tracing

        if self._broker is not None:
            raise PoolPartyError(f"a pool of kind={self.kind!r} cannot be traced: its workers are on other machines")
        if max_events < 1:
            raise ValueError(f"max_events must be 1 or more, not {max_events}")
        self.check_running()
        workers = self._workers
        about = {"kind": self.kind, "policy": workers.enforcer and workers.enforcer.policy}
        tracing = Tracing(path, max_events, self._channel, self.n_workers, about, self._forget_trace, workers.slots)
        _native.call_apart(lambda: self._enter_trace(tracing))
        try:
            tracing.start(lambda: self.workers, lambda: workers.budget()[1])
        except BaseException:
            workers.tracing = None
            raise
        if workers.enforcer is not None:
            workers.enforcer.on_grant = tracing.note_budget
        return tracing

    def _enter_trace(self, tracing: Tracing) -> None:
        """From here on the background thread ends the trace, before it closes the channel that the trace reads."""
        with self._tracing:
            if not self._is_traceable:
                raise self._why_not_running()
            if (other := self._workers.tracing) is not None:
                raise PoolPartyError(f"this pool is being traced already, to {other.path}")
            self._workers.tracing = tracing

    def _forget_trace(self) -> None:
        if self._workers.enforcer is not None:
            self._workers.enforcer.on_grant = None
        self._workers.tracing = None

    def _finish_trace(self) -> None:
        if (tracing := self._workers.tracing) is not None:
            tracing.finish()

    @property
    def workers(self) -> list[WorkerHandle]:
        """The living workers that have a pid, so that the system knows them."""
        return [worker for worker in self._workers.slots if worker is not None and worker.pid is not None]

    def calls(self) -> list[Call]:
        """The calls in progress."""
        return self._channel.jobs()  # type: ignore[return-value]  # nothing else is admitted

    def statistics(self) -> Statistics:
        """The pool's counts at this moment."""
        from pool_party._core.statistics import Statistics

        n_submitted, n_pending, n_failed = self._channel.call_counts()
        n_retried = n_overdue = 0
        if (supervisor := self._supervisor) is not None:
            n_retried, n_overdue = supervisor.n_retried, supervisor.n_overdue()
        (policy, n_threads, n_lends, n_reclaims, n_waits, waited_s), n_starting = self._look()
        return Statistics(
            self.kind,
            self.n_workers,
            n_submitted,
            max(0, n_submitted - n_pending),
            n_failed,
            n_pending,
            self._workers.n_started,
            self._workers.n_lost,
            policy,
            n_threads,
            n_lends,
            n_reclaims,
            n_waits,
            waited_s,
            n_starting,
            self._channel.idle_bytes,
            n_retried,
            n_overdue,
            0 if self._workers.relay is None else self._workers.relay.n_lost,
        )

    def _look(self) -> tuple[tuple[Any, ...], int]:
        try:
            return self._final or self._workers.budget(), self._workers.n_starting
        except ValueError:  # the channel was closed meanwhile
            return self._final or (None, (), 0, 0, 0, 0.0), 0


def _is_interrupted() -> bool:
    """Whether the program ends because of a Ctrl-C that nobody has caught. At a prompt one may be of long ago."""
    return isinstance(getattr(sys, "last_exc", None), KeyboardInterrupt) and not hasattr(sys, "ps1")


def _inherited() -> PoolPartyError:
    return PoolPartyError("this pool belongs to the process that made it; a forked child must make a pool of its own")


def _terminated() -> PoolPartyError:
    return PoolTerminated("Pool not running: it was terminated while this call was pending")
