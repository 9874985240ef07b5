"""Who may use how many threads: pure functions of which workers are active.

A policy of your own is an object with a method `shares(state)` that returns a `WorkerBudget` for each worker. A thread
of the pool calls it whenever a worker becomes active or idle, and it must not block.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

from pool_party import _native
from pool_party._budget.split import THREADS_MAX, WorkerBudget, split
from pool_party._ground.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol
else:
    Protocol = object


class State(NamedTuple):
    """A pool at one moment, as a policy sees it.

    Args:
        cpus: The numbers of the pool's CPUs, with neighbours side by side.
        n_threads: The number of threads that may run on them.
        own: Each worker's budget while all are active.
        awake: For each worker, whether it has work. If any worker is idle, no task waits.
        n_left: How many of these threads would find a CPU that other programs leave idle, as far as is known.
        n_others: The number of workers of other pools of this process that have work.

    Guarantees:
        It is a tuple, and never changes.
    """

    cpus: tuple[int, ...]
    n_threads: int
    own: tuple[WorkerBudget, ...]
    awake: tuple[bool, ...]
    n_left: int = THREADS_MAX
    n_others: int = 0


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
        n_awake = sum(state.awake)
        if not 0 < n_awake < len(state.own):
            return state.own  # processes are kept on whole cores, so these may be uneven; threads that lend are not
        shares = divide(state.own, state.awake, state.n_threads, state.n_others, state.n_left)
        if not any(share.n_threads > own.n_threads for share, own in zip(shares, state.own, strict=True)):
            return shares
        lots = iter(split(state.cpus, n_awake))
        pairs = zip(shares, state.awake, strict=True)
        return [share._replace(cpus=next(lots).cpus) if is_awake else share for share, is_awake in pairs]


class Counting:
    """Lets a library's parallel region use all CPUs. Regions run at the same time if their threads fit together.

    It is for worker processes. In threads and interpreters passing the gate took longer than it saved.
    """

    name = "counting"
    takes_all = False  # of the gate's tokens, for each region

    def shares(self, state: State) -> Sequence[WorkerBudget]:
        return [WorkerBudget(state.n_threads, state.cpus)] * len(state.own)


class Exclusive(Counting):
    """Lets a library's parallel region use all CPUs. One region runs at a time."""

    name = "exclusive"
    takes_all = True


def divide(
    shares: Sequence[WorkerBudget], awake: Sequence[bool], n_threads: int, n_others: int, n_left: int = 0
) -> list[WorkerBudget]:
    """Limit budgets to parts of `n_threads`, and raise those of active workers to parts of `n_left`.

    The parts are those of all active workers, `n_others` of them in other pools; `native/budget/divide.c` is the rule.
    """
    n_awake, rank = max(1, n_others + sum(awake)), n_others  # those of other pools come first
    divided = []
    for share, is_awake in zip(shares, awake, strict=True):
        n = _native.divide(share.n_threads, rank, n_awake, n_threads, n_left if is_awake else 0)
        divided.append(share._replace(n_threads=n))
        rank += is_awake
    return divided


def active_threads(shares: Sequence[WorkerBudget], awake: Sequence[bool]) -> int:
    """Return the sum of the budgets of active workers."""
    return sum(share.n_threads for share, is_awake in zip(shares, awake, strict=True) if is_awake)


def fit(
    shares: Sequence[WorkerBudget], awake: Sequence[bool], n_threads: int, n_others: int = 0
) -> Sequence[WorkerBudget]:
    """Limit budgets to their parts, unless those of active workers are all that there are and fit into `n_threads`.

    An idle worker may begin a task at any time, and then has no more than its part until budgets are divided anew.
    """
    parts = divide(shares, awake, n_threads, n_others)
    if n_others > 0 or active_threads(shares, awake) > n_threads:
        return parts
    return [share if is_awake else part for share, part, is_awake in zip(shares, parts, awake, strict=True)]


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
    return "dynamic" if needs_gate(resolve(policy)) and kind != "process" else policy


def needs_gate(policy: Any) -> bool:
    """Whether parallel regions wait for each other at a gate, in place of budgets that change."""
    return isinstance(policy, Counting)


def is_fixed(policy: Any) -> bool:
    """Whether budgets do not depend on which workers are active."""
    return type(policy) is Static or needs_gate(policy)


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
