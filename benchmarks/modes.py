"""How do the workloads of the pool-party document do in every mode?

    python benchmarks/modes.py [--quick] [--only WORKLOAD] [--modes MODE...] [--workers N] [--repeats N] [--json FILE]

The same workloads and modes as under pyperformance (see MANIFEST), in minutes instead of an hour. Each workload runs in
each mode in a fresh process. That maps once to warm up and to check the results, then repeats for 0.3 s, at least three
times. The bound is the sequential time divided by the CPUs; in a free-threaded build, "sequential" has no GIL either.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from fresh import begin, end
from party_modes import MODES, SEQUENTIAL, Mapping, is_available
from party_workloads import WORKLOADS
from program import Record, Runs, add_only, add_repeats, add_workers, finish, gather, make_parser, n_usable_cpus
from tables import duration, ratio, table

_TIMEOUT_S = 120.0
_ROUNDS_S = 0.3
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 20


def measure() -> None:
    """Measure as the command line says, in this process, and print the figures as JSON."""
    workload, size, mode, n_workers = sys.argv[1:]
    taken_s: list[float] = []
    with Mapping(workload, size, mode, int(n_workers)) as mapping:
        mapping.open()
        while len(taken_s) < _LEAST_ROUNDS or (sum(taken_s) < _ROUNDS_S and len(taken_s) < _MOST_ROUNDS):
            started_s = time.perf_counter()
            results = mapping.run()
            taken_s.append(time.perf_counter() - started_s)
            del results
        print(json.dumps({"map_s": statistics.median(taken_s), "n_maps": len(taken_s)}), flush=True)


def _sum_up(runs: Runs, n_cpus: int) -> dict[str, Any]:
    """Return the median time of every mode, its speed-up over the sequential one, and the bound."""
    medians_s = {mode: statistics.median(figures["map_s"] for figures in found) for mode, found in runs.figures.items()}
    sequential_s = medians_s.get(SEQUENTIAL, math.nan)
    sums: dict[str, Any] = {}
    for mode, median_s in medians_s.items():
        sums[mode] = {"summary": {"median": median_s}, "runs": runs.figures[mode]}
        if not math.isnan(sequential_s):
            sums[mode]["summary"]["speed_up"] = sequential_s / median_s
    if not math.isnan(sequential_s):
        bound = {"median": sequential_s / n_cpus, "speed_up": float(n_cpus)}
        sums[f"sequential / {n_cpus}"] = {"summary": bound}
    return sums | {mode: {"failure": failure} for mode, failure in runs.failures.items()}


def _format(sections: dict[str, dict[str, Any]]) -> str:
    rows = []
    for mode in dict.fromkeys(mode for section in sections.values() for mode in section):
        cells = []
        for sums in sections.values():
            summary = sums.get(mode, {}).get("summary")
            speed_up = f" ({ratio(summary['speed_up'])})" if summary and "speed_up" in summary else ""
            cells.append(f"{duration(summary['median'])}{speed_up}" if summary else "-")
        rows.append([mode, *cells])
    return table(["", *sections], rows)


def _measure_workload(workload: str, modes: Sequence[str], options: argparse.Namespace) -> Runs:
    size = "tiny" if options.quick else "small"

    def measure_one(mode: str) -> tuple[dict[str, Any] | None, str]:
        return end(begin("modes", [workload, size, mode, options.workers], function="measure"), _TIMEOUT_S)

    return gather(workload, modes, 1 if options.quick else options.repeats, measure_one)


def main() -> int:
    """Measure as the command line says, and print a table."""
    parser = make_parser(__doc__)
    add_workers(parser)
    add_repeats(parser, 3)
    add_only(parser, WORKLOADS)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, metavar="MODE", help=", ".join(MODES))
    options = parser.parse_args()
    modes = [mode for mode in options.modes if is_available(mode)]
    record = Record(__doc__, options.workers, options)
    sections: dict[str, dict[str, Any]] = {}
    failures: list[str] = []
    for workload in options.only or WORKLOADS:
        runs = _measure_workload(workload, modes, options)
        sections[workload] = _sum_up(runs, min(options.workers, n_usable_cpus()))
        failures.append(runs.failure_text(f"{workload}, "))
        record.put_section(workload, sections[workload])
    title = "A map of all tasks, one task a chunk, and its speed-up over `sequential`."
    record.show(title, _format(sections), "\n".join(filter(None, failures)))
    return int(any(failures))


if __name__ == "__main__":
    finish(main)
