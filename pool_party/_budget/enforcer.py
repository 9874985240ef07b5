"""Puts a pool's plan into force: sets budgets at the start, and whenever workers become idle or active."""

import os
import threading
from collections.abc import Callable, Sequence

from pool_party import _native
from pool_party._budget import limiter, neighbours, policies
from pool_party._budget.plan import Plan
from pool_party._budget.split import WorkerBudget
from pool_party._ground.log import log_exception
from pool_party._native import Gate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pool_party._budget.gate import Entry
    from pool_party._budget.machine import Presence

PERIOD_S = 0.005  # between two looks at workers; guess: CPUs are lent after three of others.c's, which take 10 ms
SETTLE_S = 0.001  # how long a worker must be idle before its CPUs are lent; guess: far above a gap between two tasks


class Enforcer:
    """Puts a plan into force for one pool. The worker set tells it of workers. Thread-safe."""

    def __init__(
        self, plan: Plan, channel: _native.Channel, pid_of: Callable[[int], int | None], are_forked: bool
    ) -> None:
        self.plan = plan
        self._are_forked = are_forked  # whether workers are forked
        self.policy = policies.name_of(plan.policy)
        self.n_lends = self.n_reclaims = 0
        self._channel = channel
        self._pid_of = pid_of  # returns the pid of worker process n
        self._lock = _native.Guard()  # guards what follows; reentrant: a signal handler may end an opening pool
        self._now = list(plan.own)
        self._seen_loads = 0
        self._has_failed = False  # whether the policy has raised
        self._asked: policies.State | None = None  # what the policy was asked about last
        self.gate: Gate | None = None
        self._presence: Presence | None = None  # if this pool has a part of the machine's threads
        self.on_grant: Callable[[int, int], object] | None = None  # called with a worker's number and its threads
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._balancing = _native.Guard()  # guards the start of `_thread`

    def open(self) -> "Entry | None":
        """Set the first budgets, before the first worker starts.

        Return what worker processes do at their start besides keeping to their budgets, if anything.
        """
        plan, entry = self.plan, None
        if policies.needs_gate(plan.policy):
            from pool_party._budget.gate import open_for

            self.gate, entry = open_for(plan)
        elif plan.scope == "machine":
            from pool_party._budget import machine

            self._presence = machine.join(self)
        if plan.kind != "process":
            self._limit_process(plan.own)
        limiter.open_pool(self.plan.cpus if self.plan.pins and not self.is_remote else (), self._rebound)
        self.look()
        return entry

    def _limit_process(self, shares: Sequence[WorkerBudget]) -> None:
        """Limit the libraries of this process, which its threads and interpreters share, to the smallest budget."""
        n_threads = min(share.n_threads for share in shares)
        self._channel.limit(self.plan.n_threads, n_threads, self.plan.divider == "workers")

    def start(self) -> None:
        """Start balancing, after the first workers have started."""
        if not policies.needs_gate(self.plan.policy):
            neighbours.join(self)
        if not policies.is_fixed(self.plan.policy):
            self._channel.lend(self.plan.n_threads)
        if self.plan.divider == "balancer":
            self.balance()

    def balance(self) -> None:
        """Start the balancer, the thread that follows which workers are active, unless it runs already."""
        from pool_party._ground.threads import PoolThread, start_thread

        with self._balancing:
            if self._thread is not None or self._is_closed.is_set():
                return
            self._channel.watch()
            self._thread = PoolThread(self._balance, "pool_party-balancer", self._channel)
            start_thread(self._thread)

    def reconsider(self) -> None:
        """Wake the balancer, because other pools have more or less work."""
        self._channel.pulse()

    @property
    def is_remote(self) -> bool:
        """Whether the workers are in other processes."""
        return self.plan.kind == "process"

    @property
    def _is_followed(self) -> bool:
        """Whether the balancer changes budgets. If not, native code follows the built-in rules."""
        return self.is_remote or self.plan.divider == "balancer"

    @property
    def has_to_share(self) -> bool:
        """Whether workers have threads to give up when other pools have work."""
        return max(share.n_threads for share in self.plan.own) > 1

    def grant(self, n: int) -> None:
        """Give worker n its own budget, before it starts."""
        if self.is_remote:
            self.look()
        with self._lock:
            self._now[n] = self.plan.own[n]
        self._tell_library(n, self.plan.own[n])
        self._tell(n, self.plan.own[n])

    def _tell_library(self, n: int, share: WorkerBudget) -> None:
        """Tell a worker its count. What the user has set in this process limits worker processes, too."""
        most = _native.user_most() if self.is_remote else share.n_threads
        self._channel.grant(n, min(share.n_threads, most))

    def _rebound(self) -> None:
        """Apply a count that the user has set in this process.

        Another thread may report it after the pool has ended.
        """
        with self._lock:
            if self.is_remote and not self._is_closed.is_set():
                for n, share in enumerate(self._now):
                    self._tell_library(n, share)

    def _tell(self, n: int, share: WorkerBudget) -> None:
        if (on_grant := self.on_grant) is not None:
            on_grant(n, share.n_threads)

    def look(self) -> None:
        """Find newly loaded libraries of this process, and what the user has set for them.

        This serves workers that cannot do it themselves. Interpreters have none of our Python code for it. A forked
        worker would call the dynamic loader, whose lock another thread may have held during the fork; it inherits what
        is known here.
        """
        if self._seen_loads != (n := _native.n_loads()):
            self._seen_loads = n
            try:
                limiter.refresh(forks=self._are_forked)
            except Exception:
                log_exception("native libraries could not be looked for; new ones are not limited")

    @property
    def n_threads(self) -> tuple[int, ...]:
        """Each worker's number of threads now."""
        if self.plan.kind != "process":
            return self._channel.counts()
        return tuple(share.n_threads for share in tuple(self._now))  # no lock, since a signal handler may call this

    def lends(self) -> tuple[int, int]:
        """How often budgets were raised above a worker's own, and how often they were lowered to it again."""
        here = self._channel.lends()
        return self.n_lends + here[0], self.n_reclaims + here[1]

    def forget(self, pid: int | None) -> None:
        """Put back the gate's tokens that a dead worker process held."""
        if self.gate is not None and pid is not None:
            self.gate.forget(pid)

    def waits(self) -> tuple[int, float]:
        """How often regions have waited for others, and for how long in total, in seconds."""
        return (0, 0.0) if self.gate is None else (self.gate.n_waits, self.gate.waited_s)

    def close(self) -> None:
        """Give libraries their previous counts back, after the last worker has ended."""
        with self._lock:  # excludes the balancer; a second caller waits until everything is restored
            if self._is_closed.is_set():
                return
            self._is_closed.set()
            neighbours.leave(self)
            self._channel.lend(0)
            limiter.close_pool(self._rebound)
            if self.plan.kind != "process":
                self._channel.limit(self.plan.n_threads, 0, False)
        self._channel.pulse()
        with self._balancing:
            thread = self._thread
        if thread is not None and thread.ident and thread is not threading.current_thread():
            thread.join()
        if self._presence is not None:
            from pool_party._budget import machine

            machine.leave(self)

    # ---- the balancer ----

    def _balance(self) -> None:
        pulse = 0
        while not self._is_closed.is_set():
            pulse = self._wait(pulse)
            if not self._is_followed:
                neighbours.tell(self, sum(self._channel.awake()))
                continue
            shares = self._ask()
            if self._raises(shares):
                if self._is_closed.wait(SETTLE_S):
                    return
                shares = self._ask()
            self._apply(shares)

    def _wait(self, pulse: int) -> int:
        """Wait for what may change budgets.

        While nothing is lent, a worker's task or pause that ends before two looks changes nothing. So the balancer does
        not run then: it would need a CPU, and the GIL, just when the thread that waits for the task does.
        """
        may_sleep = type(self.plan.policy) is policies.Dynamic and self._presence is None
        if self._asked is None or not may_sleep or self._now != list(self.plan.own):
            return self._channel.wait_pulse(pulse)
        return self._channel.wait_change(pulse, self._asked.awake, self.plan.n_threads, self._asked.n_left, PERIOD_S)

    def _ask(self) -> Sequence[WorkerBudget]:
        plan, awake = self.plan, self._channel.awake()
        n_awake = sum(awake)
        neighbours.tell(self, n_awake)
        n_others = neighbours.n_others_awake(self)
        n_left = _native.cpus_left(plan.n_threads)
        state = policies.State(plan.cpus, plan.n_threads, plan.own, awake, n_left, n_others)
        self._asked = state
        shares, n_threads = self._shares(state), plan.n_threads
        if self._presence is not None:
            n_threads = self._presence.share(self, n_awake, policies.active_threads(shares, awake))
        elif n_awake == 0 or n_others == 0:
            return shares
        return policies.fit(shares, awake, n_threads, n_others)

    def task_counts(self) -> tuple[int, int]:
        """Return how many tasks are done, and how many are not."""
        n_submitted, n_pending, _ = self._channel.call_counts()
        return max(0, n_submitted - n_pending), n_pending

    def _shares(self, state: policies.State) -> Sequence[WorkerBudget]:
        try:
            return policies.check(self.plan.policy.shares(state), state)
        except BaseException:  # even SystemExit, which would end this thread and freeze the budgets
            if not self._has_failed:  # log once, rather than for each task
                log_exception("the policy failed; while it does, each worker has its own budget")
            self._has_failed = True
            return self.plan.own

    def _raises(self, shares: Sequence[WorkerBudget]) -> bool:
        return any(new.n_threads > old.n_threads for new, old in zip(shares, self._now, strict=True))

    def _apply(self, shares: Sequence[WorkerBudget]) -> None:
        """Apply new budgets.

        It lowers before it raises, so that their sum never exceeds both the old and the new one.
        """
        with self._lock:
            if self._is_closed.is_set():
                return
            changes = [(n, old, new) for n, (old, new) in enumerate(zip(self._now, shares, strict=True)) if old != new]
            for n, old, new in sorted(changes, key=lambda change: change[2].n_threads - change[1].n_threads):
                self._change(n, old, new)
            awake = self._channel.awake()
            if self._presence is not None:
                self._presence.note(self, policies.active_threads(shares, awake))
            if self.plan.kind != "process":
                active = [share for share, is_awake in zip(shares, awake, strict=True) if is_awake]
                self._limit_process(active or shares)

    def _change(self, n: int, old: WorkerBudget, new: WorkerBudget) -> None:
        """Change one budget.

        CPUs grow before threads, and shrink after them: a library never has more threads than CPUs.
        """
        if new.n_threads > old.n_threads:
            self.n_lends += old == self.plan.own[n]
            self._keep_on(n, new)
            self._tell_library(n, new)
        else:
            self.n_reclaims += new == self.plan.own[n]
            self._tell_library(n, new)
            self._keep_on(n, new)
        self._now[n] = new
        self._tell(n, new)

    def _keep_on(self, n: int, share: WorkerBudget) -> None:
        """Pin the thread that runs the tasks. The library's own threads may use all of the pool's CPUs."""
        pid = self._pid_of(n) if self.plan.kind == "process" and self.plan.affinity else None
        if pid is not None:
            try:
                os.sched_setaffinity(pid, share.cpus)
            except (ProcessLookupError, PermissionError):
                pass  # the process has ended
