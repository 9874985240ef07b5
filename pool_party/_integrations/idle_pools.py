"""Pools that are open although nobody uses them, so that the next call which needs such a pool finds it ready.

A pool is lent to one user at a time. So one user may terminate its pool without harm to another.
"""

import os
import threading
from collections.abc import Hashable
from time import monotonic
from typing import NamedTuple

from pool_party import _native
from pool_party._budget.topology import cpu_count
from pool_party._ground.threads import PoolThread, start_thread
from pool_party._integrations.feed import FedPool


class _Idle(NamedTuple):
    key: Hashable
    fed: FedPool
    ends_at: float  # on the monotonic clock


_changed = threading.Condition(_native.Guard())  # guards what follows; reentrant, as a signal handler may take a pool
_idle: list[_Idle] = []  # those that were used last are at the end
_is_watched = False  # a thread waits for the time at which the first of them ends
_is_hooked = False  # the hooks for forks are registered


def take(key: Hashable) -> FedPool | None:
    """Return an idle pool that was kept under an equal key and still runs, or None. It is the caller's from then on."""
    with _changed:
        for idle in reversed(_idle):
            if idle.key == key:
                _idle.remove(idle)
                if idle.fed.is_running:
                    return idle.fed
    return None


def keep(key: Hashable, fed: FedPool, idle_s: float) -> None:
    """Keep a pool, which has no tasks, for `idle_s` seconds. Does not block.

    It ends earlier if the pools of its kind that were used later have twice as many workers as there are CPUs.
    """
    global _is_watched
    _watch_forks()
    with _changed:
        _idle.append(_Idle(key, fed, monotonic() + idle_s))
        surplus = _choose_surplus(fed.pool.kind)
        for idle in surplus:
            _idle.remove(idle)
        _changed.notify()
        must_watch, _is_watched = not _is_watched, True
    for idle in surplus:
        idle.fed.close()  # without tasks its workers end at once, and nobody waits for that
    if must_watch:
        _start_watching()


def _choose_surplus(kind: str) -> list[_Idle]:
    room = 2 * cpu_count()
    surplus = []
    for idle in reversed([idle for idle in _idle if idle.fed.pool.kind == kind]):
        if room <= 0 or not idle.fed.is_running:
            surplus.append(idle)
        else:
            room -= idle.fed.pool._processes
    return surplus


def _start_watching() -> None:
    global _is_watched
    try:
        start_thread(PoolThread(_watch, "pool_party-idle", None))
    except RuntimeError:  # no thread can be started now: the pools stay until another one is kept, or until the end
        _is_watched = False


def _watch() -> None:
    """End pools when their time has come. The thread ends when none is left."""
    global _is_watched
    while True:
        with _changed:
            if not _idle:
                _is_watched = False
                return
            first = min(_idle, key=lambda idle: idle.ends_at)
            left_s = first.ends_at - monotonic()
            if left_s > 0:
                del first  # whoever takes the pool decides how long it lives
                _changed.wait(min(left_s, threading.TIMEOUT_MAX))
                continue
            _idle.remove(first)
        first.fed.close()
        del first


def end_all(kind: str | None = None) -> None:
    """End all idle pools, or those of one kind. Blocks until their workers have ended."""
    with _changed:
        ending = [idle for idle in _idle if kind in (None, idle.fed.pool.kind)]
        for idle in ending:
            _idle.remove(idle)
    for idle in ending:
        idle.fed.terminate()
        idle.fed.pool._engine.await_end()


def _before_fork() -> None:
    """CPython crashes in a child that is forked while interpreters exist, so those that nobody uses end before."""
    if _native.n_interpreters():
        end_all("interp")


def _forget() -> None:
    """Called in a forked child, where the pools are the parent's."""
    global _changed, _is_watched
    _changed = threading.Condition(_native.Guard())
    _is_watched = False
    _idle.clear()


def _watch_forks() -> None:
    """Register the hooks, after the pool's own: in a child it disowns its pool before we forget it."""
    global _is_hooked
    if not _is_hooked:
        _is_hooked = True
        os.register_at_fork(before=_before_fork, after_in_child=_forget)
