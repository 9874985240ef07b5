"""A pool's plan put into force: what workers are granted, now and whenever others fall asleep or wake."""

import os
import threading
from collections.abc import Callable, Sequence

from pool_party import _native
from pool_party._core.log import log_exception
from pool_party._native import Gate
from pool_party.budget import arbiter, neighbours, policies
from pool_party.budget.plan import Plan
from pool_party.budget.split import WorkerBudget

SETTLE_S = 0.001  # how long a worker must sleep before its CPUs are lent; guess: far above a gap between two tasks


class Enforcer:
    """Puts a plan into force for one pool. The crew tells it of workers; thread-safe."""

    def __init__(
        self, plan: Plan, channel: _native.Channel, pid_of: Callable[[int], int | None], are_forked: bool
    ) -> None:
        self.plan = plan
        self._are_forked = are_forked  # the workers
        self.policy = policies.name_of(plan.policy)
        self.n_lends = self.n_reclaims = 0
        self._channel = channel
        self._pid_of = pid_of  # of a worker process
        self._lock = threading.RLock()  # guards what follows; a signal handler may end the pool that is being opened
        self._now = list(plan.own)
        self._seen_loads = 0
        self._has_failed = False  # the policy
        self.gate: Gate | None = None
        self.on_grant: Callable[[int, int], object] | None = None  # told of worker and threads
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._balancing = threading.Lock()  # guards the start of that

    def open(self) -> Gate | None:
        """Before the first worker starts; the gate that its worker processes are to pass, if any."""
        plan = self.plan
        if plan.is_gated:
            from pool_party.budget.gate import open_gate

            self.gate = open_gate(plan.scope, plan.n_threads)
            if plan.kind != "process":
                self.gate = arbiter.open_gate(self.gate, plan.is_exclusive)
        if plan.kind != "process":
            self._limit_process(plan.own)
        arbiter.open_pool(self.plan.cpus if self.plan.pins and not self.is_remote else (), self._rebound)
        self.look()
        return self.gate

    def _limit_process(self, shares: Sequence[WorkerBudget]) -> None:
        """Threads and interpreters share their process's libraries, and so the smallest budget."""
        n_threads = min(share.n_threads for share in shares)
        self._channel.limit(self.plan.n_threads, n_threads, self.plan.lends)

    def start(self) -> None:
        """After the first workers have started."""
        if not self.plan.is_gated:
            neighbours.join(self)
        if self.plan.lends or self.plan.is_balanced:
            self._channel.lend(self.plan.n_threads)
        if self.plan.is_balanced:
            self.balance()

    def balance(self) -> None:
        """Starts the thread that follows who is awake, if it does not run yet."""
        from pool_party._core.threads import start_thread

        with self._balancing:
            if self._thread is not None or self._is_closed.is_set():
                return
            self._channel.watch()
            self._thread = threading.Thread(target=self._balance, name="pool_party-balancer")
            start_thread(self._thread)

    def reconsider(self) -> None:
        """Other pools have more work, or less."""
        self._channel.pulse()

    @property
    def is_remote(self) -> bool:
        """Whether the workers are in other processes."""
        return self.plan.kind == "process"

    @property
    def _is_followed(self) -> bool:
        """Whether the balancer is who changes budgets: not where native code follows the built-in rules."""
        return self.plan.is_balanced or self.is_remote

    @property
    def has_to_share(self) -> bool:
        """Whether there is something to give up when other pools have work."""
        return max(share.n_threads for share in self.plan.own) > 1

    def grant(self, n: int) -> None:
        """Before worker n starts."""
        if self.is_remote:
            self.look()
        with self._lock:
            self._now[n] = self.plan.own[n]
        self._tell_library(n, self.plan.own[n])
        self._tell(n, self.plan.own[n])

    def _tell_library(self, n: int, share: WorkerBudget) -> None:
        """What the user has set in this process holds for libraries in other processes, too."""
        most = _native.user_most() if self.is_remote else share.n_threads
        self._channel.grant(n, min(share.n_threads, most))

    def _rebound(self) -> None:
        """The user has set a count in this process. Of that another thread may tell when the pool has just ended."""
        with self._lock:
            if self.is_remote and not self._is_closed.is_set():
                for n, share in enumerate(self._now):
                    self._tell_library(n, share)

    def _tell(self, n: int, share: WorkerBudget) -> None:
        if (on_grant := self.on_grant) is not None:
            on_grant(n, share.n_threads)

    def look(self) -> None:
        """Finds libraries for those who should not do it themselves, and what the user has set of this process's.

        Interpreters have no Python code of ours to do it. A forked worker would have to ask the loader, whose lock some
        thread of ours may hold at the moment of the fork: so it inherits what is known here.
        """
        if self._seen_loads != (n := _native.n_loads()):
            self._seen_loads = n
            try:
                arbiter.refresh()
            except Exception:
                log_exception("native libraries could not be looked for; new ones are not limited")

    @property
    def n_threads(self) -> tuple[int, ...]:
        """Each worker's budget now."""
        if self.plan.kind != "process":
            return self._channel.counts()
        return tuple(share.n_threads for share in tuple(self._now))  # a signal handler may come: no lock

    def lends(self) -> tuple[int, int]:
        """How often budgets were raised above a worker's own, and lowered to it again."""
        here = self._channel.lends()
        return self.n_lends + here[0], self.n_reclaims + here[1]

    def forget(self, pid: int | None) -> None:
        """A worker process is dead: what it held of the gate comes back."""
        if self.gate is not None and self.plan.kind == "process" and pid is not None:
            self.gate.forget(pid)

    def waits(self) -> tuple[int, float]:
        """How often regions have waited for others, and for how long together, in seconds."""
        return (0, 0.0) if self.gate is None else (self.gate.n_waits, self.gate.waited_s)

    def close(self) -> None:
        """After the last worker: libraries get back what they had."""
        with self._lock:  # not while the balancer sets a limit; who comes second waits until all is given back
            if self._is_closed.is_set():
                return
            self._is_closed.set()
            neighbours.leave(self)
            self._channel.lend(0)
            arbiter.close_pool(self._rebound)
            if self.plan.kind != "process":
                self._channel.limit(self.plan.n_threads, 0, False)
                if self.gate is not None:
                    arbiter.close_gate()
        self._channel.pulse()
        with self._balancing:
            thread = self._thread
        if thread is not None and thread.ident and thread is not threading.current_thread():
            thread.join()

    # ---- the balancer ----

    def _balance(self) -> None:
        pulse = 0
        while not self._is_closed.is_set():
            pulse = self._channel.wait_pulse(pulse)
            if not self._is_followed:
                neighbours.tell(self, sum(self._channel.awake()))
                continue
            shares = self._ask()
            if self._raises(shares):
                if self._is_closed.wait(SETTLE_S):
                    return
                shares = self._ask()
            self._apply(shares)

    def _ask(self) -> Sequence[WorkerBudget]:
        plan, awake = self.plan, self._channel.awake()
        n_awake = sum(awake)
        neighbours.tell(self, n_awake)
        state = policies.State(plan.cpus, plan.n_threads, plan.own, awake, _native.cpus_left(plan.n_threads))
        return policies.bound(self._shares(state), plan.n_threads, n_awake, neighbours.n_others_awake(self))

    def _shares(self, state: policies.State) -> Sequence[WorkerBudget]:
        try:
            return policies.check(self.plan.policy.shares(state), state)
        except BaseException:  # SystemExit, too: it would end this thread, and the budgets would stay as they are
            if not self._has_failed:  # else there would be an entry for each task
                log_exception("the policy failed; while it does, each worker has its own budget")
            self._has_failed = True
            return self.plan.own

    def _raises(self, shares: Sequence[WorkerBudget]) -> bool:
        return any(new.n_threads > old.n_threads for new, old in zip(shares, self._now, strict=True))

    def _apply(self, shares: Sequence[WorkerBudget]) -> None:
        """Lowers first, so that the sum of budgets is at no time larger than before and after."""
        with self._lock:
            if self._is_closed.is_set():
                return
            changes = [(n, old, new) for n, (old, new) in enumerate(zip(self._now, shares, strict=True)) if old != new]
            for n, old, new in sorted(changes, key=lambda change: change[2].n_threads - change[1].n_threads):
                self._change(n, old, new)
            if self.plan.kind != "process":
                awake = [share for share, is_awake in zip(shares, self._channel.awake(), strict=True) if is_awake]
                self._limit_process(awake or shares)

    def _change(self, n: int, old: WorkerBudget, new: WorkerBudget) -> None:
        """A library must not have more threads than its worker has CPUs: wider first, fewer first."""
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
        """Only the thread that runs the tasks: the library's own threads may use all of the pool's CPUs."""
        pid = self._pid_of(n) if self.plan.kind == "process" and self.plan.affinity else None
        if pid is not None:
            try:
                os.sched_setaffinity(pid, share.cpus)
            except (ProcessLookupError, PermissionError):
                pass  # it has ended
