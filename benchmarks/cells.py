"""Which way of sharing the CPUs out suits which nested parallelism?

    python benchmarks/cells.py [--quick] [--kinds KIND...] [--cells CELL...] [--ways WAY...] [--workers N...]
    python benchmarks/cells.py --beside-load [--quick] [--kinds KIND...] [--repeats N]      (see beside_load.py)

The four cells of the composability paper (Malakhov et al., SciPy 2018). Tasks are equal, or come in three stages: one
task, a few tasks, many tasks. Each has little inner parallelism (eigenvalues of small matrices), or much (tall QR).
Each way of running them does every cell in a process of its own; repeats are interleaved.
"""

import argparse
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import beside_load
from cells_ways import CELLS, GATED, POLICIES, SIZES, default_size, stages_of
from fresh import TIME_IS_UP, Figures, begin, end
from peers import pool_accepts
from program import ONE_THREAD, Record, add_kinds, add_repeats, add_workers, finish, make_parser, n_usable_cpus, say
from tables import table as format_table

_FIXED = ("one-thread", "one-worker", "default", "joblib")  # the first two determine the time limit of the others
WAYS = (*_FIXED, "none", *POLICIES)
_STAGED = ("one-thread", "one-worker")  # the best fixed policy in every stage alternates between these

_REPEATS = 3
_PATIENCE = 8.0  # a way is stopped once it takes this many times longer than the best so far
_LEAST_LIMIT_S = 4.0
_FIRST_LIMIT_S = {"quick": 10.0, "brief": 30.0, "small": 60.0, "large": 300.0}
_START_S = 60.0  # for the time before the clock starts, and after it stops

_STDLIB = {"thread": "ThreadPool", "process": "multiprocessing.Pool", "interp": "pool_party without policy"}
_JOBLIB = {"thread": "joblib, threading", "process": "joblib, loky"}


def title_of(way: str, kind: str) -> str:
    """Return the name of a way in a table."""
    titles = {
        "default": _STDLIB[kind],
        "one-thread": f"{_STDLIB[kind]}, one BLAS thread",
        "one-worker": "one worker, all BLAS threads",
        "joblib": _JOBLIB.get(kind, "joblib"),
        "none": "pool_party, policy=None",
    }
    return titles.get(way, f"pool_party, {way}")


@dataclass(slots=True)
class Row:
    """The results of one way in one cell: the times of the stages of each run, or why there are none."""

    runs: list[list[float]] = field(default_factory=list)
    failure: str = ""

    @property
    def total_s(self) -> float:
        """The median time of a run; NaN if there was none, or one failed."""
        return math.nan if self.failure or not self.runs else statistics.median(map(sum, self.runs))

    @property
    def stages_s(self) -> list[float]:
        """The median time of each stage."""
        return [statistics.median(times) for times in zip(*self.runs, strict=True)]


type _Table = dict[tuple[str, str], Row]  # by way and cell


