"""What do budgets and the splitting of work cost, beside the work itself?

    python benchmarks/overhead.py [--quick] [--only SECTION] [--workers N] [--repeats N] [--json FILE]

`budget`: a task that needs no budget, under each policy and without one. `management`: a product of matrices, split by
rows over threads that are started for it, and over workers that wait for it, with and without affinity, and with a
caller that computes the last share itself: the parallel management overhead (PMO) and the partitioned computational
expansion (PCE) of the ATLAS paper (Castaldo and Whaley). `wake-up`: when the first and the last of sleeping workers
begin. Every measurement runs in a fresh process; repeats are interleaved.
"""

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fresh import Figures, begin, end
from metadata import collect_metadata, format_metadata
from overhead_sections import METHODS, ORDERS, POLICIES
from peers import available_peers, pool_accepts

from pool_party._demo.report import format_table

_TIMEOUT_S = 120.0
_QUICK_EFFORT = 0.05
_KINDS = ("thread", "interp", "process")

type _Runs = dict[str, list[Figures]]  # by subject


def _median(runs: _Runs, subject: str, *keys: str) -> float:
    """Return the median over the runs of a figure, or NaN if there was no run."""
    values = []
    for figures in runs.get(subject, []):
        value: Any = figures
        for key in keys:
            value = value[key]
        values.append(value)
    return statistics.median(values) if values else math.nan


def _write(value: float, text: str) -> str:
    return "-" if math.isnan(value) else text.format(value)


def _budget_subjects() -> list[str]:
    return [f"{kind} {policy}" for kind in _KINDS for policy in POLICIES]


def _format_budget(runs: _Runs) -> str:
    rows = []
    for subject in _budget_subjects():
        kind, policy = subject.split()
        cells = []
        for key in ("apply_ns", "map_ns"):
            own_ns = _median(runs, subject, key)
            cells += [_write(own_ns, "{:.0f} ns"), _write(own_ns - _median(runs, f"{kind} None", key), "{:+.0f} ns")]
        has_numpy = all(figures["has_numpy"] for figures in runs.get(subject, []))
        rows.append([f"{kind}, {policy}", *cells, "yes" if has_numpy else "no"])
    headings = ["", "apply", "to None", "map, per task", "to None", "NumPy loaded"]
    return f"tasks that do nothing, under a policy and without one; lower is better\n{format_table(headings, rows)}"


def _management_subjects() -> list[str]:
    return list(METHODS)


def _format_management(runs: _Runs) -> str:
    headings = ["", *map(str, ORDERS)]

    def table(title: str, cell: Callable[[str, str], str]) -> str:
        rows = [[name, *(cell(name, str(order)) for order in ORDERS)] for name in METHODS]
        return f"{title}\n{format_table(headings, rows)}"

    def speed(name: str, order: str) -> str:
        reference_us = _median(runs, next(iter(METHODS)), order, "full_us")
        return _write(reference_us / _median(runs, name, order, "full_us"), "{:.2f} x")

    return "\n\n".join(
        (
            table(
                "PMO of a rank-56 update, by order: time of the whole less that of its longest share; lower is better, "
                "and it should not grow",
                lambda name, order: _write(_median(runs, name, order, "pmo_us"), "{:.0f} us"),
            ),
            table(
                "PCE: time of the average share, divided by that of a share alone; 1 is best",
                lambda name, order: _write(_median(runs, name, order, "pce"), "{:.2f}"),
            ),
            table("speed of the whole, of launch and join; higher is better", speed),
        )
    )


def _wake_up_subjects() -> list[str]:
    names = []
    for peer in available_peers():
        names.append(peer.name)
        if peer.is_ours and "," not in peer.name:
            names.append(f"{peer.name}, affinity")
    return names


