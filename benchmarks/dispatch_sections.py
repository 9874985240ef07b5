"""The measurements of dispatch.py, each made in a separate process.

    python -c 'from dispatch_sections import main; main()' SECTION PEER N_WORKERS EFFORT

prints the figures as JSON. EFFORT scales how long it takes: 1 is normal, 0.2 is quick.
"""

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bounds import BOUND, peer_or_bound
from peers import Handle, Peer
from workloads.tasks import nap, noop

_THROUGHPUT_S = 0.6  # for the timed map of a section of normal effort
_N_ROUND_TRIPS = 3000
_ROUND_TRIPS_S = 0.6  # no longer, even if that allows few round trips
_PAUSE_S = 0.002  # how long the pool stands idle before a round trip "after idle"
_IDLE_S = 5.0
_SETTLE_S = 1.0  # for the work of a pool after its last task, before it counts as idle
_HOSTAGE_S = 1.0
_N_HOSTAGE_TASKS = 1000
_HOSTAGE_POSITION = 100  # well after the start, with many tasks still behind it
CROWDS = (2, 16, 64, 256, 1000)  # workers of a pool that has one task at a time
_CROWD_MOST = {"thread": 1000, "process": 256, "interp": 64}  # for the memory that they take
_N_CROWD_TASKS = 500  # of a map whose results are waited for, fewer than any pool holds at once

type Figures = dict[str, Any]


@contextmanager
def _warm(peer: Peer, n_workers: int) -> Iterator[Handle]:
    """Open a pool whose workers have all had time to start, and close it at the end."""
    handle = peer.open(n_workers)
    handle.map(nap, [(number, 0.02) for number in range(4 * n_workers)])
    handle.map(noop, range(100))
    gc.collect()
    yield handle
    handle.close()


def _time_map(handle: Handle, n_tasks: int) -> float:
    started_s = time.perf_counter()
    handle.map(noop, range(n_tasks))
    return time.perf_counter() - started_s


def _calibrate(handle: Handle, goal_s: float) -> int:
    """Return how many tasks take about `goal_s`: a round number, found by growing trials."""
    n_tasks = 500
    while (taken_s := _time_map(handle, n_tasks)) < goal_s / 10:
        n_tasks *= 4
    wanted = n_tasks * goal_s / taken_s
    digits = int(10 ** (len(str(int(wanted))) - 1))
    return max(1, int(wanted / digits)) * digits


def throughput(peer: Peer, n_workers: int, effort: float) -> Figures:
    """Measure tasks per second through one map of tasks that do nothing, one task a chunk."""
    with _warm(peer, n_workers) as handle:
        n_tasks = _calibrate(handle, _THROUGHPUT_S * effort)
        gc.collect()
        return {"n_tasks": n_tasks, "per_s": n_tasks / _time_map(handle, n_tasks)}


def _round_trips_us(handle: Handle, n_calls: int, pause_s: float, limit_s: float) -> list[float]:
    """Return how long each of up to `n_calls` calls took, each after a pause, in microseconds."""
    deadline_s = time.perf_counter() + limit_s
    taken_us: list[float] = []
    while len(taken_us) < n_calls and time.perf_counter() < deadline_s:
        if pause_s:
            time.sleep(pause_s)
        started_s = time.perf_counter()
        handle.call(noop, None)
        taken_us.append(round((time.perf_counter() - started_s) * 1e6, 2))
    return taken_us


def round_trip(peer: Peer, n_workers: int, effort: float) -> Figures:
    """Measure single calls: back to back, and after the pool stood idle for 2 ms."""
    with _warm(peer, n_workers) as handle:
        limit_s = _ROUND_TRIPS_S * effort
        _round_trips_us(handle, 200, 0.0, limit_s / 4)
        return {
            "busy_us": _round_trips_us(handle, _N_ROUND_TRIPS, 0.0, limit_s),
            "idle_us": _round_trips_us(handle, _N_ROUND_TRIPS, _PAUSE_S, limit_s),
        }


def _time_pool(peer: Peer, n_workers: int) -> tuple[float, float]:
    """Return the seconds from opening a pool to its first result, and those of its end, with all workers started."""
    started_s = time.perf_counter()
    handle = peer.open(n_workers)
    handle.call(noop, None)
    first_s = time.perf_counter() - started_s
    if peer.kind != BOUND:  # longer than their starts, one after the other
        handle.map(nap, [(number, 0.02 * n_workers) for number in range(n_workers)])
    started_s = time.perf_counter()
    handle.close()
    return first_s, time.perf_counter() - started_s


