"""The measurements of libraries.py, each made in a separate process.

    python -c 'from libraries_ways import main; main()' joblib|scikit-learn|dask WAY N_WORKERS SIZE

prints the figures as JSON.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fresh import Figures

from pool_party._measuring.meter import Meter, cpu_of_tree_s, process_tree

DEFAULT, OURS, DASK = "joblib's default", "pool_party ", "dask "
_SERVICES = ("pool_party-", "pp-others")  # the names of our threads that run no tasks
_SAMPLER = "bench-sampler"
_SAMPLE_S = 0.02
_ROUNDS = {"quick": 1, "full": 5}
_TASKS = {"quick": 200, "full": 3000}
_ARRAY_BYTES = {"quick": 1 << 22, "full": 1 << 26}
_N_ARRAYS = 8


# ---- threads ----


def _threads_of(pid: int) -> Iterator[tuple[int, str, str]]:
    """Yield id, name and state of each thread of a process."""
    folder = f"/proc/{pid}/task"
    try:
        for thread in os.listdir(folder):
            with open(f"{folder}/{thread}/stat") as file:
                name, _, fields = file.read().partition("(")[2].rpartition(")")
            yield int(thread), name, fields.split()[0]
    except OSError:  # it has ended
        return


class ThreadSampler:
    """Counts the threads of this process and of all its descendants every 20 ms, in the block of a `with` statement.

    New threads count from their second sample on: a thread gets its name, by which ours are known, a moment after its
    start. The sampler's own thread is not counted.
    """

    def __init__(self) -> None:
        self._threads = self._services = self._running = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name=_SAMPLER, daemon=True)

    def __enter__(self) -> "ThreadSampler":
        self._before = {thread for thread, _, _ in self._look()}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> list[tuple[int, str, str]]:
        found = [thread for pid in process_tree(os.getpid()) for thread in _threads_of(pid)]
        return [thread for thread in found if thread[1] != _SAMPLER]

    def _sample(self) -> None:
        seen: set[int] = set()
        while not self._stop.wait(_SAMPLE_S):
            found = self._look()
            known = seen - self._before
            fresh = [name for thread, name, _ in found if thread in known]
            seen = {thread for thread, _, _ in found}
            n_services = sum(name.startswith(_SERVICES) for name in fresh)
            self._threads = max(self._threads, len(fresh) - n_services)
            self._services = max(self._services, n_services)
            self._running = max(self._running, sum(state == "R" for _, _, state in found))

    def peaks(self) -> Figures:
        """Return the largest numbers of threads at a time.

        threads: that were not there before the block, our service threads excepted, whether they sleep or not. Fork
        servers and resource trackers have one each. service_threads: ours that run no tasks. running_threads: of all
        that there are, those that have a CPU or wait for one.
        """
        return {"threads": self._threads, "service_threads": self._services, "running_threads": self._running}


# ---- ways ----


@contextmanager
def _joblib_way(way: str) -> Iterator[None]:
    """Have joblib use a backend."""
    import joblib

    import pool_party

    if way == DEFAULT:
        yield
    elif way.startswith(OURS):
        pool_party.register_joblib_backend()
        with joblib.parallel_config(backend="pool_party", kind=way.removeprefix(OURS)):
            yield
    else:
        with joblib.parallel_config(backend=way):
            yield


@contextmanager
def _dask_way(way: str, n_workers: int) -> Iterator[None]:
    """Have Dask use a scheduler, one of its own or a pool."""
    import dask

    from pool_party import ComposableExecutor

    if way.startswith(DASK):
        with dask.config.set(scheduler=way.removeprefix(DASK), num_workers=n_workers):
            yield
        return
    with (
        ComposableExecutor(n_workers, kind=way.removeprefix(OURS), policy="dynamic") as executor,
        dask.config.set(scheduler=executor),
    ):
        yield


# ---- what is measured ----


def measure_joblib(way: str, n_workers: int, size: str) -> Figures:
    """Measure tasks that do nothing, one a batch; then the peak memory of tasks that all take the same large array."""
    import joblib
    import numpy as np
    from workloads.libraries import edges, same

    wall_us, cpu_us = [], []
    with _joblib_way(way), joblib.Parallel(n_jobs=n_workers, batch_size=1) as parallel:
        started_s = time.perf_counter()
        parallel(joblib.delayed(same)(n) for n in range(2 * n_workers))
        start_s = time.perf_counter() - started_s
        n_tasks = _TASKS[size]
        for _ in range(_ROUNDS[size]):
            cpu_before_s, started_s = cpu_of_tree_s(os.getpid()), time.perf_counter()
            found = parallel(joblib.delayed(same)(n) for n in range(n_tasks))
            wall_us.append((time.perf_counter() - started_s) / n_tasks * 1e6)
            cpu_us.append((cpu_of_tree_s(os.getpid()) - cpu_before_s) / n_tasks * 1e6)
            if found != list(range(n_tasks)):
                raise AssertionError("other results than the tasks' own")
        array = np.ones(_ARRAY_BYTES[size] // 8)
        with Meter(_SAMPLE_S) as meter:
            found = parallel(joblib.delayed(edges)(array) for _ in range(_N_ARRAYS))
    if found != [edges(array)] * _N_ARRAYS:
        raise AssertionError("other results than the tasks' own")
    return {"start_s": start_s, "wall_us": wall_us, "cpu_us": cpu_us, "peak_bytes": meter.usage.peak_bytes}


def _measure_rounds(workloads: dict[str, Callable[[], Any]], n_rounds: int) -> Figures:
    """Run each workload; return, by name, the time of each round, and the results of the last."""
    found: Figures = {name: {"rounds_s": [], "results": []} for name in workloads}
    for _ in range(n_rounds):
        for name, run in workloads.items():
            started_s = time.perf_counter()
            found[name]["results"] = run()
            found[name]["rounds_s"].append(time.perf_counter() - started_s)
    return found


def measure_sklearn(way: str, n_workers: int, size: str) -> Figures:
    """Fit five estimators once: the first one waits for the workers to start and to import scikit-learn."""
    import joblib
    from workloads.libraries import ESTIMATORS, SIZES

    for module in ("ensemble", "linear_model", "model_selection", "svm"):
        __import__(f"sklearn.{module}")
    joblib.cpu_count(only_physical_cores=True)  # starts lscpu the first time, which the sampler would count
    runs = {name: lambda fit=fit: fit(SIZES[size], n_workers) for name, fit in ESTIMATORS.items()}
    with ThreadSampler() as sampler, _joblib_way(way):
        found = _measure_rounds(runs, 1)
    return {"workloads": found, "open_s": 0.0, **sampler.peaks()}


def measure_dask(way: str, n_workers: int, size: str) -> Figures:
    """Compute collections, the first time with workers that have to start and to import NumPy and pandas."""
    from workloads.libraries import COLLECTIONS, SIZES

    for module in ("array", "dataframe"):
        __import__(f"dask.{module}")
    runs = {name: lambda run=run: run(SIZES[size]) for name, run in COLLECTIONS.items()}
    started_s = time.perf_counter()
    with ThreadSampler() as sampler, _dask_way(way, n_workers):
        open_s = time.perf_counter() - started_s
        found = _measure_rounds(runs, 1 if size == "quick" else 3)
    return {"workloads": found, "open_s": open_s, **sampler.peaks()}


def main() -> None:
    """Measure as the command line says, and print the figures as JSON."""
    section, way, n_workers, size = sys.argv[1:]
    measure = {"joblib": measure_joblib, "scikit-learn": measure_sklearn, "dask": measure_dask}[section]
    print(json.dumps(measure(way, int(n_workers), size)), flush=True)
