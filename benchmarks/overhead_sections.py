"""The measurements of overhead.py, each made in a separate process.

    python -c 'from overhead_sections import main; main()' SECTION SUBJECT N_WORKERS EFFORT

prints the figures as JSON. EFFORT scales how long it takes: 1 is normal, 0.1 is quick.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from threading import Thread
from typing import Any

from peers import Handle, PoolHandle, peer_named
from workloads.tasks import noop

_N_APPLIES = 20_000
_N_MAPS = 20
_N_MAPPED = 5_000
_N_ROUNDS = 20
_FLUSH_BYTES = 64 << 20  # more than the share of one core in the last cache of most machines

ORDERS = (250, 500, 1000, 2000, 4000)
GATED = ("exclusive", "counting")  # these policies are for processes
POLICIES = ("None", "static", *GATED, "dynamic")

type Figures = dict[str, Any]
type _Interval = tuple[int, int]
type _Round = Callable[[int], list[_Interval]]


def _open_pool(kind: str, n_workers: int, **options: Any) -> PoolHandle:
    from pool_party import ComposablePool

    return PoolHandle(ComposablePool(n_workers, kind=kind, **options))


# ---- the cost of a budget for a task that needs none ----


def _load_numpy(handle: PoolHandle, n_workers: int) -> bool:
    """Load NumPy, so that budgets have something to limit; return False if it failed, as in some interpreters."""
    try:
        from workloads.algebra import introduce

        handle.map(introduce, [0.02] * 4 * n_workers)
    except Exception:
        return False
    return True


def _median_apply_ns(handle: PoolHandle, n_calls: int) -> float:
    taken_ns = []
    for _ in range(n_calls):
        started_ns = time.perf_counter_ns()
        handle.call(noop, None)
        taken_ns.append(time.perf_counter_ns() - started_ns)
    return statistics.median(taken_ns)


def _median_map_ns(handle: PoolHandle, n_maps: int) -> float:
    values = range(_N_MAPPED)
    taken_ns = []
    for _ in range(n_maps):
        started_ns = time.perf_counter_ns()
        handle.map(noop, values)
        taken_ns.append((time.perf_counter_ns() - started_ns) / _N_MAPPED)
    return statistics.median(taken_ns)


def budget(subject: str, n_workers: int, effort: float) -> Figures:
    """Measure calls and maps of empty tasks; `subject` is "KIND POLICY"."""
    kind, policy = subject.split()
    handle = _open_pool(kind, n_workers, policy=None if policy == "None" else policy)
    has_numpy = _load_numpy(handle, n_workers)
    _median_apply_ns(handle, 200)
    _median_map_ns(handle, 2)
    figures = {
        "apply_ns": _median_apply_ns(handle, int(_N_APPLIES * effort)),
        "map_ns": _median_map_ns(handle, max(2, int(_N_MAPS * effort))),
        "has_numpy": has_numpy,
    }
    handle.close()
    return figures


# ---- the cost of splitting work ----


def _launch_and_join(n_workers: int, has_affinity: bool, is_master_last: bool) -> _Round:
    """Return a function that computes shares in new threads; a caller that is last to begin computes the first."""
    from workloads.shares import compute_share

    cpus = sorted(os.sched_getaffinity(0))
    n_own = int(is_master_last)

    def run(order: int) -> list[_Interval]:
        intervals: dict[int, _Interval] = {}

        def work(share: int) -> None:
            if has_affinity:
                os.sched_setaffinity(0, {cpus[share % len(cpus)]})
            intervals[share] = compute_share((order, n_workers, share, share))

        threads = [Thread(target=work, args=(share,)) for share in range(n_own, n_workers)]
        for thread in threads:
            thread.start()
        if is_master_last:
            work(0)
            os.sched_setaffinity(0, cpus)  # for the threads of the next round
        for thread in threads:
            thread.join()
        return [intervals[share] for share in range(n_workers)]

    return run


def _persistent(handle: Handle, n_workers: int, has_slots: bool) -> _Round:
    """Return a function that computes shares in a pool."""
    from workloads.shares import compute_share

    def run(order: int) -> list[_Interval]:
        tasks = [(order, n_workers, share, share if has_slots else 0) for share in range(n_workers)]
        return handle.map(compute_share, tasks)

    return run


def _ours(kind: str, n_workers: int, affinity: bool) -> _Round:
    handle = _open_pool(kind, n_workers, policy="static", affinity=affinity)
    return _persistent(handle, n_workers, kind == "thread")


def _stdlib(name: str, n_workers: int) -> _Round:
    return _persistent(peer_named(name).open(n_workers), n_workers, name == "ThreadPool")


def _ours_master_last(kind: str, n_workers: int) -> _Round:
    """Return a function that computes shares in a pool on all CPUs but one, where the caller computes the first."""
    from workloads.shares import compute_share

    from pool_party import ComposablePool

    first, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, others)
    pool = ComposablePool(n_workers - 1, kind=kind, policy="static")
    pool.map(noop, range(100 * n_workers), chunksize=1)
    os.sched_setaffinity(0, {first})

    def run(order: int) -> list[_Interval]:
        tasks = [(order, n_workers, share, share if kind == "thread" else 0) for share in range(n_workers)]
        result = pool.map_async(compute_share, tasks[1:], chunksize=1)
        return [compute_share(tasks[0]), *result.get()]

    return run


METHODS: dict[str, Callable[[int], _Round]] = {
    "launch and join": lambda n: _launch_and_join(n, False, False),
    "launch and join, affinity": lambda n: _launch_and_join(n, True, False),
    "launch and join, affinity, master last": lambda n: _launch_and_join(n, True, True),
    "ThreadPool": lambda n: _stdlib("ThreadPool", n),
    "pool_party thread": lambda n: _ours("thread", n, False),
    "pool_party thread, affinity": lambda n: _ours("thread", n, True),
    "pool_party thread, affinity, master last": lambda n: _ours_master_last("thread", n),
    "Pool": lambda n: _stdlib("Pool", n),
    "pool_party process": lambda n: _ours("process", n, False),
    "pool_party process, affinity": lambda n: _ours("process", n, True),
    "pool_party process, affinity, master last": lambda n: _ours_master_last("process", n),
    "pool_party interp": lambda n: _ours("interp", n, False),
    "pool_party interp, affinity": lambda n: _ours("interp", n, True),
    "pool_party interp, affinity, master last": lambda n: _ours_master_last("interp", n),
}


def _flusher() -> Callable[[], object]:
    """Return a function that flushes the caches that the caller's CPU uses."""
    import numpy as np

    ballast = np.zeros(_FLUSH_BYTES // 8)
    return lambda: np.add(ballast, 1.0, out=ballast)


def _serial_ns(order: int, n_workers: int, n_rounds: int, flush: Callable[[], object]) -> float:
    """Return how long one share takes alone."""
    from workloads.shares import compute_share

    taken_ns = []
    for _ in range(n_rounds):
        flush()
        begun_ns, ended_ns = compute_share((order, n_workers, 0, 0))
        taken_ns.append(ended_ns - begun_ns)
    return statistics.median(taken_ns[1:])


def _split_ns(run: _Round, order: int, n_rounds: int, flush: Callable[[], object]) -> list[tuple[int, list[int]]]:
    """Return, for each round, how long the whole took, and how long each share took."""
    rounds = []
    for _ in range(n_rounds):
        flush()
        started_ns = time.perf_counter_ns()
        intervals = run(order)
        full_ns = time.perf_counter_ns() - started_ns
        rounds.append((full_ns, [ended_ns - begun_ns for begun_ns, ended_ns in intervals]))
    return rounds


def management(subject: str, n_workers: int, effort: float) -> Figures:
    """Measure products of growing order, split over the workers by the method `subject`.

    PMO is the time of the whole minus that of its longest share. PCE is the average time of a share divided by that of
    a share that runs alone (ATLAS: Castaldo and Whaley). The environment limits BLAS itself to one thread.
    """
    flush = _flusher()
    n_rounds = max(5, int(_N_ROUNDS * effort))
    serial_ns = {order: _serial_ns(order, n_workers, n_rounds, flush) for order in ORDERS}
    run = METHODS[subject](n_workers)
    figures: Figures = {}
    for order in ORDERS:
        _split_ns(run, order, 5, flush)
        rounds = _split_ns(run, order, n_rounds, flush)
        overheads_ns = [full_ns - max(shares_ns) for full_ns, shares_ns in rounds]
        expansions = [statistics.mean(shares_ns) / serial_ns[order] for _, shares_ns in rounds]
        figures[str(order)] = {
            "pmo_us": statistics.median(overheads_ns) / 1e3,
            "mean_pmo_us": statistics.mean(overheads_ns) / 1e3,
            "pce": statistics.median(expansions),
            "full_us": statistics.median(full_ns for full_ns, _ in rounds) / 1e3,
            "serial_share_us": serial_ns[order] / 1e3,
        }
    return figures


_SECTIONS = {"budget": budget, "management": management}


def main() -> None:
    """Measure as the command line says, and print the figures."""
    section, subject, n_workers, effort = sys.argv[1:]
    print(json.dumps(_SECTIONS[section](subject, int(n_workers), float(effort))), flush=True)