def start(peer: Peer, n_workers: int, effort: float) -> Figures:
    """Measure the import, the time from opening to the first result, the end, and the latter two once more."""
    started_s = time.perf_counter()
    peer.load()
    import_s = time.perf_counter() - started_s
    first_s, end_s = _time_pool(peer, n_workers)
    again_s, _ = _time_pool(peer, n_workers)
    return {"import_s": import_s, "first_s": first_s, "again_s": again_s, "end_s": end_s}


def _n_wake_ups(pid: int) -> int:
    """Return how often the threads of a process have gone to sleep so far."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                count += int(line.split()[1])
    return count


def idle(peer: Peer, n_workers: int, effort: float) -> Figures:
    """Measure the cost of a pool without tasks over 5 s: CPU time and wake-ups of all processes.

    The figures include one wake-up and the CPU time of the measurement itself.
    """
    from pool_party._measuring.meter import cpu_of_tree_s, process_tree

    with _warm(peer, n_workers) as handle:
        handle.call(noop, None)
        time.sleep(_SETTLE_S)
        tree = process_tree(os.getpid())
        wake_ups, cpu_s = sum(map(_n_wake_ups, tree)), cpu_of_tree_s(os.getpid())
        time.sleep(_IDLE_S)
        cpu_s = cpu_of_tree_s(os.getpid()) - cpu_s
        wake_ups = sum(map(_n_wake_ups, tree)) - wake_ups
        return {
            "cpu_percent": 100 * cpu_s / _IDLE_S,
            "wake_ups_per_s": wake_ups / _IDLE_S,
            "n_processes": len(tree),
        }


def hostage(peer: Peer, n_workers: int, effort: float) -> Figures:
    """Measure how long 999 tasks that do nothing wait for one that takes 1 s."""
    naps_s = [0.0] * _N_HOSTAGE_TASKS
    naps_s[_HOSTAGE_POSITION] = _HOSTAGE_S
    with _warm(peer, n_workers) as handle:
        done_s: list[float] = []
        started_s = time.perf_counter()
        for number in handle.as_done(nap, list(enumerate(naps_s))):
            if number != _HOSTAGE_POSITION:
                done_s.append(time.perf_counter() - started_s)
    return {
        "last_other_s": max(done_s),
        "n_hostages": sum(waited_s > _HOSTAGE_S / 2 for waited_s in done_s),
    }


def crowd(peer: Peer, n_workers: int, effort: float) -> Figures:
    """Measure single calls, and maps of tasks that do nothing, by the number of workers, nearly all of which sleep.

    Besides the median time of a call it returns the least CPU time of a call and of a task of a map in this process,
    with its worker threads: that depends less on what else the machine does.
    """
    figures: Figures = {}
    sizes = [size for size in CROWDS if size <= _CROWD_MOST[peer.kind]]
    for size in sizes if effort == 1 else sizes[:2]:
        with _warm(peer, size) as handle:
            time.sleep(_SETTLE_S)
            calls_us, call_cpu_us, task_cpu_us = [], [], []
            for _ in range(30):
                started_s = time.process_time()
                calls_us += (found := _round_trips_us(handle, 100, 0.0, _ROUND_TRIPS_S))
                call_cpu_us.append((time.process_time() - started_s) * 1e6 / len(found))
                started_s = time.process_time()
                handle.map(noop, range(_N_CROWD_TASKS))
                task_cpu_us.append((time.process_time() - started_s) * 1e6 / _N_CROWD_TASKS)
            figures[f"call_us_{size}"] = statistics.median(calls_us)
            figures[f"call_cpu_us_{size}"] = min(call_cpu_us)
            figures[f"task_cpu_us_{size}"] = min(task_cpu_us)
    return figures


MEASUREMENTS: dict[str, Callable[[Peer, int, float], Figures]] = {
    "throughput": throughput,
    "round-trip": round_trip,
    "start": start,
    "idle": idle,
    "hostage": hostage,
    "crowd": crowd,
}


def main() -> None:
    """Make the measurement that the command line names, and print its figures."""
    section, peer, n_workers, effort = sys.argv[1:]
    figures = MEASUREMENTS[section](peer_or_bound(peer), int(n_workers), float(effort))
    print(json.dumps(figures), flush=True)
