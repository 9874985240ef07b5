"""How much memory does an idle worker take?

    python benchmarks/memory.py [--quick] [--kinds KIND...] [--workers N...] [--repeats N] [--json FILE]

Measures PSS of the whole process tree, after every worker has run an empty task, and again after it has loaded NumPy. A
further worker costs the difference between a larger and a smaller pool, divided by the number of additional workers.
This excludes what a pool needs only once, such as a fork server and the parent's modules. The bounds are a bare CPython
interpreter, and a bare process forked from a parent that has nothing else loaded.
"""

import argparse
import gc
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from fresh import begin, end
from peers import Handle, available_peers, peer_named
from program import Record, Runs, add_kinds, add_peer, add_repeats, add_workers, finish, gather, make_parser, wanted
from tables import cell, megabytes, table

from pool_party._measuring.meter import memory_bytes, memory_measure, process_tree

_TIMEOUT_S = 180.0
_SETTLE_S = 0.3
_HOLD_S = 0.05  # a worker busy with one task leaves the others to other workers
_MEETING_S = 30.0
_BARE_INTERPRETER, _BARE_PROCESS = "no pool: bare interpreters", "no pool: forked processes"

type _Figures = dict[str, Any]


def _memory_bytes() -> int:
    gc.collect()
    time.sleep(_SETTLE_S)
    return memory_bytes(process_tree(os.getpid()), memory_measure())


def _meet(handle: Handle, task: Callable[[float], object], n_workers: int) -> None:
    """Return once every worker has run the task, which returns the worker's identity."""
    met: set[object] = set()
    deadline_s = time.perf_counter() + _MEETING_S
    while len(met) < n_workers:
        if time.perf_counter() > deadline_s:
            raise TimeoutError(f"only {len(met)} of {n_workers} workers came to work")
        met.update(handle.map(task, [_HOLD_S] * n_workers))


def _pool_figures(name: str, n_workers: int, with_numpy: bool) -> _Figures:
    from workloads.presence import present

    peer = peer_named(name)
    peer.load()
    figures: _Figures = {"before_bytes": _memory_bytes()}
    handle = peer.open(n_workers)
    _meet(handle, present, n_workers)
    figures["idle_bytes"] = _memory_bytes()
    if with_numpy:
        figures |= _numpy_figures(handle, n_workers)
    handle.close()
    return figures


def _numpy_figures(handle: Handle, n_workers: int) -> _Figures:
    from workloads.presence import load_numpy

    try:
        _meet(handle, load_numpy, n_workers)
    except Exception as error:
        return {"numpy_failure": str(error).splitlines()[0] if str(error) else type(error).__name__}
    return {"numpy_bytes": _memory_bytes()}


def _interpreter_figures(n_workers: int) -> _Figures:
    try:
        import _interpreters as interpreters
    except ImportError:  # 3.12
        import _xxsubinterpreters as interpreters
    made = [interpreters.create() for _ in range(n_workers)]
    figures = {"idle_bytes": _memory_bytes()}
    for interpreter in made:
        interpreters.destroy(interpreter)
    return figures


def _process_figures(n_workers: int) -> _Figures:
    children = []
    for _ in range(n_workers):
        if not (child := os.fork()):
            signal.pause()
        children.append(child)
    figures = {"idle_bytes": _memory_bytes()}
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return figures


def measure() -> None:
    """Measure as the command line says, in this process, and print the figures as JSON."""
    name, n_workers, with_numpy = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "numpy"
    bare = {_BARE_INTERPRETER: _interpreter_figures, _BARE_PROCESS: _process_figures}
    figures = bare[name](n_workers) if name in bare else _pool_figures(name, n_workers, with_numpy)
    print(json.dumps(figures), flush=True)


def _per_worker(runs: Runs, name: str, workers: Sequence[int], key: str) -> float | None:
    """Return the memory of a further worker in bytes, None if it is not known."""
    medians = []
    for n_workers in workers:
        found = [figures[key] for figures in runs.figures.get(f"{name} x {n_workers}", []) if key in figures]
        if not found:
            return None
        medians.append(statistics.median(found))
    return (medians[-1] - medians[0]) / (workers[-1] - workers[0])


def _pool_bytes(runs: Sequence[_Figures]) -> float | None:
    """Return the memory of the whole smaller pool, including what it needs only once."""
    taken = [figures["idle_bytes"] - figures["before_bytes"] for figures in runs if "before_bytes" in figures]
    return statistics.median(taken) if taken else None


def _sum_up(runs: Runs, name: str, workers: Sequence[int]) -> _Figures:
    for number in workers:
        if failure := runs.failures.get(f"{name} x {number}"):
            return {"failure": failure}
    summary = {f"{key}_bytes_per_worker": _per_worker(runs, name, workers, f"{key}_bytes") for key in ("idle", "numpy")}
    summary["pool_bytes"] = _pool_bytes(runs.figures[f"{name} x {workers[0]}"])
    single = {str(number): runs.figures[f"{name} x {number}"] for number in workers}
    return {"summary": summary, "runs": single}


def _format(sums: dict[str, _Figures], n_workers: int) -> str:
    rows = []
    for name, figures in sums.items():
        if "failure" in figures:
            continue
        keys = ("idle_bytes_per_worker", "numpy_bytes_per_worker", "pool_bytes")
        rows.append([name, *(cell(figures["summary"][key], megabytes) for key in keys)])
    headings = ["", "a further worker", "with NumPy", f"an idle pool of {n_workers}"]
    return table(headings, rows)


def _measure_all(names: Sequence[str], options: argparse.Namespace) -> Runs:
    subjects = [f"{name} x {n_workers}" for name in names for n_workers in options.workers]
    numpy = "" if options.quick else "numpy"

    def measure_one(subject: str) -> tuple[_Figures | None, str]:
        name, _, n_workers = subject.rpartition(" x ")
        return end(begin("memory", [name, n_workers, numpy], function="measure"), _TIMEOUT_S)

    return gather("memory", subjects, 1 if options.quick else options.repeats, measure_one)


def main() -> int:
    """Measure as the command line says, and print a table."""
    parser = make_parser(__doc__)
    add_kinds(parser)
    add_peer(parser)
    add_workers(parser, several=True, default="2 and 6")
    add_repeats(parser, 3)
    options = parser.parse_args()
    options.workers = sorted(set(options.workers or (2, 6)))
    if len(options.workers) < 2:
        parser.error("--workers: two different numbers, since a further worker is the difference")
    names = [peer.name for peer in available_peers() if peer.kind in options.kinds]
    names = wanted([*names, _BARE_INTERPRETER, _BARE_PROCESS], options.peer)
    record = Record(__doc__, max(options.workers), options)
    runs = _measure_all(names, options)
    sums = {name: _sum_up(runs, name, options.workers) for name in names}
    record.show(f"{memory_measure()}; lower is better.", _format(sums, options.workers[0]), runs.failure_text())
    record.put_section("memory", sums)
    return int(bool(runs.failures))


if __name__ == "__main__":
    finish(main)
