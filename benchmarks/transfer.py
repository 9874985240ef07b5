"""What does it cost to pass data to a task and back?

    python benchmarks/transfer.py [--quick] [--only SECTION] [--workers N] [--max-size BYTES] [--json FILE]

compares pool_party's three kinds of workers with multiprocessing.Pool, the executors of
concurrent.futures, and loky, by the size of what one call gets and gives back; beside them a bare
pipe between two processes, and two copies in memory, which bound whoever copies once each way.
Every pool and kind of data is measured in a fresh process; repeats are interleaved.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fresh import begin, end
from metadata import collect_metadata, format_metadata, save_report
from peers import Peer, available_peers
from transfer_sections import BOUNDS, MEMCPY, VALUES

from pool_party._demo.report import format_table

_TIMEOUT_S = 600.0
_QUICK_EFFORT = 0.15
_SIZES = [1, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
_QUICK_SIZES = [1, 16 << 10, 512 << 10, 4 << 20, 64 << 20]
_TITLES = {
    "bytes": "a bytes object, by its size",
    "ndarray": "an array of float64, by its size",
    "floats": "a list of floats, by 8 bytes for each; it arrives as a list of objects",
    "shared": "an array that pool_party.share has made: only a handle travels",
}
_PEERS = ("pool_party", "Pool", "InterpreterPoolExecutor", "ProcessPoolExecutor", "loky")

type _Runs = dict[str, list[dict[str, float]]]


def _peers_of(section: str, wanted: Sequence[str]) -> list[Peer]:
    """Threads pass references: they have nothing to compare with but themselves."""
    peers = [peer for peer in available_peers() if peer.name.startswith(_PEERS) and "fork" not in peer.name]
    if section == "shared":
        peers = [peer for peer in peers if peer.is_ours]
    return [peer for peer in peers if any(text in peer.name for text in wanted)]


def _names(section: str, wanted: Sequence[str]) -> list[str]:
    names = [peer.name for peer in _peers_of(section, wanted)]
    return names if section == "shared" else [*names, *(name for name in BOUNDS if name)]


def _measure(section: str, options: argparse.Namespace, sizes: list[int]) -> tuple[_Runs, dict[str, str]]:
    runs: _Runs = {}
    failures: dict[str, str] = {}
    effort = _QUICK_EFFORT if options.quick else 1.0
    n_rounds = 1 if options.quick else 3
    for n in range(n_rounds):
        print(f"{section}: round {n + 1} of {n_rounds}", file=sys.stderr, flush=True)
        for name in _names(section, options.peer or [""]):
            arguments = [section, name, options.workers, effort, json.dumps(sizes)]
            figures, failure = end(begin("transfer_sections", arguments), _TIMEOUT_S)
            if figures is None:
                failures.setdefault(name, failure)
            else:
                runs.setdefault(name, []).append(figures)
    return runs, failures


def _size(n_bytes: int) -> str:
    for unit, shift in (("MB", 20), ("KB", 10)):
        if n_bytes >> shift:
            return f"{n_bytes >> shift} {unit}"
    return f"{n_bytes} B"


def _time(us: float) -> str:
    return f"{us:.1f} us" if us < 1000 else f"{us / 1000:.1f} ms"


def _format(section: str, medians: dict[str, dict[str, float]], failures: dict[str, str], sizes: list[int]) -> str:
    """Two tables: times, and how many times faster ours are than the reference of their kind."""
    headings = ["", *map(_size, sizes)]
    rows = [[name, *(_time(medians[name][str(size)]) for size in sizes)] for name in medians]
    lines = [f"{_TITLES[section]}: there and back; lower is better", format_table(headings, rows)]
    ratios = []
    for peer in _peers_of(section, [""]):
        others = [peer.reference, "loky", "ProcessPoolExecutor"] if peer.kind == "process" else [peer.reference]
        for other in others if peer.is_ours and peer.name in medians and peer.kind != "thread" else ():
            if other in medians:
                faster = [medians[other][str(size)] / medians[peer.name][str(size)] for size in sizes]
                ratios.append([f"{peer.name}, times as fast as {other}", *(f"{ratio:.1f}" for ratio in faster)])
        if peer.is_ours and peer.name in medians and MEMCPY in medians:
            bound = [medians[peer.name][str(size)] / medians[MEMCPY][str(size)] for size in sizes]
            ratios.append([f"{peer.name}, times memcpy", *(f"{ratio:.1f}" for ratio in bound)])
    if ratios:
        lines += ["", format_table(headings, ratios)]
    return "\n".join([*lines, *(f"  failed: {name}: {reason}" for name, reason in failures.items()), ""])


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What does it cost to pass data to a task and back?")
    add = parser.add_argument
    usable = len(os.sched_getaffinity(0))
    add("--workers", type=int, default=usable, metavar="N", help="workers per pool; default: the usable CPUs")
    add("--only", action="append", choices=VALUES, metavar="SECTION", help=f"one of {', '.join(VALUES)}; repeatable")
    add("--peer", action="append", metavar="TEXT", help="leave out pools without this in their name; repeatable")
    add("--max-size", type=int, default=_SIZES[-1], metavar="BYTES", help="leave out what is larger")
    add("--quick", action="store_true", help="fewer and shorter runs: a look, not a measurement")
    add("--json", type=Path, metavar="FILE", help="write all figures there, with metadata")
    return parser.parse_args()


def main() -> int:
    """Measure what the command line asks for, and print a table for each section."""
    options = _parse_arguments()
    sizes = [size for size in (_QUICK_SIZES if options.quick else _SIZES) if size <= options.max_size]
    metadata = collect_metadata(options.workers)
    report: dict[str, Any] = {"metadata": metadata, "sections": {}}
    print(f"{__doc__.splitlines()[0]}\n{format_metadata(metadata)}\n", flush=True)
    has_failed = False
    for section in options.only or VALUES:
        section_sizes = [size for size in sizes if section != "floats" or size <= 64 << 20]
        runs, failures = _measure(section, options, section_sizes)
        medians = {
            name: {str(size): statistics.median(run[str(size)] for run in figures) for size in section_sizes}
            for name, figures in runs.items()
        }
        print(_format(section, medians, failures, section_sizes), flush=True)
        report["sections"][section] = {"median_us": medians, "runs_us": runs, "failures": failures}
        has_failed |= any(name.startswith("pool_party") for name in failures)
    save_report(report, options.json)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
