"""What do the objects of programs cost: one that many tasks share, and the functions and classes of a script?

    python benchmarks/objects.py [--quick] [--only SECTION] [--peer TEXT] [--workers N] [--repeats N] [--json FILE]

A section for each form of object gives the same one to 400 tasks, each task sent alone, and in the chunks that
multiprocessing.Pool would choose. It has the CPU time of the program and all its processes, and by how much their
memory grew at most while the tasks were sent alone, sampled every 10 ms. The section `script` has the wall time of a
script's first call of a function of its own, of the first call with an object of its own class, and of further ones.
Threads are left out, since they send references.
"""

import argparse
from collections.abc import Mapping

from fresh import Figures, begin, end
from peers import Peer, available_peers
from program import (
    Record,
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
from tables import duration, size_text, table
from workloads.objects import FORMS, N_TASKS

_TIMEOUT_S = 600.0
_QUICK_SCALE = 0.05
_SCRIPT = "script"
_HEADINGS = {
    "alone_cpu_s": "CPU time, tasks alone",
    "chunks_cpu_s": "in chunks",
    "alone_peak_bytes": "memory at its peak",
    "first_us": "first call",
    "function_us": "further ones",
    "first_class_us": "first object",
    "class_us": "further ones",
}


def _peers() -> list[Peer]:
    return [peer for peer in available_peers() if peer.kind != "thread" and peer.name != "joblib"]


def _measure(section: str, options: argparse.Namespace) -> Runs:
    scale = _QUICK_SCALE if options.quick else 1.0

    def measure(name: str) -> tuple[Figures | None, str]:
        return end(begin("objects_sections", [section, name, options.workers, scale], function=""), _TIMEOUT_S)

    names = wanted((peer.name for peer in _peers()), options.peer)
    return gather(section, names, 1 if options.quick else options.repeats, measure)


def _write(key: str, value: float) -> str:
    return size_text(value) if key.endswith("_bytes") else duration(value / (1e6 if key.endswith("_us") else 1))


def _cell(key: str, value: float, reference: float | None) -> str:
    """Write a figure, and in brackets which part it is of the reference's, if there is one."""
    text = _write(key, value)
    return text if reference is None or not value else f"{text} (1/{reference / value:.3g})"


def _format(section: str, sums: Mapping[str, Figures]) -> str:
    """Return a table: for ours, each figure also as a part of that of the peer with the same kind of workers."""
    references = {peer.name: peer.reference for peer in _peers() if peer.is_ours}
    rows, keys = [], list(next(iter(sums.values()))) if sums else []
    for name, found in sums.items():
        reference = sums.get(references.get(name, ""), {})
        rows.append([name, *(_cell(key, found[key], reference.get(key)) for key in keys)])
    title = "functions and classes of a script" if section == _SCRIPT else f"one object for {N_TASKS} tasks: {section}"
    return f"{title}; lower is better.\n\n{table(['', *(_HEADINGS[key] for key in keys)], rows)}"


def main() -> int:
    """Measure as the command line says, and print a table for each section."""
    parser = make_parser(__doc__)
    add_workers(parser)
    add_only(parser, (*FORMS, _SCRIPT))
    add_peer(parser)
    add_repeats(parser, 3)
    options = parser.parse_args()
    record = Record(__doc__, options.workers, options)
    has_failed = False
    for section in options.only or (*FORMS, _SCRIPT):
        runs = _measure(section, options)
        sums = {name: medians(found) for name, found in runs.figures.items()}
        record.show(_format(section, sums), runs.failure_text())
        record.put_section(section, runs.as_json(sums))
        has_failed |= any(name.startswith("pool_party") for name in runs.failures)
    return int(has_failed)


if __name__ == "__main__":
    finish(main)
