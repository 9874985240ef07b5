"""What does it cost to hand out a task?

    python benchmarks/dispatch.py [--quick] [--only SECTION] [--kinds KIND...] [--workers N] [--json FILE]

compares pool_party's three kinds of workers with multiprocessing's pools, the executors of
concurrent.futures, loky and joblib. Every measurement runs in a fresh process, so that no pool
meets the remains of another; repeats are interleaved (all pools once, then all pools again), so
that a slow moment of the machine falls on all of them.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bounds import BOUND, bounds_of
from dispatch_sections import CROWDS
from fresh import Figures, Measurement, begin, end
from peers import Peer, available_peers
from program import (
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
    percentile,
    say,
    wanted,
)
from tables import duration, number, ratio, table, us

_TIMEOUT_S = 120.0
_QUICK_EFFORT = 0.2

type _Summary = dict[str, float]


def _pooled(runs: Sequence[Figures], key: str) -> list[float]:
    return [value for run in runs for value in run[key]]


def _median(runs: Sequence[Figures], key: str) -> float:
    return float(statistics.median(run[key] for run in runs))


def _sum_up_throughput(runs: Sequence[Figures]) -> _Summary:
    return {"median": _median(runs, "per_s"), "best": max(run["per_s"] for run in runs)}


def _sum_up_round_trip(runs: Sequence[Figures]) -> _Summary:
    busy, idle = _pooled(runs, "busy_us"), _pooled(runs, "idle_us")
    return {
        "median": statistics.median(busy),
        "p99": percentile(busy, 99),
        "idle_median": statistics.median(idle),
        "idle_p99": percentile(idle, 99),
    }


def _sum_up_start(runs: Sequence[Figures]) -> _Summary:
    return {
        "median": _median(runs, "first_s"),
        "best": min(run["first_s"] for run in runs),
        "again": _median(runs, "again_s"),
        "end": _median(runs, "end_s"),
        "import": _median(runs, "import_s"),
    }


def _sum_up_idle(runs: Sequence[Figures]) -> _Summary:
    return {
        "cpu_percent": _median(runs, "cpu_percent"),
        "wake_ups_per_s": _median(runs, "wake_ups_per_s"),
        "n_processes": _median(runs, "n_processes"),
    }


def _sum_up_hostage(runs: Sequence[Figures]) -> _Summary:
    return {
        "median": _median(runs, "last_other_s"),
        "n_hostages": max(run["n_hostages"] for run in runs),
    }


def _sum_up_crowd(runs: Sequence[Figures]) -> _Summary:
    return {key: _median(runs, key) for key in runs[0]}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, its figure, and how that is written."""

    heading: str
    key: str
    write: Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Section:
    """A table: its question, how its runs are summarized, and which figure ratios use.

    An extra one is measured only if --only names it, and only for our pools: 1,000 workers of others take too much.
    """

    title: str
    sum_up: Callable[[Sequence[Figures]], _Summary]
    columns: tuple[Column, ...]
    ratio_key: str = "median"
    is_more_better: bool = False
    n_repeats: int = 5
    runs_at_once: bool = False
    is_extra: bool = False


_SECTIONS = {
    "throughput": Section(
        "map(noop, range(n), chunksize=1): tasks per second; higher is better",
        _sum_up_throughput,
        (Column("median", "median", number), Column("best", "best", number)),
        is_more_better=True,
    ),
    "round-trip": Section(
        "one apply(noop) or submit(noop).result(), back to back and after 2 ms without a task; lower is better",
        _sum_up_round_trip,
        (
            Column("median", "median", us),
            Column("p99", "p99", us),
            Column("after idle", "idle_median", us),
            Column("p99", "idle_p99", us),
        ),
        n_repeats=3,
    ),
    "start": Section(
        "from opening a pool to its first result, in a fresh process without the import, and once "
        "more; the first pool's end; lower is better",
        _sum_up_start,
        (
            Column("median", "median", duration),
            Column("best", "best", duration),
            Column("again", "again", duration),
            Column("end", "end", duration),
            Column("import", "import", duration),
        ),
    ),
    "idle": Section(
        "a pool without tasks, over 5 s: CPU time in % of a core, threads woken, all processes",
        _sum_up_idle,
        (
            Column("CPU", "cpu_percent", lambda value: f"{value:.3f} %"),
            Column("wake-ups", "wake_ups_per_s", lambda value: f"{value:.1f}/s"),
            Column("processes", "n_processes", lambda value: f"{value:.0f}"),
        ),
        ratio_key="",
        n_repeats=1,
        runs_at_once=True,
    ),
    "hostage": Section(
        "1,000 tasks, one of which takes 1 s: when the last of the others is done, and how many of "
        "them waited over 0.5 s",
        _sum_up_hostage,
        (
            Column("last of the others", "median", duration),
            Column("held up", "n_hostages", lambda value: f"{value:.0f}"),
        ),
        n_repeats=3,
    ),
    "crowd": Section(
        "one apply(noop), and the caller's CPU time for a task of map(noop, range(500), chunksize=1), by the number of "
        "workers, nearly all of which sleep; lower is better",
        _sum_up_crowd,
        tuple(
            Column(f"{title}, {size}", f"{key}_{size}", us)
            for title, key in (("call", "call_us"), ("task", "task_cpu_us"))
            for size in CROWDS
        ),
        ratio_key="",
        n_repeats=3,
        is_extra=True,
    ),
}


