"""The measurements of cells.py, each made in a separate process.

    python -c 'from cells_ways import main; main()' KIND WAY N_WORKERS SIZE LIMIT_S [CELL...]

prints the time of each stage of each cell as JSON. A process that works for more than LIMIT_S ends through its own
alarm.
"""

import json
import multiprocessing
import multiprocessing.pool
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from peers import Handle, JoblibHandle, PoolHandle, pool_accepts
from program import n_usable_cpus
from workloads.algebra import eigenvalues, introduce, products, tall_qr

_LARGE_FROM_CPUS = 16
_WARM_UP_S = 30.0
_SETTLE_S = 0.15  # OpenBLAS's threads spin for some 50 ms after a call

GATED = ("exclusive", "counting")  # these policies are for processes
POLICIES = ("static", *GATED, "dynamic")
SIZES = ("quick", "brief", "small", "large")


def default_size() -> str:
    """Return the problem size that suits this machine."""
    return "large" if n_usable_cpus() >= _LARGE_FROM_CPUS else "small"


@dataclass(frozen=True, slots=True)
class Stage:
    """Tasks that are handed out together, before the next stage begins."""

    name: str
    task: Callable[[Any], bool]
    values: list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of work in the cells, on a machine with `n_cpus`.

    `eig_order`: order of the matrices of eigenvalue problems; `n_eigs`: their number in the balanced cell.
    `qr_rows`, `qr_columns`, `n_qrs`: for the tasks of the balanced cell.
    `matmul_order`, `n_matmuls`: for the only task of the first stage.
    `n_few`, `n_many`: tasks of the second and third stage. `few_eigs`, `many_eigs`: problems per task there.
    `split_rows`, `split_columns`: the matrix whose QR the three stages compute: whole, in a few pieces, in many.
    """

    eig_order: int
    n_eigs: int
    qr_rows: int
    qr_columns: int
    n_qrs: int
    matmul_order: int
    n_matmuls: int
    n_few: int
    n_many: int
    few_eigs: int
    many_eigs: int
    split_rows: int
    split_columns: int


def _size(name: str, n_cpus: int) -> Size:
    """Return a size by its name.

    "large" has the shapes of the paper (Malakhov et al., SciPy 2018: `numpy_sl`, `dask_sh`, `numpy_dl`, `dask_dh`),
    scaled from its 44 cores to n_cpus. There are two differences. It computes one product of order 8192 instead of six,
    which take minutes in one thread. `dask_dh` has 80,000 rows, as in later versions of those programs.
    """
    few = max(3, n_cpus // 2)
    if name == "quick":
        return Size(64, 8 * n_cpus, 400, 100, 4 * n_cpus, 300, n_cpus, few, 4 * n_cpus, 2, 2, 1200, 100)
    if name == "brief":
        return Size(256, 12 * n_cpus, 1500, 800, 3 * n_cpus, 1500, n_cpus, few, 4 * n_cpus, 2, 1, 2000 * n_cpus, 600)
    if name == "small":
        return Size(
            256, 32 * n_cpus, 2500, 1000, 4 * n_cpus, 2000, 2 * n_cpus, few, 4 * n_cpus, 4, 4, 4000 * n_cpus, 800
        )
    return Size(256, 1024, 10_000, 1000, n_cpus, 8192, 1, few, n_cpus, 64, 32, 80_000, 1000)


def _eigs(name: str, size: Size, n_tasks: int, n_matrices: int) -> Stage:
    return Stage(name, eigenvalues, [(seed, size.eig_order, n_matrices) for seed in range(n_tasks)])


def _qrs(name: str, n_tasks: int, n_rows: int, n_columns: int) -> Stage:
    return Stage(name, tall_qr, [(seed, n_rows, n_columns) for seed in range(n_tasks)])


def _balanced_little(size: Size) -> list[Stage]:
    return [_eigs("all", size, size.n_eigs, 1)]


def _balanced_much(size: Size) -> list[Stage]:
    return [_qrs("all", size.n_qrs, size.qr_rows, size.qr_columns)]


def _unbalanced_little(size: Size) -> list[Stage]:
    return [
        Stage("one", products, [(0, size.matmul_order, size.n_matmuls)]),
        _eigs("few", size, size.n_few, size.few_eigs),
        _eigs("many", size, size.n_many, size.many_eigs),
    ]


def _unbalanced_much(size: Size) -> list[Stage]:
    counts = {"one": 1, "few": size.n_few, "many": size.n_many}
    return [_qrs(name, n, size.split_rows // n, size.split_columns) for name, n in counts.items()]


CELLS = {
    "balanced-little": _balanced_little,
    "balanced-much": _balanced_much,
    "unbalanced-little": _unbalanced_little,
    "unbalanced-much": _unbalanced_much,
}


def stages_of(cell: str, size: str) -> list[Stage]:
    """Return the stages of a cell."""
    return CELLS[cell](_size(size, n_usable_cpus()))


def _ours(kind: str, n_workers: int, policy: str | None = None) -> Handle:
    from pool_party import ComposablePool

    options: dict[str, Any] = {"policy": policy} if pool_accepts("policy") else {}
    return PoolHandle(ComposablePool(n_workers, kind=kind, **options))


def _stdlib(kind: str, n_workers: int) -> Handle:
    """Open the pool of the standard library; for interpreters ours without a policy, as no other loads NumPy there."""
    if kind == "thread":
        return PoolHandle(multiprocessing.pool.ThreadPool(n_workers))
    return PoolHandle(multiprocessing.Pool(n_workers)) if kind == "process" else _ours(kind, n_workers)


def _joblib(kind: str, n_workers: int) -> Handle:
    import joblib

    return JoblibHandle(joblib, n_workers, {"thread": "threading", "process": "loky"}[kind])


def _one_thread(kind: str, n_workers: int) -> Handle:
    """Open the pool of the standard library with one BLAS thread per call; processes get that from the environment."""
    if kind == "thread":
        import threadpoolctl

        threadpoolctl.threadpool_limits(1)
    return _stdlib(kind, n_workers)


def open_way(way: str, kind: str, n_workers: int) -> Handle:
    """Open the pool that a way uses."""
    if way == "joblib":
        return _joblib(kind, n_workers)
    if way == "one-thread":
        return _one_thread(kind, n_workers)
    if way == "one-worker":
        return _stdlib(kind, 1)
    if way == "default":
        return _stdlib(kind, n_workers)
    return _ours(kind, n_workers, None if way == "none" else way)


def warm_up(handle: Handle, n_workers: int) -> None:
    """Return once every worker has loaded NumPy."""
    met: set[tuple[int, int]] = set()
    deadline_s = time.perf_counter() + _WARM_UP_S
    while len(met) < n_workers and time.perf_counter() < deadline_s:
        met.update(handle.map(introduce, [0.02] * n_workers))
    time.sleep(_SETTLE_S)


def run_stage(handle: Handle, stage: Stage) -> float:
    """Run the tasks of a stage; return how long that took.

    Raises:
        ArithmeticError: if a result is wrong.
    """
    started_s = time.perf_counter()
    results = handle.map(stage.task, stage.values)
    taken_s = time.perf_counter() - started_s
    if not all(results):
        raise ArithmeticError(f"wrong results in {results.count(False)} of {len(results)} tasks of {stage.name}")
    return taken_s


def main() -> None:
    """Make the measurement that the command line names, and print its figures."""
    kind, way, n_workers, size, limit_s, *cells = sys.argv[1:]
    handle = open_way(way, kind, int(n_workers))
    warm_up(handle, 1 if way == "one-worker" else int(n_workers))
    signal.setitimer(signal.ITIMER_REAL, float(limit_s))
    figures = {cell: [run_stage(handle, stage) for stage in stages_of(cell, size)] for cell in cells}
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(json.dumps(figures), flush=True)
    handle.close()
