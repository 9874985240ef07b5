"""How does nested parallelism scale with the number of workers, from 1 to twice the CPUs?

    python benchmarks/scaling.py [--quick] [--kinds KIND...] [--cells CELL...] [--ways WAY...] [--workers N...]

The four cells of cells.py with a third of their work, in some of its ways, by pools of growing size, as in figures 2 to
7 of the composability paper (Malakhov et al., SciPy 2018). Each way and pool size has a process of its own, which runs
each cell up to three times. The bound is the time of one worker with one BLAS thread, divided by the CPUs: no way can
use more than all CPUs.
"""

import argparse
import json
import math
import signal
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from cells import WAYS, environment_of, obstacles_of, title_of
from cells_ways import CELLS, open_way, run_stage, stages_of, warm_up
from fresh import TIME_IS_UP, begin, end
from program import Record, add_kinds, add_repeats, finish, make_parser, n_usable_cpus, say
from tables import table

_ONE_THREAD = "one-thread"  # comes first, as it determines the time limit of the others
_CHOSEN = (_ONE_THREAD, "default", "joblib", "dynamic")
_PATIENCE = 6.0  # a way is stopped once a cell takes this many times longer than with one BLAS thread
_LEAST_LIMIT_S = 3.0
_FIRST_LIMIT_S = 60.0
_START_S = 60.0  # for the time before the clock starts
_ENOUGH_S = 1.2  # a cell that took this long is not repeated in the same process
_MOST_RUNS = 3

type _Point = dict[str, Any]


def measure() -> None:
    """Run the cells that the command line names in this process; print the times so far as JSON after each."""
    kind, way, n_workers, size = sys.argv[1:5]
    handle = open_way(way, kind, int(n_workers))
    warm_up(handle, int(n_workers))
    figures: dict[str, list[float]] = {}
    for text in sys.argv[5:]:
        cell, _, limit_s = text.partition("=")
        taken_s: list[float] = []
        while len(taken_s) < _MOST_RUNS and sum(taken_s) < _ENOUGH_S:
            signal.setitimer(signal.ITIMER_REAL, float(limit_s))
            taken_s.append(sum(run_stage(handle, stage) for stage in stages_of(cell, size)))
        signal.setitimer(signal.ITIMER_REAL, 0)
        figures[cell] = taken_s
        print(json.dumps(figures), flush=True)
    handle.close()


