"""The pools of this process that are open at once: together they have one machine.

Threads and interpreters are counted where their limits are, in native/budget/limits.c. Worker processes are not, so as
soon as some are open beside another pool, each pool has a balancer that tells the others how many of its workers are
awake.
"""

import os
import threading
from typing import TYPE_CHECKING

from pool_party import _native

if TYPE_CHECKING:
    from pool_party.budget.enforcer import Enforcer

_lock = threading.Lock()  # guards what follows
_awake: "dict[Enforcer, int]" = {}  # workers of each open pool, as far as it has told


def _forget() -> None:
    """In a forked child: the pools are its parent's."""
    global _lock
    _lock = threading.Lock()
    _awake.clear()


os.register_at_fork(after_in_child=_forget)


def join(pool: "Enforcer") -> None:
    """A pool opens."""
    with _lock:
        _awake[pool] = 0
        pools = list(_awake)
    if len(pools) > 1 and any(p.is_remote for p in pools) and any(p.has_to_share for p in pools):
        for p in pools:
            p.balance()


def leave(pool: "Enforcer") -> None:
    """A pool closes. What its balancer may still tell comes too late to count."""
    with _lock:
        if not _awake.pop(pool, 0):
            return
        _count_foreign()
        others = list(_awake)
    for p in others:
        p.reconsider()


def tell(pool: "Enforcer", n_awake: int) -> None:
    """So many workers of a pool are awake; the others' budgets follow."""
    with _lock:
        if _awake.get(pool, n_awake) == n_awake:
            return
        _awake[pool] = n_awake
        _count_foreign()
        others = [p for p in _awake if p is not pool]
    for p in others:
        p.reconsider()


def _count_foreign() -> None:
    """With the lock."""
    _native.limit_foreign(sum(n for p, n in _awake.items() if p.is_remote))


def n_others_awake(pool: "Enforcer") -> int:
    """Workers of all other pools that are awake."""
    with _lock:
        return sum(n for p, n in _awake.items() if p is not pool)
