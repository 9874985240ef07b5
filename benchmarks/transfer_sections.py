"""The measurements of transfer.py, each made in a separate process.

    python -c 'from transfer_sections import main; main()' SECTION PEER N_WORKERS EFFORT SIZES

prints as JSON, for each size in bytes, the median time of one call there and back in microseconds.
"""

import gc
import json
import multiprocessing
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from peers import peer_named
from workloads.echo import echo
from workloads.tasks import nap

_LIMIT_S = 0.25  # for each size, of normal effort
_N_CALLS = 2000
_N_CALLS_MIN = 5
_N_WARM_UPS = 2
_ENOUGH_BYTES = 128 << 20  # fewer calls suffice if they send that much; one of 256 MB takes up to 1.5 s
PIPE, MEMCPY, MEMCPY_NEW = "pipe", "memcpy", "memcpy, new objects"
BOUNDS = (PIPE, MEMCPY, MEMCPY_NEW)  # no pools: a pair of processes, and two copies in one

type _Figures = dict[str, Any]
type _Call = Callable[[Any], Any]


def _make_bytes(size: int) -> Any:
    return bytes(range(256)) * (size // 256) + bytes(size % 256)


def _make_array(size: int) -> Any:
    import numpy as np

    return np.arange(max(1, size // 8), dtype=float)


def _make_floats(size: int) -> Any:
    return [1000.0 + number for number in range(max(1, size // 8))]


def _make_shared(size: int) -> Any:
    import pool_party

    return pool_party.share(_make_array(size))


VALUES: dict[str, Callable[[int], Any]] = {
    "bytes": _make_bytes,
    "ndarray": _make_array,
    "floats": _make_floats,
    "shared": _make_shared,
}


def _flat(value: Any) -> Any:
    """Return the value as flat bytes, which a pipe sends and memcpy copies."""
    return memoryview(array("d", value) if isinstance(value, list) else value).cast("B")


@contextmanager
def _copying() -> Iterator[_Call]:
    """Copy there and back into memory that is reused, so that its pages are mapped: the bound for pools that copy."""
    there = back = memoryview(b"")

    def call(value: Any) -> None:
        nonlocal there, back
        if len(there) != len(value):
            there, back = (memoryview(bytearray(len(value))) for _ in range(2))
        there[:] = value
        back[:] = there

    yield call


@contextmanager
def _copying_anew() -> Iterator[_Call]:
    """Copy there and back into new objects: the bound for receivers that have to make them."""
    yield lambda value: bytes(memoryview(bytes(value)))


def _serve_pipe(connection: Any) -> None:
    while data := connection.recv_bytes():
        connection.send_bytes(data)


@contextmanager
def _piping() -> Iterator[_Call]:
    """Send bytes to another process and back without pickling, through the pipes that multiprocessing.Pool uses."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve_pipe, args=(theirs,), daemon=True)
    process.start()

    def call(value: Any) -> Any:
        ours.send_bytes(value)
        return ours.recv_bytes()

    yield call
    ours.send_bytes(b"")
    process.join()


@contextmanager
def _pool(peer: str, n_workers: int) -> Iterator[_Call]:
    handle = peer_named(peer).open(n_workers)
    handle.map(nap, [(number, 0.02) for number in range(4 * n_workers)])
    yield lambda value: handle.call(echo, value)
    handle.close()


_OPEN_BOUND = {PIPE: _piping, MEMCPY: _copying, MEMCPY_NEW: _copying_anew}


def _median_us(call: _Call, value: Any, effort: float, size: int) -> float:
    """Return the median of many calls, without the first ones and without the time to free a result."""
    n_least = max(1, min(_N_CALLS_MIN, _ENOUGH_BYTES // size))
    for _ in range(min(_N_WARM_UPS, n_least)):
        call(value)
    taken_us: list[float] = []
    deadline_s = time.perf_counter() + _LIMIT_S * effort
    while len(taken_us) < n_least or (len(taken_us) < _N_CALLS and time.perf_counter() < deadline_s):
        started_s = time.perf_counter()
        result = call(value)
        taken_us.append((time.perf_counter() - started_s) * 1e6)
        del result
    return statistics.median(taken_us)


def measure(section: str, peer: str, n_workers: int, effort: float, sizes: list[int]) -> _Figures:
    """Return the median time in microseconds by size."""
    figures: _Figures = {}
    with _OPEN_BOUND[peer]() if peer in BOUNDS else _pool(peer, n_workers) as call:
        for size in sizes:
            value = VALUES[section](size)
            gc.collect()
            figures[str(size)] = _median_us(call, _flat(value) if peer in BOUNDS else value, effort, size)
            del value  # before the next, larger one is made
    return figures


def main() -> None:
    """Measure as the command line says, and print the figures."""
    section, peer, n_workers, effort, sizes = sys.argv[1:]
    figures = measure(section, peer, int(n_workers), float(effort), json.loads(sizes))
    print(json.dumps(figures), flush=True)
