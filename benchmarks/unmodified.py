"""How fast do programs that know nothing of pool_party run under `python -m pool_party`?

    python benchmarks/unmodified.py [--quick] [--program NAME...] [--flavour NAME...] [--workers N...] [--json FILE]
    python benchmarks/unmodified.py --together [--quick] [--workers N...] [--json FILE]

Each program of `programs/` runs as it is, under `python -m pool_party` without an option, and with settings that a
person could try by hand: library threads by environment variables, and other numbers of workers. The time is that of
the whole program, from its start to its end. What it prints has to be the same in every way.

With --together, two programs run at the same time: as they are, under `python -m pool_party --scope machine`, and with
the CPUs divided between them by hand. The time is that until both have ended.
"""

import argparse
import importlib.util
import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from fresh import begin, end
from program import Record, Result, Runs, add_repeats, add_workers, finish, gather, make_parser, n_usable_cpus
from tables import table
from unmodified_ways import OURS, PLAIN, PROGRAMS, SHARED, ways, ways_together

_TIMEOUT_S = 60.0
_FLAVOURS = ("processes", "threads")
_NEEDS = {"dask": ("dask",), "forest": ("sklearn", "joblib"), "loops": ("numba",)}  # by a part of the program's name
_PAIRS = (
    (("qr", "processes"), ("qr", "processes")),
    (("eig", "processes"), ("eig", "processes")),
    (("qr", "threads"), ("eig", "processes")),
)

type _Programs = Sequence[tuple[str, str]]  # programs that run at the same time, each with its flavour
type _Row = dict[str, Any]


def _names() -> list[str]:
    return sorted(path.stem for path in PROGRAMS.glob("*.py"))


def _missing(program: str) -> list[str]:
    needs = [name for part, names in _NEEDS.items() if part in program for name in names]
    return [name for name in needs if importlib.util.find_spec(name) is None]


def _name(programs: _Programs) -> str:
    return " and ".join(f"{program}, {flavour}" for program, flavour in programs)


def _measure(programs: _Programs, n_workers: int, options: argparse.Namespace) -> Runs:
    scale = 0.1 if options.quick else 1.0

    def measure(way: str) -> Result:
        return end(begin("unmodified_ways", [way, n_workers, scale, *chain(*programs)]), _TIMEOUT_S)

    label = f"{_name(programs)}, {n_workers} workers"
    possible = (ways_together if options.together else ways)(n_usable_cpus())
    names = [name for name, way in possible.items() if way.n_workers != n_workers]
    runs = gather(label, names, 1 if options.quick else options.repeats, measure)
    check(runs)
    return runs


def check(runs: Runs) -> None:
    """Turn each way that printed something else than the program as it is into a failure."""
    if PLAIN not in runs.figures:
        return
    expected = runs.figures[PLAIN][0]["output"]
    for way, figures in list(runs.figures.items()):
        if any(run.pop("output") != expected for run in figures):
            runs.failures[way] = "it printed something else than the program as it is"
            del runs.figures[way]


def sum_up(figures: Mapping[str, Sequence[Mapping[str, float]]]) -> _Row:
    """Return the median time of each way in seconds, the best way by hand, and two ratios, of which more is better.

    to plain, to hand: the time of the program as it is, and with the best settings by hand, divided by the time under
    `python -m pool_party`.
    """
    row: _Row = {way: statistics.median(run["wall_s"] for run in runs) for way, runs in figures.items()}
    ours = SHARED if SHARED in row else OURS
    by_hand_s = {way: time_s for way, time_s in row.items() if way != ours}
    best = min(by_hand_s, key=by_hand_s.__getitem__, default="")
    if best and ours in row:
        row |= {"to plain": row.get(PLAIN, math.nan) / row[ours], "to hand": by_hand_s[best] / row[ours]}
    return row | {"best": best}


def _cells(name: str, row: _Row, ours: str) -> list[str]:
    best = row["best"]
    times = [f"{row[way]:.2f} s" if way in row else "-" for way in (PLAIN, ours)]
    ratios = [f"{row[key]:.2f} x" if key in row else "-" for key in ("to plain", "to hand")]
    return [name, *times, f"{row[best]:.2f} s: {best}" if best else "-", *ratios]


def _parse_arguments() -> argparse.Namespace:
    n_cpus = n_usable_cpus()
    parser = make_parser(__doc__ or "")
    add = parser.add_argument
    add("--program", nargs="+", choices=_names(), default=_names(), metavar="NAME", help="default: all")
    add("--flavour", nargs="+", choices=_FLAVOURS, default=_FLAVOURS, metavar="NAME", help="default: both")
    add("--together", action="store_true", help="three pairs of programs at once; no --program, --flavour")
    add_workers(parser, several=True, default=f"{n_cpus} and {4 * n_cpus}")
    add_repeats(parser, 3)
    options = parser.parse_args()
    options.workers = options.workers or ([n_cpus] if options.quick else [n_cpus, 4 * n_cpus])
    return options


def _choose(options: argparse.Namespace) -> list[_Programs]:
    if options.together:
        return list(_PAIRS)
    return [[(program, flavour)] for program in options.program for flavour in options.flavour]


def _measure_all(n_workers: int, options: argparse.Namespace, record: Record) -> dict[str, _Row]:
    """Measure all programs; return the part of the record, and show a table."""
    ours = SHARED if options.together else OURS
    section: dict[str, _Row] = {}
    rows, failures = [], []
    for programs in _choose(options):
        runs = _measure(programs, n_workers, options)
        name, row = _name(programs), sum_up(runs.figures)
        section[name] = {"summary": row, "runs": runs.figures, "failures": runs.failures}
        rows.append(_cells(name, row, ours))
        failures.append(runs.failure_text(f"{name}, "))
    headings = ["", PLAIN, ours, "best by hand", "plain to it", "best by hand to it"]
    whole = "until both programs have ended" if options.together else "of the whole program"
    title = f"{n_workers} workers: time {whole}; of ratios to pool_party's time, more is better."
    record.show(title, table(headings, rows), "\n".join(filter(None, failures)))
    return section


def main() -> int:
    """Measure as the command line says, and print a table for each number of workers."""
    options = _parse_arguments()
    record = Record(__doc__ or "", max(options.workers), options)
    for program in list(options.program):
        if missing := _missing(program):
            record.show(f"{program}: left out, since these are not installed: {', '.join(missing)}")
            options.program.remove(program)
    has_failed = False
    for n_workers in options.workers:
        section = _measure_all(n_workers, options, record)
        record.put_section(f"{n_workers} workers", section)
        has_failed |= any({OURS, SHARED} & set(row["failures"]) for row in section.values())
    return int(has_failed)


if __name__ == "__main__":
    finish(main)
