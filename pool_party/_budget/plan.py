"""A pool's options about threads, checked: its policy, its CPUs and each worker's own budget."""

from __future__ import annotations

import threading

from pool_party import _native
from pool_party._core.records import NamedTuple, TypedDict
from pool_party._native import Gate
from pool_party.budget import policies
from pool_party.budget.environment import users_environment
from pool_party.budget.policies import Scope
from pool_party.budget.split import WorkerBudget, count_threads, split
from pool_party.budget.topology import cpu_count, current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pool_party.budget.terms import Terms


class Limits(TypedDict, total=False):
    """The options of pools that concern threads; see `ComposablePool`."""

    policy: Any
    threads_per_worker: int | None
    oversubscription: float
    affinity: bool | None
    scope: Scope


class Plan(NamedTuple):
    """A pool's policy and each worker's own budget.

    cpus: what the pool may use, with neighbouring CPUs side by side. n_threads: how many threads may run on them.
    is_cut: the pool uses only as many CPUs as it was given, and no particular ones of those that its process may use.
    affinity: whether workers are pinned to their CPUs, which they are not if `is_cut`.
    """

    kind: str
    policy: Any
    cpus: tuple[int, ...]
    n_threads: int
    own: tuple[WorkerBudget, ...]
    affinity: bool
    scope: Scope
    overlaps: bool  # budgets may add up to more than there are CPUs
    is_cut: bool

    @property
    def is_gated(self) -> bool:
        """Whether parallel regions wait for each other at a gate."""
        return isinstance(self.policy, policies.Counting)

    @property
    def is_exclusive(self) -> bool:
        """Whether one region runs at a time."""
        return isinstance(self.policy, policies.Exclusive)

    @property
    def is_shared(self) -> bool:
        """Whether the pool has a part of the machine's threads, which it divides among its workers."""
        return self.scope == "machine" and not self.is_gated

    @property
    def lends(self) -> bool:
        """Whether native code lends the CPUs of idle workers, by the built-in rule."""
        return type(self.policy) is policies.Dynamic and not self.is_shared

    @property
    def is_balanced(self) -> bool:
        """Whether a thread of the parent asks the policy again after each change."""
        if self.lends:
            return self.kind == "process"
        if self.is_shared:
            return True
        return type(self.policy) is not policies.Static and not self.is_gated

    @property
    def pins(self) -> bool:
        """Whether workers are pinned to their CPUs from their start.

        Thread workers that lend are not: there only the library's count changes, and masks would have to follow each
        change.
        """
        return self.affinity and (self.kind == "process" or not (self.lends or self.is_balanced))

    @property
    def has_own_blas(self) -> bool:
        """Whether each worker has its own OpenBLAS: processes do, and interpreters whose counts may exceed 1."""
        is_more = self.lends or self.is_balanced or max(share.n_threads for share in self.own) > 1
        return self.kind == "process" or (self.kind == "interp" and is_more)

    def terms(self, n: int, gate: Gate | None) -> Terms:
        """Return the budget terms that worker process n starts with."""
        from pool_party.budget.terms import GateHandle, Terms
        from pool_party.wire.fd_handle import Handle

        handle = None
        if gate is not None:
            fd = None if self.scope == "machine" else Handle(gate.fd)
            handle = GateHandle(fd, self.n_threads, self.is_exclusive)
        own, cpus = self.own[n].n_threads, () if self.is_cut else self.cpus
        changes = self.is_balanced or own > 1  # to fewer, while other pools have work or if the user says so
        own = min(own, _native.user_most())
        return Terms(own, self.n_threads, cpus, self.mask(n), users_environment(), self.overlaps, changes, handle)

    def mask(self, n: int) -> tuple[int, ...]:
        """Return the CPUs that a worker is pinned to, or () for all."""
        cpus = self.own[n].cpus
        return cpus if self.pins and len(cpus) < len(self.cpus) else ()


def _is_inside_worker() -> bool:
    """Return whether this is a worker process, or an interpreter that is a worker."""
    from pool_party.budget import arbiter

    return arbiter.is_worker() or not threading._daemon_threads_allowed()  # type: ignore[attr-defined]


# A worker on a single CPU cannot avoid other load there, nor be moved to where it is needed. Measured on 2 CPUs with 2
# worker processes: round trips took 22 us instead of 9, and no task gained.
MIN_PINNED = 2


def make_plan(
    kind: str,
    n_workers: int,
    policy: Any = "dynamic",
    threads_per_worker: int | None = None,
    oversubscription: float = 1.0,
    affinity: bool | None = None,
    scope: Scope = "pool",
) -> Plan | None:
    """Make a pool's plan, or None if its policy is None. Raises ValueError and TypeError for invalid options.

    Nothing is lent if each worker has a number of threads of its own, or threads and interpreters are to be kept on
    their own CPUs.
    """
    policy = policies.resolve(policy)
    if scope not in policies.SCOPES:
        raise ValueError(f"unknown scope {scope!r}: it is one of {', '.join(map(repr, policies.SCOPES))}")
    if policy is None:
        if threads_per_worker is not None:
            raise ValueError("threads_per_worker needs a policy: with policy=None libraries are left as they are")
        return None
    if threads_per_worker is not None and isinstance(policy, policies.Counting):
        raise ValueError(f"threads_per_worker has no meaning with policy={policy.name!r}: each region may use all CPUs")
    if kind != "process" and isinstance(policy, policies.Counting):
        raise ValueError(
            f"policy={policy.name!r} is for kind='process': in threads and interpreters it takes longer than no policy "
            "does; use 'dynamic' or 'static'"
        )
    is_fixed = threads_per_worker is not None or (affinity and kind != "process")
    if is_fixed and type(policy) is policies.Dynamic:
        policy = policies.resolve("static")
    if scope == "machine" and _is_inside_worker() and not isinstance(policy, policies.Counting):
        scope = "pool"  # it has a part of the worker's budget, which is a part of its program's
    topology = current()
    n_cpus = cpu_count()
    cpus = topology.choose(min(n_cpus, topology.n_cpus))
    n_threads = max(1, count_threads(n_cpus, oversubscription))
    factor = oversubscription
    if n_cpus != len(cpus):  # an environment variable overrides the number of CPUs
        factor *= n_cpus / len(cpus)
    own = split(cpus, n_workers, cores=topology.cores, threads_per_worker=threads_per_worker, oversubscription=factor)
    if affinity is None:
        is_alone = scope == "pool"  # workers of other programs would be kept on the same CPUs
        affinity = is_alone and min(len(share.cpus) for share in own) >= MIN_PINNED
    if n_workers > len(cpus):
        # If each were pinned to one CPU, two workers could compete for the same CPU.
        own = tuple(WorkerBudget(share.n_threads, cpus) for share in own)
    if isinstance(policy, policies.Counting):
        own = tuple(policy.shares(policies.State(cpus, n_threads, own, (True,) * n_workers)))
    elif type(policy) not in (policies.Static, policies.Dynamic):
        state = policies.State(cpus, n_threads, own, (True,) * n_workers)
        own = policies.check(policy.shares(state), state)
    overlaps = sum(share.n_threads for share in own) > len(cpus) or not isinstance(policy, policies.Static)
    is_cut = len(cpus) < len(topology.allowed)  # by a quota or by request: others may use the same CPUs
    return Plan(kind, policy, cpus, n_threads, own, bool(affinity) and not is_cut, scope, overlaps, is_cut)
