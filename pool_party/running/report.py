"""The report at the end of a program: which pools were replaced, and what they did. Every figure in it was counted.

It is about the process that the runner started, not about its children.
"""

import atexit
import os
import sys
import threading
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

from pool_party._core import watching
from pool_party.patching import usage

if TYPE_CHECKING:
    from pool_party._core.engine import Engine

_VERSION = 1  # of the JSON: raised when a field changes its meaning

_lock = threading.RLock()  # of what follows; background threads of pools take it, and the thread that ends the program
_opened: "weakref.WeakSet[Engine]" = weakref.WeakSet()
_counted: "weakref.WeakSet[Engine]" = weakref.WeakSet()  # those whose counts are in the totals
_totals: Counter[str] = Counter()


def arrange(form: str) -> None:
    """Have the report written to standard error when this process ends, after the program's own exit handlers.

    form: "text" or "json".
    """
    pid = os.getpid()
    watching.on_open.append(_note)
    watching.on_end.append(_add)
    atexit.register(lambda: _write(form) if os.getpid() == pid else None)


def _note(engine: "Engine") -> None:
    with _lock:
        _opened.add(engine)


def _add(engine: "Engine") -> None:
    """Add the counts of a pool, once."""
    statistics = engine.statistics()
    with _lock:
        if engine in _counted:
            return
        _counted.add(engine)
        _totals.update(
            pools=1,
            tasks=statistics.n_completed,
            failed=statistics.n_failed,
            workers=statistics.n_workers_started,
            lost=statistics.n_workers_lost,
            lends=statistics.n_lends,
        )
        if statistics.n_threads:
            _totals.update(
                limited=engine.n_workers,
                threads=sum(statistics.n_threads),
                unlimited=engine.n_workers * _n_library_threads(),
            )


def _n_library_threads() -> int:
    """Return how many threads a BLAS or OpenMP library uses by default in a process: one for each CPU."""
    from pool_party.budget.topology import cpu_count

    return cpu_count()


def _write(form: str) -> None:
    if sys.stderr is None:
        return
    found = collect()
    if form == "json":
        import json

        text = json.dumps(found) + "\n"
    else:
        text = as_text(found)
    sys.stderr.write(text)
    sys.stderr.flush()


def collect() -> dict[str, Any]:
    """Return what is known of this process, in plain types."""
    from pool_party.budget.topology import cpu_count

    counts = usage.counts()
    replaced = [{**event._asdict(), "times": n} for event, n in counts.items() if isinstance(event, usage.Replaced)]
    left_alone = [{**event._asdict(), "times": n} for event, n in counts.items() if isinstance(event, usage.LeftAlone)]
    for engine in list(_opened):  # some end only now
        _add(engine)
    with _lock:
        totals = dict(_totals)
    return {
        "version": _VERSION,
        "program": sys.argv[0],
        "pid": os.getpid(),
        "cpus": cpu_count(),
        "replaced": replaced,
        "left_alone": left_alone,
        "parts_used": sorted({event["part"] for event in replaced}),
        **{name: totals.get(name, 0) for name in ("pools", "tasks", "failed", "workers", "lost", "lends")},
        "library_threads": {name: totals.get(name, 0) for name in ("limited", "threads", "unlimited")},
    }


def as_text(found: dict[str, Any]) -> str:
    """Return the report for people."""
    lines = [f"pool_party: {found['program']} (pid {found['pid']}, CPUs: {found['cpus']})"]
    if not found["replaced"]:
        lines.append("  no pool was replaced")
    for event in found["replaced"]:
        lines.append(
            f"  replaced {event['times']} x {event['name']}, made in {event['caller']}: workers of kind "
            f"{event['kind']}, {event['n_workers']} each"
        )
    for event in found["left_alone"]:
        lines.append(f"  left alone {event['times']} x {event['name']}, made in {event['caller']}. {event['reason']}")
    if found["pools"]:
        lines += _work(found)
    return "".join(f"{line}\n" for line in lines)


def _work(found: dict[str, Any]) -> list[str]:
    threads = found["library_threads"]
    lines = [
        f"  tasks: {found['tasks']}, of which {found['failed']} raised",
        f"  workers: {found['workers']} started, {found['lost']} lost",
    ]
    if threads["limited"]:
        lines.append(
            f"  threads that BLAS and OpenMP may use in {threads['limited']} workers: {threads['threads']} at the end; "
            f"without limits, with one for each CPU: {threads['unlimited']}"
        )
    if found["lends"]:
        lines.append(f"  CPUs of idle workers were lent {found['lends']} times")
    return lines
