"""The measurements of objects.py, each made in a separate process.

    python objects_sections.py SECTION PEER N_WORKERS SCALE

prints the figures as JSON. It runs as a script, since its own functions and classes are what one section sends.
"""

import gc
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from peers import Handle, peer_named
from workloads.objects import FORMS, N_TASKS, look
from workloads.tasks import nap

from pool_party._measuring.meter import cpu_of_tree_s, memory_bytes, memory_measure, process_tree

_LOOK_S = 0.01
_N_FURTHER = 300

type _Figures = dict[str, Any]


@dataclass
class Point:
    """A class of a script."""

    x: float
    y: float


def shift(point: Point) -> Point:
    """Return a point beside another: a function of a script, which names another."""
    return Point(add(point.x), point.y)


def add(x: float) -> float:
    """Return the sum with 1: a function of a script."""
    return x + 1


def _open(name: str, n_workers: int) -> Handle:
    handle = peer_named(name).open(n_workers)
    handle.map(nap, [(number, 0.02) for number in range(4 * n_workers)])
    return handle


@contextmanager
def _peak_bytes() -> Iterator[Callable[[], int]]:
    """Sample the memory of all processes meanwhile. Gives a function for the growth beyond what they had before."""
    measure, is_over = memory_measure(), threading.Event()

    def sample() -> int:
        return memory_bytes(process_tree(os.getpid()), measure)

    gc.collect()
    before = sample()
    samples = [before]

    def run() -> None:
        while not is_over.wait(_LOOK_S):
            samples.append(sample())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: max(samples) - before
    finally:
        is_over.set()
        thread.join()
        samples.append(sample())  # of what is kept, and for calls that are too short for the other samples


def _cpu_s(handle: Handle, tasks: list[tuple[Any, int]], chunk: int) -> float:
    before_s = cpu_of_tree_s(os.getpid())
    results = handle.map(look, tasks, chunk)
    taken_s = cpu_of_tree_s(os.getpid()) - before_s
    assert results == [len(value) + number for value, number in tasks]
    return taken_s


def shared(name: str, n_workers: int, scale: float, form: str) -> _Figures:
    """Return what it costs to give one object to many tasks."""
    value = FORMS[form](scale)
    tasks = [(value, number) for number in range(N_TASKS)]
    chunk = -(-N_TASKS // (4 * n_workers))  # as `multiprocessing.Pool` chooses it
    handle = _open(name, n_workers)
    figures: _Figures = {"alone_cpu_s": _cpu_s(handle, tasks, 1), "chunks_cpu_s": _cpu_s(handle, tasks, chunk)}
    handle.close()
    handle = _open(name, n_workers)  # a new pool, which keeps no memory of earlier calls
    with _peak_bytes() as peak:
        handle.map(look, tasks)
    figures["alone_peak_bytes"] = peak()
    handle.close()
    return figures


def _median_us(handle: Handle, task: Callable[[Any], Any], value: Any, n_calls: int) -> float:
    taken_us = []
    for _ in range(n_calls):
        started_s = time.perf_counter()
        handle.call(task, value)
        taken_us.append((time.perf_counter() - started_s) * 1e6)
    return statistics.median(taken_us)


def script(name: str, n_workers: int, scale: float, _: str) -> _Figures:
    """Return what calls of the script's own functions cost, the first one and further ones."""
    handle = _open(name, n_workers)
    n_calls = max(10, round(_N_FURTHER * scale))
    figures = {
        "first_us": _median_us(handle, add, 1.0, 1),
        "function_us": _median_us(handle, add, 1.0, n_calls),
        "first_class_us": _median_us(handle, shift, Point(1.0, 2.0), 1),
        "class_us": _median_us(handle, shift, Point(1.0, 2.0), n_calls),
    }
    handle.close()
    return figures


def main() -> None:
    """Measure as the command line says, and print the figures."""
    section, name, n_workers, scale = sys.argv[1:]
    measure = script if section == "script" else shared
    print(json.dumps(measure(name, int(n_workers), float(scale), section)), flush=True)


if __name__ == "__main__":
    main()
