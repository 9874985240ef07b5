"""Who may use how many threads: pure functions of which workers are active.

A policy of your own is an object with a method `shares(state)` that returns a `WorkerBudget` for each worker. A thread
of the pool calls it whenever a worker becomes active or idle, and it must not block.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

from pool_party._core.records import NamedTuple
from pool_party.budget.split import THREADS_MAX, WorkerBudget, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, Protocol
else:
    Protocol = object

type Scope = Literal["pool", "machine"]  # whose regions share a gate: the pool's or the machine's


class State(NamedTuple):
    """A pool at one moment, as a policy sees it.

    Args:
        cpus: The numbers of the pool's CPUs, with neighbours side by side.
        n_threads: The number of threads that may run on them.
        own: Each worker's budget while all are active.
        awake: For each worker, whether it has work. If any worker is idle, no task waits.
        n_left: How many of these threads would find a CPU that other programs leave idle, as far as is known.

    Guarantees:
        It is a tuple, and never changes.
    """

    cpus: tuple[int, ...]
    n_threads: int
    own: tuple[WorkerBudget, ...]
    awake: tuple[bool, ...]
    n_left: int = THREADS_MAX


class Policy(Protocol):
    """Divides a pool's CPUs among its workers: the protocol of an object of your own, with a method `shares`.

    Its attribute `name`, if it has one, is its name in statistics.

    Raises:
        Exception: An error from `shares` is logged. Until the next call each worker has its own budget.

    Guarantees:
        `shares` is called in a thread of the pool, whenever a worker becomes active or idle. It must not block.
    """

    def shares(self, state: State) -> Sequence[WorkerBudget]:
        """Return the budget of each worker, from now on. It must not block.

        Args:
            state: The pool at this moment.

        Returns:
            A `WorkerBudget` for each worker.

        Raises:
            Exception: The error is logged, and each worker has its own budget until the next call.
        """
        ...


class Static:
    """The policy "static": each worker keeps its own budget."""

    name = "static"

    def shares(self, state: State) -> Sequence[WorkerBudget]:
        return state.own


class Dynamic:
    """Lends the CPUs of idle workers to active ones, until a task arrives or another program needs them."""

    name = "dynamic"

    def shares(self, state: State) -> Sequence[WorkerBudget]:
        busy = [n for n, is_awake in enumerate(state.awake) if is_awake]
        shares = list(state.own)
        n_threads = min(state.n_threads, state.n_left)
        if 0 < len(busy) < min(len(state.own), n_threads):
            lots = split(state.cpus, len(busy), oversubscription=n_threads / len(state.cpus))
            for n, lot in zip(busy, lots, strict=True):
                if lot.n_threads >= shares[n].n_threads:  # false if the pool was given more threads than CPUs
                    shares[n] = lot
        return shares


class Counting:
    """Lets a library's parallel region use all CPUs. Regions run at the same time if their threads fit together.

    It is for worker processes. In threads and interpreters passing the gate took longer than it saved.
    """

    name = "counting"

    def shares(self, state: State) -> Sequence[WorkerBudget]:
        return [WorkerBudget(state.n_threads, state.cpus)] * len(state.own)


class Exclusive(Counting):
    """Lets a library's parallel region use all CPUs. One region runs at a time."""

    name = "exclusive"


def bound(shares: Sequence[WorkerBudget], n_threads: int, n_awake: int, n_others: int) -> Sequence[WorkerBudget]:
    """Limit budgets while workers of other pools are active: to the machine's threads over all active workers."""
    if n_awake == 0 or n_others == 0:
        return shares
    most = max(1, n_threads // (n_awake + n_others))
    return [WorkerBudget(min(share.n_threads, most), share.cpus) for share in shares]


def active_threads(shares: Sequence[WorkerBudget], awake: Sequence[bool]) -> int:
    """Return the sum of the budgets of active workers."""
    return sum(share.n_threads for share, is_awake in zip(shares, awake, strict=True) if is_awake)


def fit(shares: Sequence[WorkerBudget], awake: Sequence[bool], n_threads: int) -> Sequence[WorkerBudget]:
    """Limit budgets to a program's part of the machine: those of active workers to `n_threads` in sum, at least 1 each.

    An idle worker may begin a task at any time, and then has no more than an active one until budgets are divided anew.
    """
    n_awake = max(1, sum(awake))
    if active_threads(shares, awake) > n_threads:
        each, n_more = divmod(n_threads, n_awake)
    else:
        each, n_more = n_threads, 0
    fitted = []
    for share, is_awake in zip(shares, awake, strict=True):
        most = max(1, each + (is_awake and n_more > 0))
        n_more -= is_awake
        fitted.append(WorkerBudget(min(share.n_threads, most), share.cpus))
    return fitted


_BUILT_IN = {policy.name: policy for policy in (Static(), Exclusive(), Counting(), Dynamic())}
NAMES = tuple(_BUILT_IN)
SCOPES = "pool", "machine"


def resolve(policy: Any) -> Any:
    """Return the policy for a name, an object of the caller's own, or None (do not limit).

    Raises: ValueError for an unknown name; TypeError for an object without `shares`.
    """
    if policy is None:
        return None
    if isinstance(policy, str):
        if policy not in _BUILT_IN:
            names = ", ".join(map(repr, NAMES))
            raise ValueError(
                f"unknown policy {policy!r}: it is one of {names}, None, or an object with a method shares"
            )
        return _BUILT_IN[policy]
    if isinstance(policy, type) or not callable(getattr(policy, "shares", None)):
        raise TypeError(f"a policy is a name, None, or an object with a method shares(state), not {policy!r}")
    return policy


def for_kind(policy: Any, kind: str) -> Any:
    """Return a program's policy for workers of a kind: "dynamic" in place of one that is for processes only."""
    is_gated = isinstance(resolve(policy), Counting)
    return "dynamic" if is_gated and kind != "process" else policy


def name_of(policy: Any) -> str | None:
    """Return a policy's name for statistics."""
    return None if policy is None else str(getattr(policy, "name", type(policy).__name__))


def check(shares: Iterable[WorkerBudget], state: State) -> tuple[WorkerBudget, ...]:
    """Return what a user's policy returned, after checking it.

    Raises: TypeError for values that are no budgets; ValueError unless there is one for each worker, each with a number
    of threads in range and with CPUs of the pool.
    """
    if not isinstance(shares, Iterable):
        raise TypeError(f"the policy returned {shares!r}, not a WorkerBudget for each worker")
    shares = tuple(shares)
    if len(shares) != len(state.own):
        raise ValueError(f"the policy returned {len(shares)} budgets for {len(state.own)} workers")
    for share in shares:
        if not isinstance(share, WorkerBudget) or not _is_whole(share.n_threads):
            raise TypeError(f"the policy returned {share!r}; a worker's budget is a WorkerBudget(n_threads, cpus)")
        if not 1 <= share.n_threads <= THREADS_MAX:
            raise ValueError(f"the policy granted {share.n_threads} threads; the least is 1, the most {THREADS_MAX}")
        if not share.cpus or not set(share.cpus) <= set(state.cpus):
            raise ValueError(f"the policy granted CPUs {share.cpus}; this pool has {state.cpus}")
    return shares


def _is_whole(n: object) -> bool:
    try:
        operator.index(n)  # type: ignore[arg-type]  # raises if n is not an integer
    except TypeError:
        return False
    return True