def _format_wake_up(runs: _Runs) -> str:
    rows = []
    for subject in runs:
        cells = []
        for key in ("first_us", "last_us"):
            pooled = sorted(value for figures in runs[subject] for value in figures[key])
            rank = math.ceil(0.99 * len(pooled)) - 1
            cells += [f"{statistics.median(pooled):.0f} us", f"{pooled[rank]:.0f} us"]
        n_shared = sum(figures["n_shared"] for figures in runs[subject])
        rows.append([subject, *cells, str(n_shared)])
    title = (
        "as many tasks as workers, sent to a pool that slept for 5 ms: until the first and the last begin; lower is "
        "better\n"
    )
    return title + format_table(["", "first", "p99", "last", "p99", "shared a worker"], rows)


_SECTIONS: dict[str, tuple[Callable[[], list[str]], Callable[[_Runs], str]]] = {
    "budget": (_budget_subjects, _format_budget),
    "management": (_management_subjects, _format_management),
    "wake-up": (_wake_up_subjects, _format_wake_up),
}


def _obstacle(section: str, subject: str, n_workers: int) -> str:
    """Return why something cannot be measured here, or the empty string."""
    if "master last" in subject and n_workers < 2:
        return "needs two workers"
    if section == "budget" and subject.endswith("None"):
        return ""
    needs_policy = section == "budget" or (section == "management" and subject.startswith("pool_party"))
    if (needs_policy or "affinity" in subject) and "launch" not in subject and not pool_accepts("policy"):
        return "needs ComposablePool(policy=)"
    return ""


def _measure(section: str, options: argparse.Namespace) -> tuple[_Runs, dict[str, str]]:
    """Make all measurements of a section; return their figures, and why some have none. Progress goes to stderr."""
    runs: _Runs = {}
    failures: dict[str, str] = {}
    environment = dict(os.environ)
    if section == "management":
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    effort = _QUICK_EFFORT if options.quick else 1.0
    for repeat in range(options.repeats):
        print(f"{section}: round {repeat + 1} of {options.repeats}", file=sys.stderr, flush=True)
        for subject in _SECTIONS[section][0]():
            if failure := _obstacle(section, subject, options.workers) or failures.get(subject, ""):
                failures[subject] = failure
                continue
            arguments = [section, subject, options.workers, effort]
            figures, failure = end(begin("overhead_sections", arguments, environment), _TIMEOUT_S)
            if figures is None:
                failures[subject] = failure
            else:
                runs.setdefault(subject, []).append(figures)
    return runs, failures


def _without_samples(runs: Sequence[Figures]) -> list[Figures]:
    """Return the figures with medians in the place of long lists."""
    return [
        {key: statistics.median(value) if isinstance(value, list) else value for key, value in figures.items()}
        for figures in runs
    ]


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add(
        "--workers",
        type=int,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="workers per pool; default: the CPUs that this process may use",
    )
    add(
        "--only",
        action="append",
        choices=_SECTIONS,
        metavar="SECTION",
        help=f"one of {', '.join(_SECTIONS)}; may be given more than once",
    )
    add("--repeats", type=int, default=5, metavar="N", help="runs of which the tables have the median; default: 5")
    add("--quick", action="store_true", help="one short run of each: shows that everything runs, measures nothing")
    add("--json", type=Path, metavar="FILE", help="write all figures there, with metadata")
    options = parser.parse_args()
    if options.quick:
        options.repeats = 1
    return options


def main() -> int:
    """Measure what the command line asks for, and print its tables."""
    options = _parse_arguments()
    metadata = collect_metadata(options.workers)
    report: dict[str, Any] = {"metadata": metadata, "sections": {}}
    print(f"{__doc__.splitlines()[0]}\n{format_metadata(metadata)}\n", flush=True)
    for section in options.only or _SECTIONS:
        runs, failures = _measure(section, options)
        print(_SECTIONS[section][1](runs))
        for subject, failure in failures.items():
            print(f"  not measured: {subject}: {failure}")
        print(flush=True)
        report["sections"][section] = {name: _without_samples(figures) for name, figures in runs.items()}
        report["sections"][section] |= {name: {"failure": failure} for name, failure in failures.items()}
    metadata["load_average_after"] = list(os.getloadavg())
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
