"""What does `progress=` cost for each task?

    python benchmarks/progress.py [--tasks 50000] [--rounds 9] [--workers 1] [--json FILE]

Tasks that do nothing, one a chunk, with a callable and without, in turn. The time is the CPU time of this process: of a
whole `map`, and for iterators of taking results that have all arrived. It is the best of the rounds, in ns a task, as
other programs only lengthen it.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from time import process_time_ns, sleep
from typing import Any

from metadata import collect_metadata

from pool_party import ComposableExecutor, ComposablePool

type Call = Callable[[Any], int]  # given `progress`; returns ns


def show(done: int, total: int | None) -> None:
    """Do nothing, so that only our own part is measured."""


def time_map(pool: ComposablePool, n_tasks: int, progress: Any) -> int:
    began_ns = process_time_ns()
    pool.map(abs, range(n_tasks), 1, progress=progress)
    return process_time_ns() - began_ns


def time_taking(take: Callable[..., Iterator[Any]], n_pending: Callable[[], int], n_tasks: int, progress: Any) -> int:
    results = take(abs, range(n_tasks), progress=progress)
    while n_pending():
        sleep(0.005)
    began_ns = process_time_ns()
    for _ in results:
        pass
    return process_time_ns() - began_ns


def best_ns(call: Call, n_tasks: int, n_rounds: int) -> dict[str, float]:
    """Return the best times a task, without and with progress, and their difference."""
    rounds = [(call(None), call(show)) for _ in range(n_rounds)]
    without, shown = (min(times) / n_tasks for times in zip(*rounds, strict=True))
    return {"without": without, "with": shown, "difference": shown - without}


def measure(kind: str, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    n, rounds = args.tasks, args.rounds
    with ComposablePool(args.workers, kind=kind) as pool, ComposableExecutor(args.workers, kind=kind) as executor:

        def n_pending() -> int:
            return pool.statistics().n_pending + executor.statistics().n_pending

        return {
            "map": best_ns(lambda progress: time_map(pool, n, progress), n, rounds),
            "imap": best_ns(lambda progress: time_taking(pool.imap, n_pending, n, progress), n, rounds),
            "executor.map": best_ns(lambda progress: time_taking(executor.map, n_pending, n, progress), n, rounds),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", help="a file for the figures")
    args = parser.parse_args()
    figures = {}
    for kind in ("thread", "process", "interp"):
        figures[kind] = measure(kind, args)
        for name, values in figures[kind].items():
            print(f"{kind:8} {name:14}", *(f"{key} {value:6.0f} ns" for key, value in values.items()), sep="  ")
    print(f"load average: {os.getloadavg()[0]:.1f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"figures": figures, "metadata": collect_metadata(args.workers)}, file, indent=1)


if __name__ == "__main__":
    main()
