"""A pool's options about threads, checked: its policy, its CPUs and each worker's own budget."""

from __future__ import annotations

import threading

from pool_party import _native
from pool_party._budget import policies
from pool_party._budget.environment import users_environment
from pool_party._budget.split import WorkerBudget, count_threads, split
from pool_party._budget.topology import cpu_count, current
from pool_party._ground.records import NamedTuple, TypedDict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    from pool_party._budget.gate import Entry
    from pool_party._budget.process_budget import ProcessBudget
    from pool_party._ground.choices import PolicyName, Scope

    type Divider = Literal["plan", "workers", "balancer"]


class Limits(TypedDict, total=False):
    """The options of pools that concern threads; see `ComposablePool`."""

    policy: policies.Policy | PolicyName | None
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
    is_cut: bool

    @property
    def divider(self) -> Divider:
        """What decides who has which budget while the pool works.

        "plan": each worker has its own. "workers": native code, in each worker by itself. "balancer": a thread of the
        parent, since processes, a user's policy or other programs have to be asked or told.
        """
        if policies.needs_gate(self.policy) or (self.scope == "pool" and policies.is_fixed(self.policy)):
            return "plan"
        is_here = self.kind != "process" and self.scope == "pool" and type(self.policy) is policies.Dynamic
        return "workers" if is_here else "balancer"

    @property
    def overlaps(self) -> bool:
        """Whether budgets may add up to more than there are CPUs."""
        n_threads = sum(share.n_threads for share in self.own)
        return n_threads > len(self.cpus) or not isinstance(self.policy, policies.Static)

    @property
    def pins(self) -> bool:
        """Whether workers are pinned to their CPUs from their start.

        Threads whose budgets change are not: there only the library's count changes, and masks would have to follow
        each change.
        """
        return self.affinity and (self.kind == "process" or self.divider == "plan")

    @property
    def has_own_blas(self) -> bool:
        """Whether each worker has its own OpenBLAS: processes do, and interpreters whose counts may exceed 1."""
        is_more = self.divider != "plan" or max(share.n_threads for share in self.own) > 1
        return self.kind == "process" or (self.kind == "interp" and is_more)

    def process_budget(self, n: int, entry: Entry | None) -> ProcessBudget:
        """Return what worker process n is told of its budget. entry: what the policy has it do besides."""
        from pool_party._budget.process_budget import ProcessBudget

        own, cpus = self.own[n].n_threads, () if self.is_cut else self.cpus
        changes = self.divider != "plan" or own > 1  # to fewer, while other pools have work or if the user says so
        own = min(own, _native.user_most())
        return ProcessBudget(
            own, self.n_threads, cpus, self.mask(n), users_environment(), self.overlaps, changes, entry
        )

    def mask(self, n: int) -> tuple[int, ...]:
        """Return the CPUs that a worker is pinned to, or () for all."""
        cpus = self.own[n].cpus
        return cpus if self.pins and len(cpus) < len(self.cpus) else ()


def _is_inside_worker() -> bool:
    """Return whether this is a worker process, or an interpreter that is a worker."""
    from pool_party._budget import limiter

    return limiter.is_worker() or not threading._daemon_threads_allowed()  # type: ignore[attr-defined]


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
    if threads_per_worker is not None and policies.needs_gate(policy):
        raise ValueError(f"threads_per_worker has no meaning with policy={policy.name!r}: each region may use all CPUs")
    if kind != "process" and policies.needs_gate(policy):
        raise ValueError(
            f"policy={policy.name!r} is for kind='process': in threads and interpreters it takes longer than no policy "
            "does; use 'dynamic' or 'static'"
        )
    is_fixed = threads_per_worker is not None or (affinity and kind != "process")
    if is_fixed and type(policy) is policies.Dynamic:
        policy = policies.resolve("static")
    if scope == "machine" and _is_inside_worker() and not policies.needs_gate(policy):
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
    if policies.needs_gate(policy):
        own = tuple(policy.shares(policies.State(cpus, n_threads, own, (True,) * n_workers)))
    elif type(policy) not in (policies.Static, policies.Dynamic):
        state = policies.State(cpus, n_threads, own, (True,) * n_workers)
        own = policies.check(policy.shares(state), state)
    is_cut = len(cpus) < len(topology.allowed)  # by a quota or by request: others may use the same CPUs
    return Plan(kind, policy, cpus, n_threads, own, bool(affinity) and not is_cut, scope, is_cut)
