"""The measurement of tracing.py, made in a separate process.

    python -c 'from tracing_sections import main; main()' KIND off|on N_WORKERS EFFORT

prints the figures as JSON.
"""

import contextlib
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

from workloads.tasks import noop

import pool_party

_N_MAPS = 9
_N_TASKS = 300_000
_N_ROUND_TRIPS = 3000


def _time_ns(run: Callable[[], object]) -> int:
    started_ns = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - started_ns


def _cpu_ns(pids: Collection[int]) -> int:
    """Return the CPU time of all threads of some processes, in ns: other load affects it less than wall time."""
    threads = (path for pid in pids for path in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((path / "schedstat").read_text().split()[0]) for path in threads)


def main() -> None:
    """Measure maps of empty tasks, one task a chunk, and single calls."""
    kind, mode, n_workers, effort = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    n_tasks = int(_N_TASKS * effort)
    with pool_party.ComposablePool(n_workers, kind=kind) as pool:
        pool.map(noop, range(n_tasks // 4), 1)
        tracing = pool.trace(os.devnull) if mode == "on" else contextlib.nullcontext()
        gc.collect()
        pids = {os.getpid(), *(worker.pid for worker in pool._pool)}
        cpu_ns = -_cpu_ns(pids)
        maps_ns = [_time_ns(lambda: pool.map(noop, range(n_tasks), 1)) / n_tasks for _ in range(_N_MAPS)]
        cpu_ns += _cpu_ns(pids)
        calls_ns = [_time_ns(lambda: pool.apply(noop, (None,))) for _ in range(max(100, int(_N_ROUND_TRIPS * effort)))]
        end_ns = _time_ns(lambda: tracing.__exit__(None, None, None))
    figures = {"map_ns": statistics.median(maps_ns), "cpu_ns": cpu_ns / n_tasks / _N_MAPS}
    figures["call_us"] = statistics.median(calls_ns) / 1000
    print(json.dumps({**figures, "end_s": end_ns / 1e9}))
