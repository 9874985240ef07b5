"""Do idle cores help to pack and copy arrays, and does it cost nothing when there are none?

    python benchmarks/packing.py [--quick] [--only LAYOUT] [--json FILE]

Times how pool_party packs non-contiguous arrays for a worker with the help of idle cores ("ours"). Compares that with
the same code in one thread ("serial") and NumPy's copyto, while no, some and all other cores are kept busy by other
processes. Serial and ours take turns, and each goes first equally often, until the error of their medians is small. A
ratio is that of the medians: above 1, idle cores have helped; 0.98 is the most that may be lost where they cannot.
"Serial again" is the same code as "serial", and takes turns with it: its ratio differs from 1 only by the machine's
noise. The bound, if all other cores are idle: each core copies a share that was assigned beforehand, and the slowest
share counts. The layouts are those of the paper on MPI's packing with tasks: a face of a 3-D array, nested vectors, a
transposed block.
"""

import argparse
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from program import Record, add_only, finish, make_parser, n_usable_cpus, say
from tables import size_text, table
from workloads.layouts import LAYOUTS, Array

from pool_party import _native

_SIZES = [64 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 64 << 20]
_SMALLEST_SHARED = 8 << 20  # smaller shares would not be copied at the same time: waking a thread takes too long
_LEAST_S, _MOST_S = 0.3, 6.0  # for a size and layout
_QUICK = 0.05
_ERROR = 0.005  # the standard error of a median, relative to it, that is small enough
_N_ROUNDS_MIN = 9
# NumPy and the bound are measured in one of so many rounds. Not 3, as many as take turns: they would always follow the
# same one.
_OTHERS_EVERY = 4
_SETTLE_S = 0.3  # until the kernel's count includes newly running processes

type _Times = dict[str, list[float]]


@contextmanager
def _busy(n: int) -> Iterator[None]:
    """Keep n cores busy."""
    code = "while True: pass"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(n)]
    try:
        time.sleep(_SETTLE_S)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _timed_s(call: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


def _error(times: Sequence[float]) -> float:
    """Return the standard error of a median relative to it, from the quartiles, which outliers do not change."""
    lower, median, upper = statistics.quantiles(times, n=4)
    return 0.93 * (upper - lower) / math.sqrt(len(times)) / median


def _is_enough(times: _Times, started_s: float, share_of_time: float) -> bool:
    taken_s = time.perf_counter() - started_s
    if len(times["ours"]) < _N_ROUNDS_MIN or taken_s < _LEAST_S * share_of_time:
        return False
    return taken_s > _MOST_S * share_of_time or max(_error(times["serial"]), _error(times["ours"])) < _ERROR


def _slowest_share_s(target: Array, array: Array, n_cores: int, helpers: Executor) -> float:
    """Return the time of the slowest core, while all cores copy their shares of the rows at the same time."""
    edges = [len(array) * n // n_cores for n in range(n_cores + 1)]
    own, *others = (partial(_native.copy, target[begin:end], array[begin:end], 0) for begin, end in pairwise(edges))
    begun = [helpers.submit(_timed_s, share) for share in others]
    own_s = _timed_s(own)
    return max(own_s, *(share.result() for share in begun))


def _measure(array: Array, n_sharers: int, share_of_time: float) -> dict[str, float]:
    """Return the median times in ms, into memory whose pages are mapped; includes the bound if there are sharers."""
    target = np.zeros(array.shape, array.dtype)
    ways: dict[str, Callable[[], object]] = {
        "serial": lambda: _native.copy(target, array, 0),
        "ours": lambda: _native.copy(target, array, -1),
        "again": lambda: _native.copy(target, array, 0),
        "numpy": lambda: np.copyto(target, array),
    }
    for call in ways.values():
        call()
        if not (target == array).all():
            raise AssertionError("packed wrongly")
    times: _Times = {name: [] for name in ways}
    turns = ["serial", "ours", "again"]
    with ThreadPoolExecutor(n_sharers) as helpers:
        n_helped, started_s = _native.n_helped(), time.perf_counter()
        while not _is_enough(times, started_s, share_of_time):
            if len(times["ours"]) % _OTHERS_EVERY == 0:
                times["numpy"].append(_timed_s(ways["numpy"]))
                if n_sharers > 1:
                    times.setdefault("shares", []).append(_slowest_share_s(target, array, n_sharers, helpers))
            for name in turns:
                times[name].append(_timed_s(ways[name]))
            turns.append(turns.pop(0))
        return _sum_up(times) | {"pieces_helped": _native.n_helped() - n_helped}


def _sum_up(times: _Times) -> dict[str, float]:
    figures = {name: 1e3 * statistics.median(taken_s) for name, taken_s in times.items()}
    figures |= {"ratio": figures["serial"] / figures["ours"], "ratio_again": figures["serial"] / figures["again"]}
    if "shares" in figures:
        figures["bound"] = figures["serial"] / figures["shares"]
    errors = {"error_serial": _error(times["serial"]), "error_ours": _error(times["ours"])}
    return figures | errors | {"n_rounds": len(times["ours"])}


def _table(figures: dict[str, dict[str, Any]], sizes: Sequence[int]) -> str:
    headings = ["serial ms / ours ms = times as fast", *map(size_text, sizes)]
    rows = []
    for name, by_size in figures.items():
        cells = [by_size[str(size)] for size in sizes]
        rows.append([name, *(f"{c['serial']:.3g} / {c['ours']:.3g} = {c['ratio']:.2f}" for c in cells)])
        rows.append([f"{name}, serial again, times as fast", *(f"{c['ratio_again']:.2f}" for c in cells)])
        if any("bound" in c for c in cells):
            rows.append(
                [f"{name}, bound: each core its share", *(f"{c['bound']:.2f}" if "bound" in c else "" for c in cells)]
            )
        rows.append([f"{name}, numpy ms", *(f"{c['numpy']:.3g}" for c in cells)])
    return table(headings, rows)


def _measure_load(load: str, n_busy: int, sizes: Sequence[int], options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, dict[str, Any]] = {}
    with _busy(n_busy):
        for name in options.only or LAYOUTS:
            say(f"{load}: {name}")
            figures[name] = {}
            for size in sizes:
                n_sharers = n_usable_cpus() if n_busy == 0 and size >= _SMALLEST_SHARED else 1
                array = LAYOUTS[name](size // 8)
                figures[name][str(size)] = _measure(array, n_sharers, _QUICK if options.quick else 1.0)
    return figures


def main() -> int:
    """Measure as the command line says, and print a table for each number of busy cores."""
    parser = make_parser(__doc__)
    add_only(parser, LAYOUTS)
    options = parser.parse_args()
    n_cpus = n_usable_cpus()
    record = Record(__doc__, n_cpus, options)
    sizes = _SIZES[1::2] if options.quick else _SIZES
    loads = {"all other cores idle": 0, "some busy": max(1, (n_cpus - 1) // 2), "all cores busy": n_cpus}
    found: dict[str, Any] = {}
    for load, n_busy in loads.items():
        figures = _measure_load(load, n_busy, sizes, options)
        record.show(f"{load} ({n_busy} processes that compute).", _table(figures, sizes))
        found[load] = {"n_busy": n_busy, "layouts": figures}
        record.put("loads", found)
    return 0


if __name__ == "__main__":
    finish(main)