def _begin(section: str, peer: Peer, options: argparse.Namespace) -> Measurement:
    """Start the process that makes one measurement."""
    effort = _QUICK_EFFORT if options.quick else 1.0
    return begin("dispatch_sections", [section, peer.name, options.workers, effort])


def _measure(name: str, peers: Sequence[Peer], options: argparse.Namespace) -> Runs:
    """Make all measurements of a section; print progress to standard error."""
    section, by_name = _SECTIONS[name], {peer.name: peer for peer in peers}
    by_name |= {bound.name: bound for bound in bounds_of(name)}
    n_repeats = 1 if options.quick else options.repeats or section.n_repeats
    if not section.runs_at_once:
        return gather(
            name, list(by_name), n_repeats, lambda subject: end(_begin(name, by_name[subject], options), _TIMEOUT_S)
        )
    runs = Runs()
    say(f"{name}: all at once")
    begun = {subject: _begin(name, peer, options) for subject, peer in by_name.items()}
    for subject, measurement in begun.items():
        runs.add(subject, end(measurement, _TIMEOUT_S))
    return runs


def _best_of_others(kind: str, peers: Sequence[Peer], figures: dict[str, float], pick: Any) -> float:
    others = [peer for peer in peers if peer.kind == kind and not peer.is_ours]
    found = [figures[peer.name] for peer in others if peer.name in figures]
    return float(pick(found)) if found else math.nan


def _ratios(section: Section, peers: Sequence[Peer], summaries: dict[str, _Summary], peer: Peer) -> list[str]:
    """Return a peer's figure divided by its reference's, and by the best of others of its kind."""
    figures = {name: summary[section.ratio_key] for name, summary in summaries.items()}
    pick = max if section.is_more_better else min
    best = _best_of_others(peer.kind, peers, figures, pick)
    own, reference = figures[peer.name], figures.get(peer.reference, math.nan)

    def times(other: float, name: str) -> str:
        return "-" if math.isnan(other) else f"{ratio(own / other)} {name}".rstrip()

    return [times(reference, peer.reference), times(best, "")]


def _format_section(name: str, peers: Sequence[Peer], runs: Runs) -> str:
    section = _SECTIONS[name]
    summaries = {name: section.sum_up(figures) for name, figures in runs.figures.items()}
    headings = ["", *(column.heading for column in section.columns)]
    headings += ["to its reference", "to the best other"] if section.ratio_key else []
    rows = []
    for peer in (*peers, *bounds_of(name)):
        if peer.name not in summaries:
            continue
        found = summaries[peer.name]
        cells = [column.write(found[column.key]) if column.key in found else "-" for column in section.columns]
        has_ratios = section.ratio_key and peer.kind != BOUND
        ratios = _ratios(section, peers, summaries, peer) if has_ratios else [""] * (len(headings) - 1 - len(cells))
        rows.append([peer.name, *cells, *ratios])
    return table(headings, rows)


def _without_samples(figures: Figures) -> Figures:
    return {key: value for key, value in figures.items() if not isinstance(value, list)}


def _as_json(section: Section, runs: Runs) -> dict[str, Any]:
    """Return summary and single runs of every peer (without the samples behind a percentile)."""
    return {
        name: {
            "summary": section.sum_up(figures),
            "runs": list(map(_without_samples, figures)),
        }
        for name, figures in runs.figures.items()
    } | {name: {"failure": reason} for name, reason in runs.failures.items()}


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_workers(parser)
    add_repeats(parser, None)
    add_kinds(parser)
    add_only(parser, _SECTIONS)
    add_peer(parser)
    return parser.parse_args()


def main() -> int:
    """Measure as the command line says, and print a table for each section."""
    options = _parse_arguments()
    names = wanted((peer.name for peer in available_peers()), options.peer)
    peers = [peer for peer in available_peers() if peer.name in names and peer.kind in options.kinds]
    record = Record(__doc__, options.workers, options)
    has_failed = False
    for name in options.only or [name for name, section in _SECTIONS.items() if not section.is_extra]:
        if name == "hostage" and options.workers < 2:
            record.show("hostage: left out, since with one worker all tasks wait")
            continue
        runs = _measure(name, [peer for peer in peers if peer.is_ours or not _SECTIONS[name].is_extra], options)
        record.show(f"{_SECTIONS[name].title}.", _format_section(name, peers, runs), runs.failure_text())
        record.put_section(name, _as_json(_SECTIONS[name], runs))
        has_failed |= bool(runs.failures)
    return int(has_failed)


if __name__ == "__main__":
    finish(main)
