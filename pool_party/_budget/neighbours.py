"""The open pools of this process, which share one machine.

Threads and interpreters are counted where they are limited, in native/budget/limits.c. Worker processes are not. As
soon as a pool with worker processes is open beside another pool, each pool runs a balancer that tells the others how
many of its workers are active.
"""

import os

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pool_party._budget.enforcer import Enforcer

_lock = _native.Guard()  # guards what follows
_awake: "dict[Enforcer, int]" = {}  # open pool -> its active workers, as last told


def _forget() -> None:
    """Forget the parent's pools, in a forked child."""
    global _lock
    _lock = _native.Guard()
    _awake.clear()


os.register_at_fork(after_in_child=_forget)


def join(pool: "Enforcer") -> None:
    """Add a pool that opens."""
    with _lock:
        _awake[pool] = 0
        pools = list(_awake)
    if len(pools) > 1 and any(p.is_remote for p in pools) and any(p.has_to_share for p in pools):
        for p in pools:
            p.balance()


def leave(pool: "Enforcer") -> None:
    """Remove a pool that closes. What its balancer tells after this is ignored."""
    with _lock:
        if not _awake.pop(pool, 0):
            return
        _count_foreign()
        others = list(_awake)
    for p in others:
        p.reconsider()


def tell(pool: "Enforcer", n_awake: int) -> None:
    """Note how many workers of a pool are active, and make the other pools adapt their budgets."""
    with _lock:
        if _awake.get(pool, n_awake) == n_awake:
            return
        _awake[pool] = n_awake
        _count_foreign()
        others = [p for p in _awake if p is not pool]
    for p in others:
        p.reconsider()


def _count_foreign() -> None:
    """Tell native code the active worker processes of all pools. Called with the lock."""
    _native.limit_foreign(sum(n for p, n in _awake.items() if p.is_remote))


def n_others_awake(pool: "Enforcer") -> int:
    """Return the number of active workers in all other pools."""
    with _lock:
        return sum(n for p, n in _awake.items() if p is not pool)
