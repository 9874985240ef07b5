"""Eigenvalue problems of several sizes, with NumPy, on the kinds of workers that can load it."""

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from threadpoolctl import threadpool_limits

from demo import eigen
from demo.plan import Plan
from demo.pools import ALONE, KindUnavailable, open_pool
from demo.progress import Progress
from pool_party._measuring.table import format_table

_WARM_UP_S = 10.0  # at most; guess: a worker loads NumPy in far less time

type _Rates = dict[int, float]  # order of the matrix -> problems solved per second
type _Solver = Callable[[list[tuple[int, int]]], Iterable[float]]


@dataclass(slots=True)
class SweepOutcome:
    """The rates of the kinds of workers that took part, and whether all results agreed."""

    rates: dict[str, _Rates] = field(default_factory=dict)
    is_same: bool = True


def _why_not(kind: str) -> str:
    """Try whether a kind of worker can load NumPy. Return why not, or "" if it can."""
    with suppress(ImportError):
        with open_pool(kind, 1) as pool:
            pool.apply(eigen.describe_numpy)
        return ""
    if kind == "interp":
        return "not on this Python: NumPy loads in interpreters on CPython 3.14 and later"
    return "not here: NumPy does not load in these workers"


def _warm_up(pool: Any, n_workers: int) -> None:
    """Wait until every worker has started and answered, so that this is not measured."""
    deadline_s = time.monotonic() + _WARM_UP_S
    seen: set[tuple[int, int]] = set()
    while len(seen) < n_workers and time.monotonic() < deadline_s:
        seen.update(pool.map(eigen.worker_identity, range(n_workers), chunksize=1))


def _solve_all(plan: Plan, solve: _Solver, progress: Progress) -> tuple[_Rates, list[float]]:
    """Solve all sets of problems. Return problems per second for each order, and the results."""
    rates: _Rates = {}
    values: list[float] = []
    for problems in plan.sweep:
        tasks = [(problems.order, seed) for seed in range(problems.count)]
        started_s = time.perf_counter()
        values += solve(tasks)
        rates[problems.order] = problems.count / (time.perf_counter() - started_s)
        progress.advance(problems.count)
    return rates, values


def _solve_with(plan: Plan, kind: str, progress: Progress) -> tuple[_Rates, list[float]]:
    """Solve all sets of problems with one kind of worker. Each worker uses its part of the CPUs for BLAS threads."""
    if kind == ALONE:
        with threadpool_limits(limits=1, user_api="blas"):
            return _solve_all(plan, lambda tasks: map(eigen.largest_eigenvalue, tasks), progress)
    with open_pool(kind, plan.n_workers, preload=["numpy"]) as pool:
        _warm_up(pool, plan.n_workers)

        def solve(tasks: list[tuple[int, int]]) -> Iterable[float]:
            return pool.map(eigen.largest_eigenvalue, tasks, chunksize=1)

        return _solve_all(plan, solve, progress)


def _is_close(values: list[float], others: list[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(values, others, strict=True))


def _take_part(plan: Plan, kind: str, progress: Progress) -> tuple[_Rates, list[float]] | None:
    """Let one kind of worker solve all problems, or print why it cannot."""
    progress.start(kind, sum(problems.count for problems in plan.sweep))
    started_s = time.perf_counter()
    try:
        reason = "" if kind == ALONE else _why_not(kind)
    except KindUnavailable as error:
        reason = f"not on this Python: {error}"
    if reason:
        progress.finish(reason)
        return None
    solved = _solve_with(plan, kind, progress)
    progress.finish(f"{time.perf_counter() - started_s:.2f} s")
    return solved


def _table(plan: Plan, rates: dict[str, _Rates]) -> str:
    """Return a table of the problems per second of each kind, with the speed-up over one worker."""
    orders = [problems.order for problems in plan.sweep]
    rows = [
        (kind, *(f"{own[n]:.0f}/s {own[n] / rates[ALONE][n]:5.2f} x" for n in orders)) for kind, own in rates.items()
    ]
    return format_table(("workers", *(f"{n} x {n}" for n in orders)), rows)


def _introduce() -> bool:
    """Print what follows, or one line that says why nothing does."""
    try:
        version, n_threads = eigen.describe_numpy()
    except ImportError as error:
        print(f"The second part needs NumPy, which is missing here ({error}): pip install numpy\n", flush=True)
        return False
    print(
        f"Eigenvalues of random matrices, with NumPy {version}, problems of three sizes. "
        f"By itself its\nBLAS uses {n_threads} threads in each process; pool_party gives each worker its part of the "
        "CPUs, and\nthe sequential run has one thread:",
        flush=True,
    )
    return True


def run_sweep(plan: Plan) -> SweepOutcome:
    """Solve the plan's eigenvalue problems with every kind of worker that can, and print a table."""
    outcome = SweepOutcome()
    if not plan.sweep or not _introduce():
        return outcome
    progress, expected = Progress(), None
    for kind in (ALONE, *plan.kinds):
        if (solved := _take_part(plan, kind, progress)) is None:
            continue
        outcome.rates[kind], values = solved
        expected = expected or values
        outcome.is_same &= _is_close(values, expected)
    print(f"\n{_table(plan, outcome.rates)}\n(starting the workers is not counted)\n", flush=True)
    return outcome
