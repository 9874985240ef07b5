"""The measurements of cluster.py, each made in a separate process.

    python -c 'from cluster_ways import main; main()' tasks|calls|array|nested WAY N_WORKERS SCALE

prints the figures as JSON. Each opens a cluster of Dask workers with one thread each, on the loopback interface, or
starts itself again by `mpiexec` with a rank for each worker.
"""

import json
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

from fresh import Figures

from pool_party import ComposableExecutor

OURS = "pool_party, "
MAP, EXECUTOR, RANKS = "Client.map", "Client.get_executor", "MPIPoolExecutor"
IN_RANKS = "in-ranks"  # a last argument of `main`, in a program that `mpiexec` has started
N_TASKS, N_SLOW = 20_000, 2_000  # for ours, and for Dask's own tasks, which take too long for more
N_CALLS = 200
N_DOUBLES = 8 << 20  # 64 MB
N_ROWS, N_MATRICES = 400, 24


def nothing(x: object) -> object:
    """Return the argument: a task that costs nothing."""
    return x


def eigenvalues(n: int) -> float:
    """Return the largest eigenvalue of a random symmetric matrix with n rows."""
    import numpy

    matrix = numpy.random.default_rng(n).standard_normal((n, n))
    return float(numpy.linalg.eigvalsh(matrix + matrix.T)[-1])


def mpiexec() -> str | None:
    """Return the path of the launcher of MPI programs, beside this interpreter or elsewhere, if there is one."""
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    return beside if os.access(beside, os.X_OK) else shutil.which("mpiexec")


def _needs_ranks(way: str) -> bool:
    return way == RANKS or way.startswith(f"{OURS}mpi")


def _start_ranks(n_workers: str) -> None:
    """Replace this program by one with a rank more than workers, since rank 0 is none."""
    launcher = mpiexec()
    assert launcher is not None
    program = ("-m", "mpi4py.futures", str(Path(__file__).with_name("cluster_ranks.py")), *sys.argv[1:], IN_RANKS)
    os.execv(launcher, [launcher, "-n", str(int(n_workers) + 1), sys.executable, *program])


@contextmanager
def _client(n_workers: int) -> Iterator[Any]:
    import distributed

    cluster = distributed.LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address="127.0.0.1:0")
    with cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(n_workers)
        yield client


@contextmanager
def _executor(way: str, client: Any) -> Iterator[Executor]:
    if way == EXECUTOR:
        yield client.get_executor(pure=False)
        return
    if way == RANKS:
        from mpi4py.futures import MPIPoolExecutor

        with MPIPoolExecutor() as executor:
            yield executor
        return
    kind, worker_kind, *no_budgets = way.removeprefix(OURS).split(", ")
    policy = None if no_budgets else "static"
    n_workers = 1 if kind == "mpi" else None
    with ComposableExecutor(n_workers, kind=kind, client=client, worker_kind=worker_kind, policy=policy) as executor:
        yield executor


def _map_s(way: str, client: Any, function: Callable[[Any], Any], values: list[Any]) -> float:
    """Return the seconds that a map takes, whose workers have worked before."""
    if way == MAP:
        client.gather(client.map(function, values[:10], pure=False))
        begin_s = perf_counter()
        client.gather(client.map(function, values, pure=False))
        return perf_counter() - begin_s
    with _executor(way, client) as executor:
        list(executor.map(function, values[:10]))
        begin_s = perf_counter()
        list(executor.map(function, values))
        return perf_counter() - begin_s


def _calls_s(way: str, client: Any, value: Any, n_calls: int) -> list[float]:
    """Return the seconds of each of several calls, one after the other."""

    def times(call: Callable[[], Any]) -> list[float]:
        call()
        taken_s = []
        for _ in range(n_calls):
            begin_s = perf_counter()
            call()
            taken_s.append(perf_counter() - begin_s)
        return taken_s

    if way == MAP:
        return times(lambda: client.submit(nothing, value, pure=False).result())
    with _executor(way, client) as executor:
        return times(lambda: executor.submit(nothing, value).result())


def measure_tasks(way: str, client: Any, scale: float) -> Figures:
    """Tasks per second of a map of no-ops, each a task of its own."""
    n_tasks = max(100, int(scale * (N_TASKS if way.startswith(OURS) else N_SLOW)))
    return {"tasks_per_s": n_tasks / _map_s(way, client, nothing, list(range(n_tasks)))}


def measure_calls(way: str, client: Any, scale: float) -> Figures:
    """The time of a call, from its submission to its value."""
    return {"call_ms": 1000 * statistics.median(_calls_s(way, client, 1, max(10, int(scale * N_CALLS))))}


def measure_array(way: str, client: Any, scale: float) -> Figures:
    """The time that an array of 64 MB takes to a worker and back."""
    import numpy

    array = numpy.ones(max(1000, int(scale * N_DOUBLES)))
    return {"there_and_back_ms": 1000 * statistics.median(_calls_s(way, client, array, 5))}


def measure_nested(way: str, client: Any, scale: float) -> Figures:
    """The time of tasks that each compute eigenvalues with BLAS threads."""
    n_rows = max(50, int(scale * N_ROWS))
    return {"taken_s": _map_s(way, client, eigenvalues, [n_rows + n for n in range(N_MATRICES)])}


def main() -> None:
    """Measure as the command line says, and print the figures."""
    section, way, n_workers, scale, *in_ranks = sys.argv[1:]
    measure = {"tasks": measure_tasks, "calls": measure_calls, "array": measure_array, "nested": measure_nested}[
        section
    ]
    if _needs_ranks(way) and not in_ranks:
        _start_ranks(n_workers)
    with nullcontext() if in_ranks else _client(int(n_workers)) as client:
        print(json.dumps(measure(way, client, float(scale))), flush=True)
