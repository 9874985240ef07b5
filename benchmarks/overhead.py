"""What do budgets and the splitting of work cost, beside the work itself?

    python benchmarks/overhead.py [--quick] [--only SECTION] [--workers N] [--repeats N] [--json FILE]

`budget`: a task that needs no budget, under each policy and without one. `management`: a product of matrices, split by
rows. The shares run in threads that are started for it, or in waiting workers, with and without affinity; the caller
may compute the last share itself. The figures are the parallel management overhead (PMO) and the partitioned
computational expansion (PCE) of the ATLAS paper (Castaldo and Whaley). Every measurement runs in a fresh process;
repeats are interleaved.
"""

import argparse
import math
import os
import statistics
from collections.abc import Callable
from typing import Any

from fresh import Figures, begin, end
from overhead_sections import GATED, METHODS, ORDERS, POLICIES
from peers import pool_accepts
from program import (
    KINDS,
    ONE_THREAD,
    Record,
    Runs,
    add_kinds,
    add_only,
    add_peer,
    add_repeats,
    add_workers,
    finish,
    gather,
    make_parser,
    wanted,
    without_samples,
)
from tables import table

_TIMEOUT_S = 120.0
_QUICK_EFFORT = 0.05

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
    return [f"{kind} {policy}" for kind in KINDS for policy in POLICIES if kind == "process" or policy not in GATED]


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
    return f"Tasks that do nothing, under a policy and without one; lower is better.\n\n{table(headings, rows)}"


def _management_subjects() -> list[str]:
    return list(METHODS)


def _format_management(runs: _Runs) -> str:
    headings = ["", *map(str, ORDERS)]

    def titled(title: str, cell: Callable[[str, str], str]) -> str:
        rows = [[name, *(cell(name, str(order)) for order in ORDERS)] for name in METHODS]
        return f"{title}.\n\n{table(headings, rows)}"

    def whole(name: str, order: str) -> str:
        return _write(_median(runs, name, order, "full_us") / _median(runs, name, order, "serial_share_us"), "{:.2f}")

    def speed(name: str, order: str) -> str:
        reference_us = _median(runs, next(iter(METHODS)), order, "full_us")
        return _write(reference_us / _median(runs, name, order, "full_us"), "{:.2f} x")

    return "\n\n".join(
        (
            titled(
                "PMO of a rank-56 update, by order: time of the whole less that of its longest share; lower is better, "
                "and it should not grow",
                lambda name, order: _write(_median(runs, name, order, "pmo_us"), "{:.0f} us"),
            ),
            titled(
                "PCE: time of the average share, divided by that of a share alone; 1 is best",
                lambda name, order: _write(_median(runs, name, order, "pce"), "{:.2f}"),
            ),
            titled("The whole, divided by a share alone; 1 is the bound", whole),
            titled("Speed of the whole, of launch and join; higher is better", speed),
        )
    )


_SECTIONS: dict[str, tuple[Callable[[], list[str]], Callable[[_Runs], str]]] = {
    "budget": (_budget_subjects, _format_budget),
    "management": (_management_subjects, _format_management),
}


def _kind_of(subject: str) -> str:
    """Return the kind of workers of a subject; launch-and-join has threads."""
    return next((kind for kind in KINDS if kind in subject), "process" if subject == "Pool" else "thread")


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


def _measure(section: str, options: argparse.Namespace) -> Runs:
    """Make all measurements of a section; print progress to standard error."""
    environment = dict(os.environ) | (ONE_THREAD if section == "management" else {})
    effort = _QUICK_EFFORT if options.quick else 1.0

    def measure(subject: str) -> tuple[Figures | None, str]:
        if obstacle := _obstacle(section, subject, options.workers):
            return None, obstacle
        return end(begin("overhead_sections", [section, subject, options.workers, effort], environment), _TIMEOUT_S)

    subjects = [
        subject for subject in wanted(_SECTIONS[section][0](), options.peer) if _kind_of(subject) in options.kinds
    ]
    return gather(section, subjects, options.repeats, measure)


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_workers(parser)
    add_kinds(parser)
    add_peer(parser)
    add_repeats(parser, 5)
    add_only(parser, _SECTIONS)
    options = parser.parse_args()
    if options.quick:
        options.repeats = 1
    return options


def main() -> int:
    """Measure as the command line says, and print its tables."""
    options = _parse_arguments()
    record = Record(__doc__, options.workers, options)
    for section in options.only or _SECTIONS:
        runs = _measure(section, options)
        record.show(_SECTIONS[section][1](runs.figures), runs.failure_text())
        found: dict[str, Any] = {name: list(map(without_samples, figures)) for name, figures in runs.figures.items()}
        record.put_section(section, found | {name: {"failure": reason} for name, reason in runs.failures.items()})
    return 0


if __name__ == "__main__":
    finish(main)
