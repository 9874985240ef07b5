"""What this process has done with pools, counted for the report: pools replaced and left alone, tasks, workers."""

import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pool_party import _native
from pool_party._core import watching
from pool_party._patching import usage

if TYPE_CHECKING:
    from pool_party._core.engine import Engine

COUNTS = ("pools", "tasks", "failed", "workers", "lost", "lends")
THREADS = ("limited", "threads", "unlimited")

# Held by background threads of pools, and by the thread that ends the program.
_lock = _native.Guard()
_open: "weakref.WeakSet[Engine]" = weakref.WeakSet()
_ended: "weakref.WeakSet[Engine]" = weakref.WeakSet()  # those whose counts are in the totals
_totals: Counter[str] = Counter()


def count(then: Callable[[], object]) -> None:
    """Count from now on. then: called after every change, in the thread that has made it."""

    def opened(engine: "Engine") -> None:
        with _lock:
            _open.add(engine)
        then()

    def ended(engine: "Engine") -> None:
        _add(engine)
        then()

    watching.on_open.append(opened)
    watching.on_end.append(ended)
    usage.on_note.append(then)


def forget() -> None:
    """Begin anew, in a child that was forked. Another thread of the parent may have held the locks."""
    global _lock
    _lock = _native.Guard()
    _open.clear()
    _ended.clear()
    _totals.clear()
    usage.forget()


def _add(engine: "Engine") -> None:
    """Add the counts of a pool that ends, once."""
    with _lock:
        if engine not in _ended:
            _ended.add(engine)
            _open.discard(engine)
            _totals.update(_counts_of(engine))


def _counts_of(engine: "Engine") -> dict[str, int]:
    statistics = engine.statistics()
    counts = {
        "pools": 1,
        "tasks": statistics.n_completed,
        "failed": statistics.n_failed,
        "workers": statistics.n_workers_started,
        "lost": statistics.n_workers_lost,
        "lends": statistics.n_lends,
    }
    if statistics.n_threads:
        counts["limited"] = engine.n_workers
        counts["threads"] = sum(statistics.n_threads)
        counts["unlimited"] = engine.n_workers * _n_library_threads()
    return counts


def _n_library_threads() -> int:
    """Return how many threads a BLAS or OpenMP library uses by default in a process: one for each CPU."""
    from pool_party._budget.topology import cpu_count

    return cpu_count()


def collect() -> dict[str, Any]:
    """Return all figures of this process so far, in plain types, also those of pools that are open."""
    counts = usage.counts()
    with _lock:
        totals = _totals.copy()
        still_open = list(_open)
    for engine in still_open:
        totals.update(_counts_of(engine))
    return {
        "program": str(sys.argv[0]) if sys.argv else "",
        "pid": os.getpid(),
        "replaced": [{**event._asdict(), "times": n} for event, n in counts.items() if type(event) is usage.Replaced],
        "left_alone": [
            {**event._asdict(), "times": n} for event, n in counts.items() if type(event) is usage.LeftAlone
        ],
        "open": len(still_open),
        **{name: totals[name] for name in COUNTS},
        "library_threads": {name: totals[name] for name in THREADS},
    }
