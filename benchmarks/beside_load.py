"""What does lending CPUs gain on an idle machine, and what does it cost beside other programs?

    python benchmarks/cells.py --beside-load [--quick] [--kinds KIND...] [--repeats N]

Compares policy "dynamic" with "static": one task alone, equal tasks, and equal tasks after a lone one; on an otherwise
idle machine, and beside processes that only compute. The policies take turns within one process, so that other load
affects both.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cells_ways import warm_up
from fresh import Figures, begin, end
from peers import PoolHandle
from program import Record, n_usable_cpus, say
from tables import table
from workloads.algebra import eigenvalues, products, tall_qr

_POLICIES = ("static", "dynamic")
_LOADS = (0, 1, 2)  # busy processes
_PAUSE_S = 0.12  # OpenBLAS's threads spin for some 50 ms after a call, and a CPU becomes free only then
_LIMIT_S = 400.0
_REPEATS = 5
_DIVISORS = {"full": 1, "quick": 4}  # divide the order of the matrices
_BUSY = """
import os, sys
print(flush=True)
while os.getppid() == int(sys.argv[1]):  # else the program that measures was killed
    sum(range(100_000))
"""

type _Call = tuple[Callable[[Any], bool], tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Work:
    """Stages that run one after the other; each is a list of tasks that are handed out together."""

    name: str
    stages: tuple[tuple[_Call, ...], ...]


def do(call: _Call) -> bool:
    """Do one task."""
    task, value = call
    return task(value)


def works_of(n_workers: int, size: str) -> list[Work]:
    """Return the work to measure: matrices of a size, for pools of so many workers."""
    by = _DIVISORS[size]
    gemm, qr = (products, (0, 1500 // by, 2)), (tall_qr, (0, 2400 // by, 900 // by))
    small_gemm, small_qr = (products, (0, 1000 // by, 2)), (tall_qr, (0, 1600 // by, 600 // by))
    eig = (eigenvalues, (0, 200 // by, 1))
    return [
        Work("lone GEMM", ((gemm,),)),
        Work("lone QR", ((qr,),)),
        Work("equal GEMM", ((small_gemm,) * 2 * n_workers,)),
        Work("equal QR", ((small_qr,) * 2 * n_workers,)),
        Work("QR, then QR and 8 eig", ((qr,), (qr, *(eig,) * 8))),
    ]


def _time(handle: PoolHandle, work: Work) -> float:
    """Do all of some work; return how long it took.

    Raises:
        ArithmeticError: if a result is wrong.
    """
    time.sleep(_PAUSE_S)
    started_s = time.perf_counter()
    for stage in work.stages:
        if not all(handle.map(do, stage)):
            raise ArithmeticError(f"wrong results in {work.name}")
    return time.perf_counter() - started_s


def measure() -> None:
    """Print the times of each policy for each work, in the order of the rounds. argv: kind, workers, size, rounds."""
    from pool_party import ComposablePool

    kind, n_workers, size, n_rounds = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    pools = {policy: PoolHandle(ComposablePool(n_workers, kind=kind, policy=policy)) for policy in _POLICIES}
    for handle in pools.values():
        warm_up(handle, n_workers)
    figures: Figures = {}
    for work in works_of(n_workers, size):
        times: dict[str, list[float]] = {policy: [] for policy in _POLICIES}
        for turn in range(n_rounds):
            for policy in _POLICIES if turn % 2 == 0 else reversed(_POLICIES):
                times[policy].append(_time(pools[policy], work))
        figures[work.name] = times
    print(json.dumps(figures), flush=True)
    for handle in pools.values():
        handle.close()


@contextmanager
def _busy(n_processes: int) -> Iterator[None]:
    """Keep so many processes computing within the context."""
    processes = [
        subprocess.Popen([sys.executable, "-c", _BUSY, str(os.getpid())], stdout=subprocess.PIPE)
        for _ in range(n_processes)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # it has started
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _cell(times: dict[str, list[float]] | None) -> str:
    """Write the ratio of the medians, followed by the seconds of "static" in brackets."""
    if times is None:
        return "-"
    static_s, dynamic_s = (statistics.median(times[policy]) for policy in _POLICIES)
    return f"{dynamic_s / static_s:.2f} ({static_s:.2f})"


def format_results(found: dict[tuple[str, int], Figures], kinds: Sequence[str], names: Sequence[str]) -> str:
    """Return the table of the results, by kind and number of busy processes."""
    headings = ["", *("idle" if n == 0 else f"beside {n} busy" for n in _LOADS)]
    rows = [
        [f"{kind}, {name}", *(_cell(found.get((kind, n), {}).get(name)) for n in _LOADS)]
        for kind in kinds
        for name in names
    ]
    return table(headings, rows)


def run(options: argparse.Namespace) -> int:
    """Measure as the options of cells.py say, and print the table; return the exit status."""
    n_workers, size = n_usable_cpus(), "quick" if options.quick else "full"
    n_rounds = options.repeats or _REPEATS
    record = Record(__doc__, n_workers, options)
    found: dict[tuple[str, int], Figures] = {}
    failures = []
    for kind in options.kinds:
        for n_busy in _LOADS:
            say(f"{kind}, beside {n_busy} busy processes")
            with _busy(n_busy):
                arguments = [kind, n_workers, size, n_rounds]
                figures, failure = end(begin("beside_load", arguments, function="measure"), _LIMIT_S)
            if figures is None:
                failures.append(f"- not measured: {kind}, beside {n_busy}: {failure}")
            else:
                found[kind, n_busy] = figures
                record.put("results", [{"kind": k, "n_busy": n, "times_s": times} for (k, n), times in found.items()])
    names = [work.name for work in works_of(n_workers, size)]
    title = '"dynamic" over "static", medians; in brackets the seconds of "static".'
    record.show(title, format_results(found, options.kinds, names), "\n".join(failures))
    return int(bool(failures))
