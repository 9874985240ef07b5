"""What does `progress=` cost for each task?

    python benchmarks/progress.py -o without.json
    python benchmarks/progress.py --progress -o with.json
    python -m pyperf compare_to --table without.json with.json

Tasks that do nothing, one a chunk, with a callable and without, timed by pyperf, whose options --help has. A value is
the CPU time of this process for a task: of a whole `map`, and for iterators of taking results that have all arrived.
"""

import argparse
from time import process_time, sleep
from typing import Any

import pyperf
from program import KINDS

from pool_party import ComposableExecutor, ComposablePool

_N_WORKERS = 1
_N_WARM_UP = 1000


def show(done: int, total: int | None) -> None:
    """Do nothing, so that only our own part is measured."""


def time_map(n_tasks: int, kind: str, progress: Any) -> float:
    """Return the CPU time of a map in seconds."""
    with ComposablePool(_N_WORKERS, kind=kind) as pool:
        pool.map(abs, range(_N_WARM_UP), 1, progress=progress)
        began_s = process_time()
        pool.map(abs, range(n_tasks), 1, progress=progress)
        return process_time() - began_s


def time_taking(n_tasks: int, pools: type[Any], method: str, kind: str, progress: Any) -> float:
    """Return the CPU time of taking results in seconds."""
    with pools(_N_WORKERS, kind=kind) as pool:
        results = getattr(pool, method)(abs, range(n_tasks), progress=progress)
        while pool.statistics().n_pending:
            sleep(0.005)
        began_s = process_time()
        for _ in results:
            pass
        return process_time() - began_s


def _pass_on(command: list[str], options: argparse.Namespace) -> None:
    """Tell pyperf's worker processes what was chosen here."""
    command += ["--progress"] * options.progress


def main() -> None:
    """Measure as the command line says."""
    runner = pyperf.Runner(processes=3, add_cmdline_args=_pass_on)
    runner.argparser.add_argument("--progress", action="store_true", help="with a callable; default: without")
    progress = show if runner.parse_args().progress else None
    for kind in KINDS:
        runner.bench_time_func(f"map, {kind}", time_map, kind, progress)
        runner.bench_time_func(f"imap, {kind}", time_taking, ComposablePool, "imap", kind, progress)
        runner.bench_time_func(f"executor.map, {kind}", time_taking, ComposableExecutor, "map", kind, progress)


if __name__ == "__main__":
    main()