def default_numbers(n_cpus: int) -> list[int]:
    """Return the pool sizes: all from 1 to twice the CPUs if these are few, otherwise in growing steps."""
    if n_cpus <= 4:
        return list(range(1, 2 * n_cpus + 1))
    doublings = [2**exponent for exponent in range(n_cpus.bit_length()) if 2**exponent < n_cpus]
    return [*doublings, n_cpus, n_cpus * 3 // 2, 2 * n_cpus]


class _Curves:
    """The times of one kind of workers so far, by way, number of workers and cell."""

    def __init__(self, kind: str, cells: Sequence[str], size: str) -> None:
        self._kind, self._cells, self._size = kind, cells, size
        self._times_s: dict[tuple[str, int, str], list[float]] = {}
        self._failures: dict[tuple[str, int, str], str] = {}

    def _limit_s(self, n_workers: int, cell: str) -> float:
        best_s = self.median_s(_ONE_THREAD, n_workers, cell)
        return _FIRST_LIMIT_S if math.isnan(best_s) else max(_LEAST_LIMIT_S, _PATIENCE * best_s)

    def median_s(self, way: str, n_workers: int, cell: str) -> float:
        """Return a time, NaN if there is none."""
        return statistics.median(self._times_s.get((way, n_workers, cell), [math.nan]))

    def measure(self, way: str, n_workers: int) -> None:
        """Run all cells, and collect the times; a new process continues after each cell that was stopped."""
        left = [cell for cell in self._cells if (way, n_workers, cell) not in self._failures]
        while left:
            limits_s = {cell: self._limit_s(n_workers, cell) for cell in left}
            texts = [f"{cell}={limit_s}" for cell, limit_s in limits_s.items()]
            arguments = [self._kind, way, n_workers, self._size, *texts]
            timeout_s = _START_S + _MOST_RUNS * sum(limits_s.values())
            environment = environment_of(way, self._kind)
            figures, failure = end(begin("scaling", arguments, environment, "measure"), timeout_s)
            for cell, times_s in (figures or {}).items():
                self._times_s.setdefault((way, n_workers, cell), []).extend(times_s)
            left = [cell for cell in left if cell not in (figures or {})]
            if left and failure == TIME_IS_UP:
                failure = f"> {limits_s[left[0]]:.1f} s"
            if left:
                self._failures[way, n_workers, left.pop(0)] = failure or "no time was printed"

    def fail(self, way: str, numbers: Sequence[int], reason: str) -> None:
        """Note why a way cannot be measured."""
        for n_workers in numbers:
            self._failures |= {(way, n_workers, cell): reason for cell in self._cells}

    def points(self) -> list[_Point]:
        """Return all of it as JSON."""
        found: list[_Point] = []
        for key in self._times_s | self._failures:
            way, n_workers, cell = key
            point: _Point = {"kind": self._kind, "way": way, "title": title_of(way, self._kind)}
            point |= {"n_workers": n_workers, "cell": cell}
            if key in self._failures:
                point["failure"] = self._failures[key]
            else:
                point |= {"median_s": self.median_s(*key), "times_s": self._times_s[key]}
            found.append(point)
        return found


def _bounds(points: Sequence[_Point], n_cpus: int) -> list[_Point]:
    """Return, for each kind and cell, the time of one worker with one BLAS thread, divided by the CPUs."""
    return [
        {"kind": point["kind"], "cell": point["cell"], "bound_s": point["median_s"] / n_cpus}
        for point in points
        if point["way"] == _ONE_THREAD and point["n_workers"] == 1 and "median_s" in point
    ]


def _format(points: Sequence[_Point], bounds: Sequence[_Point], numbers: Sequence[int]) -> str:
    lines: dict[tuple[str, str], dict[int, str]] = {}
    for point in points:
        text = f"{point['median_s']:.2f} s" if "median_s" in point else point["failure"]
        shown = text if "median_s" in point or text.startswith(">") else "-"
        lines.setdefault((point["cell"], point["title"]), {})[point["n_workers"]] = shown
    rows = [[f"{cell}: {title}", *(texts.get(n, "-") for n in numbers)] for (cell, title), texts in lines.items()]
    rows += [[f"{bound['cell']}: the bound", *[f"{bound['bound_s']:.2f} s"] * len(numbers)] for bound in bounds]
    return table(["", *(f"{n} workers" if n > 1 else "1 worker" for n in numbers)], rows)


def _measure_kind(kind: str, options: argparse.Namespace, size: str, obstacles: dict[tuple[str, str], str]) -> _Curves:
    curves = _Curves(kind, options.cells, size)
    for way in options.ways:
        if reason := obstacles.get((kind, way), ""):
            curves.fail(way, options.workers, reason)
    possible = [way for way in options.ways if (kind, way) not in obstacles]
    for repeat in range(options.repeats):
        for n_workers in options.workers:
            say(f"{kind}, {n_workers} workers: {repeat + 1} of {options.repeats}")
            for way in possible:
                curves.measure(way, n_workers)
    return curves


def _parse_arguments() -> argparse.Namespace:
    numbers = default_numbers(n_usable_cpus())
    ways = [way for way in WAYS if way != "one-worker"]
    parser = make_parser(__doc__)
    add = parser.add_argument
    add_kinds(parser)
    add("--cells", nargs="+", choices=CELLS, default=list(CELLS), metavar="CELL", help="cells; default: all")
    add("--ways", nargs="+", choices=ways, default=_CHOSEN, metavar="WAY", help=f"default: {' '.join(_CHOSEN)}")
    add("--workers", nargs="+", type=int, metavar="N", help=f"sizes of pools; default: {' '.join(map(str, numbers))}")
    add_repeats(parser, 1)
    options = parser.parse_args()
    if options.quick:
        numbers = [1, n_usable_cpus()]
    options.workers = sorted(set(options.workers or numbers))
    options.ways = [way for way in WAYS if way in options.ways]  # one thread first
    return options


def main() -> int:
    """Measure as the command line says, and print a table for each kind."""
    options = _parse_arguments()
    size = "quick" if options.quick else "brief"
    record = Record(__doc__, max(options.workers), options)
    record.put("size", size)
    points: list[_Point] = []
    bounds: list[_Point] = []
    obstacles = obstacles_of(options.kinds)
    for kind in options.kinds:
        found = _measure_kind(kind, options, size, obstacles).points()
        found_bounds = _bounds(found, n_usable_cpus())
        record.show(f"{kind}: seconds; lower is better.", _format(found, found_bounds, options.workers))
        points += found
        bounds += found_bounds
        record.put("points", points)
        record.put("bounds", bounds)
    return 0


if __name__ == "__main__":
    finish(main)
