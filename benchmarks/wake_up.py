"""How soon do sleeping workers begin, with and without affinity?

    python benchmarks/wake_up.py [--quick] [--kinds KIND...] [--workers N] [--repeats N] [--json FILE]

Sends as many tasks as there are workers to a pool that slept for 5 ms. Each task returns when it began and keeps its
worker busy for 3 ms, so that no worker takes two. The latency of a worker runs from the call to the first line of its
task. The bound is the kernel's own latency, measured with as many forked processes that sleep reading a pipe.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from fresh import begin, end
from peers import Handle, PoolHandle, available_peers, peer_named, pool_accepts
from program import (
    Record,
    Runs,
    add_kinds,
    add_peer,
    add_repeats,
    add_workers,
    finish,
    gather,
    make_parser,
    percentile,
    wanted,
)
from tables import table, us
from workloads.stamps import stamp

_TIMEOUT_S = 120.0
_QUICK_EFFORT = 0.1
_N_WAKE_UPS = 300
_N_UNCOUNTED = 20  # the first ones, while a pool is still starting
_IDLE_S = 0.005  # long enough for every worker to be asleep
_HOLD_S = 0.003  # a worker that has one of the tasks takes no other meanwhile

BOUND = "no pool: processes that read pipes"

type _Stamp = tuple[int, Any]  # when a task began, and in which worker
type _Send = Callable[[int], list[_Stamp]]


def _open(subject: str, n_workers: int) -> Handle:
    """Open the pool that a subject names; ", affinity" is not part of a peer's name."""
    name, comma, _ = subject.partition(", affinity")
    peer = peer_named(name)
    if not comma:
        return peer.open(n_workers)
    from pool_party import ComposablePool

    return PoolHandle(ComposablePool(n_workers, kind=peer.kind, affinity=True))


def _serve(source: int, sink: int) -> None:
    while os.read(source, 1):
        begun_ns = time.perf_counter_ns()
        os.write(sink, begun_ns.to_bytes(8))
        time.sleep(_HOLD_S)
    os._exit(0)


def _fork_readers(n_workers: int) -> _Send:
    """Fork processes that sleep in a read, and return a function that wakes them all."""
    pipes = [(os.pipe(), os.pipe()) for _ in range(n_workers)]
    for (source, _), (_, sink) in pipes:
        if not os.fork():
            for (_, to_child), _ in pipes:
                os.close(to_child)  # otherwise no child would ever reach the end of its input
            _serve(source, sink)

    def send(n_tasks: int) -> list[_Stamp]:
        for (_, to_child), _ in pipes[:n_tasks]:
            os.write(to_child, b"x")
        stamps = [(int.from_bytes(os.read(answer, 8)), number) for number, (_, (answer, _)) in enumerate(pipes)]
        time.sleep(_HOLD_S)
        return stamps

    return send


def _wait_times_us(send: _Send, n_workers: int, n_rounds: int) -> tuple[dict[Any, list[float]], int]:
    """Return the latencies of each worker, and the number of rounds in which a worker took two tasks."""
    waits_us: dict[Any, list[float]] = {}
    n_shared = 0
    for number in range(_N_UNCOUNTED + n_rounds):
        time.sleep(_IDLE_S)
        started_ns = time.perf_counter_ns()
        stamps = send(n_workers)
        if number < _N_UNCOUNTED:
            continue
        n_shared += len({worker for _, worker in stamps}) < n_workers
        for begun_ns, worker in stamps:
            waits_us.setdefault(worker, []).append((begun_ns - started_ns) / 1e3)
    return waits_us, n_shared


def measure() -> None:
    """Measure as the command line says, in this process, and print the figures as JSON."""
    subject, n_workers, effort = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    handle = None if subject == BOUND else _open(subject, n_workers)
    send = (lambda n: handle.map(stamp, [_HOLD_S] * n)) if handle else _fork_readers(n_workers)
    waits_us, n_shared = _wait_times_us(send, n_workers, int(_N_WAKE_UPS * effort))
    print(json.dumps({"waits_us": [waits_us[worker] for worker in sorted(waits_us)], "n_shared": n_shared}), flush=True)
    if handle:
        handle.close()


def _subjects(kinds: Sequence[str]) -> list[str]:
    names = []
    for peer in available_peers():
        if peer.kind not in kinds:
            continue
        names.append(peer.name)
        if peer.is_ours and "," not in peer.name:
            names.append(f"{peer.name}, affinity")
    return [*names, BOUND]


def _sum_up(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all runs of a subject together. Worker k is the k-th by its ids in every run."""
    workers: list[list[float]] = []
    for run in runs:
        for number, waits_us in enumerate(run["waits_us"]):
            if number == len(workers):
                workers.append([])
            workers[number] += waits_us
    pooled = [value for waits_us in workers for value in waits_us]
    return {
        "summary": {
            "median_us": statistics.median(pooled),
            "p90_us": percentile(pooled, 90),
            "p99_us": percentile(pooled, 99),
            "n_wake_ups": len(pooled),
            "n_shared": sum(run["n_shared"] for run in runs),
        },
        "workers": [
            {"median_us": statistics.median(waits_us), "p99_us": percentile(waits_us, 99), "n_wake_ups": len(waits_us)}
            for waits_us in workers
        ],
    }


def _format(sums: dict[str, dict[str, Any]]) -> str:
    rows = []
    for subject, sums_of_one in sums.items():
        summary = sums_of_one["summary"]
        times = [us(summary[key]) for key in ("median_us", "p90_us", "p99_us")]
        medians = " ".join(f"{worker['median_us']:.0f}" for worker in sums_of_one["workers"])
        rows.append([subject, *times, medians, str(summary["n_shared"])])
    headings = ["", "median", "p90", "p99", "median of each worker, us", "shared a worker"]
    return table(headings, rows)


def _measure_all(options: argparse.Namespace) -> Runs:
    effort = _QUICK_EFFORT if options.quick else 1.0

    def measure_one(subject: str) -> tuple[dict[str, Any] | None, str]:
        if "affinity" in subject and not pool_accepts("affinity"):
            return None, "needs ComposablePool(affinity=)"
        return end(begin("wake_up", [subject, options.workers, effort], function="measure"), _TIMEOUT_S)

    return gather(
        "wake-up", wanted(_subjects(options.kinds), options.peer), 1 if options.quick else options.repeats, measure_one
    )


def main() -> int:
    """Measure as the command line says, and print a table."""
    parser = make_parser(__doc__)
    add_kinds(parser)
    add_peer(parser)
    add_workers(parser)
    add_repeats(parser, 3)
    options = parser.parse_args()
    record = Record(__doc__, options.workers, options)
    runs = _measure_all(options)
    sums = {subject: _sum_up(figures) for subject, figures in runs.figures.items()}
    title = "From the call to the first line of the task, per worker; lower is better."
    record.show(title, _format(sums), runs.failure_text())
    record.put_section("wake-up", sums | {name: {"failure": failure} for name, failure in runs.failures.items()})
    return int(bool(runs.failures))


if __name__ == "__main__":
    finish(main)