def environment_of(way: str, kind: str) -> dict[str, str]:
    """Return the environment of a way: thread counts unset, or one thread for all libraries."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    if way == "one-thread" and kind != "thread":
        environment |= ONE_THREAD
    return environment


def _measure(
    kind: str, way: str, n_workers: int, size: str, limit_s: float, cells: Sequence[str]
) -> tuple[Figures | None, str]:
    arguments = [kind, way, n_workers, size, limit_s, *cells]
    return end(begin("cells_ways", arguments, environment_of(way, kind)), limit_s + _START_S)


def obstacles_of(kinds: Sequence[str]) -> dict[tuple[str, str], str]:
    """Return, by kind and way, why some ways cannot be measured here."""
    found: dict[tuple[str, str], str] = {}
    for kind in kinds:
        if find_spec("joblib") is None:
            found[kind, "joblib"] = "joblib is not installed"
        if not pool_accepts("policy"):
            found |= {(kind, policy): "needs ComposablePool(policy=)" for policy in POLICIES}
        elif kind != "process":
            found |= {(kind, policy): "it is for processes" for policy in GATED}
    if "interp" in kinds:
        found["interp", "joblib"] = "joblib has no interpreters"
        found["interp", "none"] = "the same as without policy"
        _, failure = _measure("interp", "none", 1, "quick", 1.0, [])
        if failure:
            found |= {("interp", way): f"needs NumPy in interpreters ({failure})" for way in WAYS}
    return found


def _limit(table: _Table, cells: Sequence[str], size: str) -> float:
    """Return how long a run of these cells may take, based on the best so far."""
    limits_s = []
    for cell in cells:
        totals = [record.total_s for (_, other), record in table.items() if other == cell]
        best_s = min((total for total in totals if not math.isnan(total)), default=math.inf)
        limits_s.append(min(_FIRST_LIMIT_S[size], max(_LEAST_LIMIT_S, _PATIENCE * best_s)))
    return sum(limits_s)


def _measure_way(table: _Table, kind: str, way: str, n_workers: int, size: str, cells: Sequence[str]) -> None:
    """Run the given cells in one process, and add the times to the table."""
    cells = [cell for cell in cells if not table[way, cell].failure]
    if not cells:
        return
    limit_s = _limit(table, cells, size)
    figures, failure = _measure(kind, way, n_workers, size, limit_s, cells)
    for cell in cells:
        if figures is None:
            table[way, cell].failure = f"> {limit_s:.1f} s" if failure == TIME_IS_UP else failure
        else:
            table[way, cell].runs.append(figures[cell])


def _measure_kind(kind: str, n_workers: int, options: argparse.Namespace, obstacles: Mapping[Any, str]) -> _Table:
    """Run all ways through all cells, repeatedly; print progress to standard error."""
    table = {(way, cell): Row(failure=obstacles.get((kind, way), "")) for way in options.ways for cell in options.cells}
    groups = [options.cells] if options.quick else [[cell] for cell in options.cells]
    for repeat in range(options.repeats):
        for group in groups:
            name = ", ".join(group)
            say(f"{kind}, {n_workers} workers, {name}: {repeat + 1} of {options.repeats}")
            for way in options.ways:
                _measure_way(table, kind, way, n_workers, options.size, group)
    return table


def _best_fixed(table: _Table, cell: str) -> float:
    totals = [record.total_s for (way, other), record in table.items() if other == cell and way in _FIXED]
    return min((total for total in totals if not math.isnan(total)), default=math.nan)


def _best_per_stage(table: _Table, cell: str) -> float:
    """Return the time when the better of two fixed ways is used in every stage."""
    records = [table.get((way, cell), Row()) for way in _STAGED]
    if any(math.isnan(record.total_s) for record in records):
        return math.nan
    return math.fsum(map(min, *(record.stages_s for record in records)))


def _with_ratio(time_s: float, best_s: float) -> str:
    ratio = "" if math.isnan(best_s) else f" ({time_s / best_s:.2f})"
    return "-" if math.isnan(time_s) else f"{time_s:.2f} s{ratio}"


def _write_cell(record: Row, best_s: float) -> str:
    if record.failure:
        return record.failure if record.failure.startswith(">") else "-"
    return _with_ratio(record.total_s, best_s)


def _format_totals(table: _Table, kind: str, ways: Sequence[str], cells: Sequence[str]) -> str:
    best_s = {cell: _best_fixed(table, cell) for cell in cells}
    rows, reasons = [], []
    for way in ways:
        rows.append([title_of(way, kind), *(_write_cell(table[way, cell], best_s[cell]) for cell in cells)])
        failures = {table[way, cell].failure for cell in cells} - {""}
        reasons += [f"- {title_of(way, kind)}: {failure}" for failure in sorted(failures) if failure[0] != ">"]
    bounds = [_with_ratio(_best_per_stage(table, cell), best_s[cell]) for cell in cells]
    rows.append(["best per stage", *bounds])
    return "\n\n".join(filter(None, (format_table(["", *cells], rows), "\n".join(reasons))))


def _format_stages(table: _Table, kind: str, size: str, cells: Sequence[str]) -> str:
    """Return the times of the stages of unbalanced cells as a table; the empty string if there is none."""
    rows = []
    headings: list[str] = []
    for cell in cells:
        stages = stages_of(cell, size)
        for way in _STAGED:
            record = table.get((way, cell), Row())
            if len(stages) > 1 and not math.isnan(record.total_s):
                headings = [stage.name for stage in stages]
                rows.append([f"{cell}: {title_of(way, kind)}", *(f"{time_s:.2f} s" for time_s in record.stages_s)])
    return format_table(["stages", *headings], rows) if rows else ""


def _format_work(cells: Sequence[str], size: str) -> str:
    lines = []
    for cell in cells:
        texts = []
        for stage in stages_of(cell, size):
            _, *shape = stage.values[0]
            texts.append(f"{len(stage.values)} x {stage.task.__name__}({', '.join(map(str, shape))})")
        lines.append(f"- {cell}: {', then '.join(texts)}")
    return "\n".join(lines)


def _as_json(table: _Table, kind: str, n_workers: int) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for (way, cell), record in table.items():
        result: dict[str, Any] = {"kind": kind, "n_workers": n_workers, "way": way, "cell": cell}
        if record.failure:
            result["failure"] = record.failure
        else:
            result |= {"median_s": record.total_s, "ratio": record.total_s / _best_fixed(table, cell)}
            result |= {"best_per_stage_s": _best_per_stage(table, cell)}
        results.append(result | {"stages_s": record.runs})
    return results


def _parse_arguments() -> argparse.Namespace:
    n_cpus = n_usable_cpus()
    parser = make_parser(__doc__)
    add = parser.add_argument
    add_kinds(parser)
    add("--cells", nargs="+", choices=CELLS, default=list(CELLS), metavar="CELL", help="cells; default: all")
    add("--ways", nargs="+", choices=WAYS, default=WAYS, metavar="WAY", help=f"default: {' '.join(WAYS)}")
    add_workers(parser, several=True, default=f"{n_cpus} and {4 * n_cpus}")
    add_repeats(parser, None)
    add("--size", choices=SIZES, default=default_size(), help="size of the problems; default here: %(default)s")
    add("--beside-load", action="store_true", help="instead: dynamic against static, idle and beside busy processes")
    options = parser.parse_args()
    options.ways = [way for way in WAYS if way in options.ways]  # in the order that the time limits need
    if options.quick:
        options.size, options.repeats = "quick", 1
    elif not options.beside_load:
        options.repeats = options.repeats or _REPEATS
    options.workers = options.workers or ([n_cpus] if options.quick else [n_cpus, 4 * n_cpus])
    return options


def main() -> int:
    """Measure as the command line says, and print a table for each kind and number of workers."""
    options = _parse_arguments()
    if options.beside_load:
        return beside_load.run(options)
    record = Record(__doc__, max(options.workers), options)
    record.put("size", options.size)
    results: list[dict[str, Any]] = []
    record.show(_format_work(options.cells, options.size))
    obstacles = obstacles_of(options.kinds)
    for kind in options.kinds:
        reasons = {obstacles.get((kind, way), "") for way in options.ways}
        if "" not in reasons:
            record.show(f"{kind}: {', '.join(sorted(reasons))}")
            continue
        for n_workers in options.workers:
            table = _measure_kind(kind, n_workers, options, obstacles)
            record.show(
                f"{kind}, {n_workers} workers: seconds, and the ratio to the best of the fixed ways; lower is better.",
                _format_totals(table, kind, options.ways, options.cells),
                _format_stages(table, kind, options.size, options.cells),
            )
            results += _as_json(table, kind, n_workers)
            record.put("results", results)
    return 0


if __name__ == "__main__":
    finish(main)
