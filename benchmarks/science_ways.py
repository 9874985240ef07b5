"""The measurements of science.py, each made in a separate process.

    python -c 'from science_ways import main; main()' sweep|transfer WAY N_WORKERS SIZE N_ROUNDS

prints the figures as JSON.
"""

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from fresh import Figures
from peers import Handle, peer_named

SERIAL = "serial"
TRANSFER_BYTES = {"quick": 1 << 24, "full": 1 << 26}
_SIZES = {"quick": (12, 600, 4_000, 8), "full": (24, 2000, 20_000, 16)}  # tasks; rows of fits, of groups; variables
_NAP_S = 0.02
_MEETING_S = 120.0
_SETTLE_S = 0.2  # the memory that a pool uses just after its tasks does not count


class _Serial:
    """Replaces a pool for the serial way."""

    def map(self, task: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
        return [task(value) for value in values]

    def call(self, task: Callable[[Any], Any], value: Any) -> Any:
        return task(value)

    def close(self) -> None:
        pass


class _Opened:
    """A pool whose workers have all run a task: who they are, and the time until there were results."""

    def __init__(self, way: str, n_workers: int, identify: Callable[[float], Any]) -> None:
        self.handle: Handle | _Serial = _Serial()
        self.workers: set[tuple[int, int]] = set()
        self.start_s: float | None = None
        if way == SERIAL:
            return
        peer = peer_named(way)
        peer.load()
        started_s = time.perf_counter()
        self.handle = peer.open(n_workers)
        while len(self.workers) < n_workers:
            self.workers.update(self.handle.map(identify, [_NAP_S] * n_workers))
            self.start_s = self.start_s or time.perf_counter() - started_s
            if time.perf_counter() - started_s > _MEETING_S:
                raise TimeoutError(f"only {len(self.workers)} of {n_workers} workers came to work")

    @property
    def processes(self) -> set[int]:
        """The workers that are processes."""
        return {pid for pid, _ in self.workers} - {os.getpid()}


def _memory_bytes(pids: Collection[int] | None = None) -> int:
    """Return the memory of this process and its descendants, or of the given ones; 0 if it cannot be measured."""
    from pool_party._measuring.meter import memory_bytes, memory_measure, process_tree

    measure = memory_measure()
    gc.collect()
    return memory_bytes(process_tree(os.getpid()) if pids is None else pids, measure) if measure else 0


def _memory_figures(opened: _Opened, before: int) -> Figures:
    """Return the memory that a worker adds to the total, and the PSS of a worker process."""
    time.sleep(_SETTLE_S)
    after = _memory_bytes()
    if not (before and opened.workers):
        return {}
    figures: Figures = {"bytes_per_worker": (after - before) / len(opened.workers)}
    if opened.processes:
        figures["bytes_of_process"] = _memory_bytes(opened.processes) / len(opened.processes)
    return figures


def _time_rounds(handle: Handle | _Serial, task: Callable[[Any], Any], values: Sequence[Any], n: int) -> Figures:
    """Return the results of a first round, and the time and CPU time of each of n more."""
    from pool_party._measuring.meter import cpu_of_tree_s

    results = handle.map(task, values)
    rounds_s, cpu_before_s = [], cpu_of_tree_s(os.getpid())
    for _ in range(n):
        started_s = time.perf_counter()
        again = handle.map(task, values)
        rounds_s.append(time.perf_counter() - started_s)
        if again != results:
            raise ArithmeticError("two rounds had different results")
    cpu_s = (cpu_of_tree_s(os.getpid()) - cpu_before_s) / n
    return {"results": results, "rounds_s": rounds_s, "cpu_s": cpu_s}


def sweep(way: str, n_workers: int, size: str, n_rounds: int) -> Figures:
    """Measure start-up, the time of each workload with warm workers, and their memory then."""
    started_s = time.perf_counter()
    from workloads import science

    import_s = time.perf_counter() - started_s
    n_tasks, fit_rows, group_rows, n_variables = _SIZES[size]
    workloads = {
        "scikit-learn": (science.fit, science.fits(n_tasks, fit_rows)),
        "pandas": (science.group, science.groups(n_tasks, group_rows)),
        "scipy": (science.minimize, science.minimizations(n_tasks, n_variables)),
    }
    before = _memory_bytes()
    opened = _Opened(way, n_workers, science.identify)
    found = {name: _time_rounds(opened.handle, *workload, n_rounds) for name, workload in workloads.items()}
    figures = {"workloads": found, "import_s": import_s, "start_s": opened.start_s} | _memory_figures(opened, before)
    opened.handle.close()
    return figures


def transfer(way: str, n_workers: int, size: str, n_rounds: int) -> Figures:
    """Measure calls that send an array to a worker and back; both sides read a number of each page."""
    import numpy as np
    from workloads.sending import identify, send_back, touch

    array = np.arange(TRANSFER_BYTES[size] / 8)
    expected = touch(array)
    opened = _Opened(way, n_workers, identify)
    calls_s = []
    for _ in range(2 * n_rounds + 1):
        started_s = time.perf_counter()
        there = opened.handle.call(send_back, (array, expected))
        if touch(there) != expected or there.nbytes != array.nbytes:
            raise ArithmeticError("the array that came back is not the one that was sent")
        calls_s.append(time.perf_counter() - started_s)
        del there
    opened.handle.close()
    return {"first_s": calls_s[0], "median_s": statistics.median(calls_s[1:]), "best_s": min(calls_s[1:])}


def main() -> None:
    """Measure in this process; print the figures."""
    section, way, n_workers, size, n_rounds = sys.argv[1:]
    measure = {"sweep": sweep, "transfer": transfer}[section]
    print(json.dumps(measure(way, int(n_workers), size, int(n_rounds))))
