"""What does it cost to pass data to a task and back?

    python benchmarks/transfer.py [--quick] [--only SECTION] [--workers N] [--max-size BYTES] [--json FILE]

compares pool_party's three kinds of workers with multiprocessing.Pool, the executors of concurrent.futures, and loky,
by the size of the argument and the result of one call. There are three bounds. A bare pipe connects two processes. Two
copies in one thread, one there and one back, reuse their memory: no pool that copies once each way can be faster. The
same copies into new objects are what receivers of most values need. Every pool and kind of data is measured in a fresh
process; repeats are interleaved.
"""

import argparse
import json
import statistics
from collections.abc import Sequence

from fresh import Figures, begin, end
from peers import Peer, available_peers
from program import Record, Runs, add_only, add_peer, add_workers, finish, gather, make_parser, wanted
from tables import size_text, table, us
from transfer_sections import BOUNDS, MEMCPY, VALUES

_TIMEOUT_S = 600.0
_QUICK_EFFORT = 0.15
_SIZES = [1, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
_QUICK_SIZES = [1, 16 << 10, 512 << 10, 4 << 20, 64 << 20]
_LARGEST_LIST = 64 << 20  # 256 MB would be 1 GB of float objects on each side
_N_ROUNDS = 3
_TITLES = {
    "bytes": "a bytes object, by its size",
    "ndarray": "an array of float64, by its size",
    "floats": "a list of floats, by 8 bytes for each; it arrives as a list of objects",
    "shared": "an array that pool_party.share has made: only a handle travels",
}
_PEERS = ("pool_party", "Pool", "InterpreterPoolExecutor", "ProcessPoolExecutor", "loky")


def _peers_of(section: str) -> list[Peer]:
    """Threads pass references, so they are compared only with other threads."""
    peers = [peer for peer in available_peers() if peer.name.startswith(_PEERS) and "fork" not in peer.name]
    return [peer for peer in peers if peer.is_ours] if section == "shared" else peers


def _measure(section: str, options: argparse.Namespace, sizes: Sequence[int]) -> Runs:
    names = wanted((peer.name for peer in _peers_of(section)), options.peer)
    effort = _QUICK_EFFORT if options.quick else 1.0

    def measure(name: str) -> tuple[Figures | None, str]:
        return end(begin("transfer_sections", [section, name, options.workers, effort, json.dumps(sizes)]), _TIMEOUT_S)

    bounds = () if section == "shared" else BOUNDS
    return gather(section, [*names, *bounds], 1 if options.quick else _N_ROUNDS, measure)


def _ratio_rows(section: str, medians_us: dict[str, Figures], sizes: Sequence[int]) -> list[list[str]]:
    """Return the speed-up of ours over the reference of their kind, and the ratio to two copies."""

    def row(title: str, above: str, below: str) -> list[str]:
        return [title, *(f"{medians_us[above][str(size)] / medians_us[below][str(size)]:.1f}" for size in sizes)]

    rows = []
    for peer in _peers_of(section):
        if not peer.is_ours or peer.name not in medians_us:
            continue
        others = [peer.reference, "loky", "ProcessPoolExecutor"] if peer.kind == "process" else [peer.reference]
        for other in others if peer.kind != "thread" else ():
            if other in medians_us:
                rows.append(row(f"{peer.name}, times as fast as {other}", other, peer.name))
        if MEMCPY in medians_us:
            rows.append(row(f"{peer.name}, times memcpy", peer.name, MEMCPY))
    return rows


def _format(section: str, medians_us: dict[str, Figures], sizes: Sequence[int]) -> str:
    """Return two tables: times, and ratios."""
    headings = ["", *map(size_text, sizes)]
    rows = [[name, *(us(taken_us[str(size)]) for size in sizes)] for name, taken_us in medians_us.items()]
    tables = [table(headings, found) for found in (rows, _ratio_rows(section, medians_us, sizes)) if found]
    return "\n\n".join((f"{_TITLES[section]}: there and back; lower is better.", *tables))


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_workers(parser)
    add_only(parser, VALUES)
    add_peer(parser)
    help_text = "leave out what is larger; default: 256 MB"
    parser.add_argument("--max-size", type=int, default=_SIZES[-1], metavar="BYTES", help=help_text)
    return parser.parse_args()


def main() -> int:
    """Measure as the command line says, and print tables for each section."""
    options = _parse_arguments()
    record = Record(__doc__, options.workers, options)
    has_failed = False
    for section in options.only or VALUES:
        limit = min(options.max_size, _LARGEST_LIST if section == "floats" else _SIZES[-1])
        sizes = [size for size in (_QUICK_SIZES if options.quick else _SIZES) if size <= limit]
        runs = _measure(section, options, sizes)
        medians_us = {
            name: {str(size): statistics.median(run[str(size)] for run in found) for size in sizes}
            for name, found in runs.figures.items()
        }
        record.show(_format(section, medians_us, sizes), runs.failure_text())
        figures = {"median_us": medians_us, "runs_us": runs.figures, "failures": runs.failures}
        record.put_section(section, figures)
        has_failed |= any(name.startswith("pool_party") for name in runs.failures)
    return int(has_failed)


if __name__ == "__main__":
    finish(main)
