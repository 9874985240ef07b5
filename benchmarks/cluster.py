"""What do tasks on a cluster cost: by pools of kind="dask" and "mpi", by Dask's client and executor, and by mpi4py?

    python benchmarks/cluster.py [--quick] [--only SECTION] [--peer TEXT] [--workers N] [--repeats N] [--json FILE]

tasks: no-ops, each a task of its own, per second. calls: the time of one call after the other. array: 64 MB to a worker
and back. nested: 24 tasks that compute eigenvalues with BLAS threads, with thread budgets and without. Each measurement
has a scheduler and Dask workers of its own, with one thread each, on the loopback interface, or as many ranks of MPI.
Dask sets BLAS libraries in its workers to one thread, and mpi4py does not. Our workers are processes of theirs.
"""

import argparse
from collections.abc import Mapping

from cluster_ways import EXECUTOR, MAP, OURS, RANKS, mpiexec
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

_TIMEOUT_S = 300.0
_QUICK_SCALE = 0.01
_OF_MPI = (f"{OURS}mpi, process", f"{OURS}mpi, thread", RANKS) if mpiexec() else ()
_WAYS = (f"{OURS}dask, process", f"{OURS}dask, thread", MAP, EXECUTOR, *_OF_MPI)
_SECTIONS = {
    "tasks": _WAYS,
    "calls": _WAYS,
    "array": _WAYS,
    "nested": (f"{OURS}dask, process", f"{OURS}dask, process, no budgets", MAP, EXECUTOR, *_OF_MPI),
}


def _measure(section: str, options: argparse.Namespace) -> Runs:
    scale = _QUICK_SCALE if options.quick else 1.0

    def measure(way: str) -> Result:
        return end(begin("cluster_ways", [section, way, options.workers, scale]), _TIMEOUT_S)

    return gather(section, wanted(_SECTIONS[section], options.peer), 1 if options.quick else options.repeats, measure)


def _cell(key: str, value: float, reference: float | None) -> str:
    """Write a figure, and in brackets how many times that of `Client.map` it is."""
    text = f"{value:,.0f}" if key == "tasks_per_s" else f"{value:.3g} {key.rpartition('_')[2]}"
    return text if reference is None else f"{text} ({value / reference:.3g} x)"


def _format(sums: Mapping[str, dict[str, float]]) -> str:
    reference = sums.get(MAP, {})
    rows = [[way, *(_cell(key, value, reference.get(key)) for key, value in sums[way].items())] for way in sums]
    return table(["", "median"], rows)


def main() -> int:
    """Measure as the command line says, and print a table for each section."""
    parser = make_parser(__doc__)
    add_workers(parser)
    add_only(parser, _SECTIONS)
    add_peer(parser)
    add_repeats(parser, 3)
    options = parser.parse_args()
    record = Record(__doc__, options.workers, options)
    has_failed = False
    for section in options.only or _SECTIONS:
        runs = _measure(section, options)
        sums = {way: medians(found) for way, found in runs.figures.items()}
        record.show(f"{section}:", _format(sums), runs.failure_text())
        record.put_section(section, runs.as_json(sums))
        has_failed |= any(way.startswith(OURS) for way in runs.failures)
    return int(has_failed)


if __name__ == "__main__":
    finish(main)
