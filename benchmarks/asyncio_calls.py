"""What does it cost to await tasks in asyncio, and for how long do opening and ending a pool stop the loop?

    python benchmarks/asyncio_calls.py [--quick] [--only SECTION] [--peer TEXT] [--workers N] [--repeats N]
        [--json FILE]

calls: 100 clients in the same loop await short tasks, each one after the other. server: 100 clients in another process
ask an aiohttp server, whose handler awaits a task of some 0.5 ms of Python. Both have the calls per second, and how
long a call takes. stalls: the longest time between two turns of the loop while a pool is opened and ended five times;
"nothing is opened" is the machine's own. Every measurement runs in a fresh process. Standard executors are awaited
through run_in_executor.
"""

import argparse
import importlib.util
import sys
from collections.abc import Mapping

from asyncio_ways import EXECUTOR, IN_LOOP, NOTHING, OURS
from fresh import begin, end
from program import (
    Record,
    Result,
    Runs,
    add_only,
    add_peer,
    add_repeats,
    add_workers,
    finish,
    gather,
    make_parser,
    medians,
    wanted,
)
from tables import table

from pool_party._workers.interp.extensions import IS_SUPPORTED

_TIMEOUT_S = 120.0
_N_CALLS = {"calls": 200, "server": 50, "stalls": 5}  # of each client, or of pools
_N_QUICK = 3
_PEERS = {  # kind -> the standard library's executor, anyio's
    "thread": ("ThreadPoolExecutor", "anyio threads"),
    "process": ("ProcessPoolExecutor", "anyio processes"),
    "interp": ("InterpreterPoolExecutor", "anyio interpreters"),
}
_KINDS = tuple(kind for kind in _PEERS if IS_SUPPORTED or kind != "interp")


def _peers_here(kind: str) -> list[str]:
    if kind == "interp" and sys.version_info < (3, 14):
        return []
    has_anyio = importlib.util.find_spec("anyio") is not None
    return [name for name in _PEERS[kind] if has_anyio or not name.startswith("anyio")]


def _ways(section: str) -> list[str]:
    if section == "stalls":
        return [*(f"{OURS}{kind}" for kind in _KINDS), NOTHING]
    ways = [(f"{OURS}{kind}", f"{OURS}{kind}{EXECUTOR}", *_peers_here(kind)) for kind in _KINDS]
    return [*(way for of_kind in ways for way in of_kind), *[IN_LOOP] * (section == "server")]


def _measure(section: str, options: argparse.Namespace) -> Runs:
    n_calls = _N_QUICK if options.quick else _N_CALLS[section]

    def measure(way: str) -> Result:
        return end(begin("asyncio_ways", [section, way, options.workers, n_calls]), _TIMEOUT_S)

    return gather(section, wanted(_ways(section), options.peer), 1 if options.quick else options.repeats, measure)


def _reference_of(way: str) -> str | None:
    """Return the standard executor with the same kind of workers."""
    kind = way.removeprefix(OURS).removesuffix(EXECUTOR)
    return _PEERS[kind][0] if kind in _PEERS else None


def _cell(key: str, value: float, reference: float | None) -> str:
    """Write a figure, and in brackets how many times the reference's it is."""
    text = f"{value:,.0f}" if key == "calls_per_s" else f"{value:.2f} ms"
    return text if reference is None else f"{text} ({value / reference:.2f} x)"


def _format(sums: Mapping[str, dict[str, float]]) -> str:
    keys = list(next(iter(sums.values()))) if sums else []
    headings = [key.removesuffix("_ms").replace("_per_s", " a second").replace("_", " ") for key in keys]
    rows = []
    for way, figures in sums.items():
        reference = sums.get(_reference_of(way) or "", {})
        rows.append([way, *(_cell(key, figures[key], reference.get(key)) for key in keys)])
    return table(["", *headings], rows)


def main() -> int:
    """Measure as the command line says, and print a table for each section."""
    parser = make_parser(__doc__)
    add_workers(parser)
    add_only(parser, _N_CALLS)
    add_peer(parser)
    add_repeats(parser, 3)
    options = parser.parse_args()
    record = Record(__doc__, options.workers, options)
    has_failed = False
    for section in options.only or _N_CALLS:
        if section == "server" and importlib.util.find_spec("aiohttp") is None:
            record.show("server: left out, since aiohttp is not installed")
            continue
        runs = _measure(section, options)
        sums = {way: medians(found) for way, found in runs.figures.items()}
        record.show(f"{section}:", _format(sums), runs.failure_text())
        record.put_section(section, runs.as_json(sums))
        has_failed |= any(way.startswith(OURS) for way in runs.failures)
    return int(has_failed)


if __name__ == "__main__":
    finish(main)
