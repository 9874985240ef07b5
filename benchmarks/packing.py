"""Do idle cores help to pack and copy arrays, and does it cost nothing when there are none?

    python benchmarks/packing.py [--quick] [--only LAYOUT] [--json FILE]

times pool_party's packing of arrays that are not contiguous, as on their way to a worker, with the
idle cores that there are ("ours"), against the same code alone ("serial") and NumPy's copyto, while
no, some and all other cores are kept busy by other processes. Serial and ours take turns, and the
ratio is that of the medians: above 1, idle cores have helped; 0.98 is what may be lost where they
cannot. Layouts as in the paper on MPI's packing with tasks: a face of a 3-D array, nested vectors,
a transposed block.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from metadata import collect_metadata, format_metadata, save_report

from pool_party import _native
from pool_party._demo.report import format_table

_SIZES = [64 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 64 << 20]
_ROUND_S = 1.0  # for a size and layout
_N_ROUNDS_MIN = 7
_SETTLE_S = 0.3  # until the kernel's count knows of processes that have just begun to run

type _Array = Any


def _contiguous(n_items: int) -> _Array:
    return np.arange(float(n_items))


def _face(n_items: int) -> _Array:
    """One XZ plane of a cube whose rows have 256 items."""
    return np.arange(4.0 * n_items).reshape(-1, 4, 256)[:, 1, :]


def _nested(n_items: int) -> _Array:
    """A vector of vectors: every other row, and of these every other item."""
    return np.arange(4.0 * n_items).reshape(-1, 2, 256)[:, 1, ::2]


def _transposed(n_items: int) -> _Array:
    """The transpose of a block of a larger matrix."""
    side = int(n_items**0.5)
    return np.arange(2.0 * side * side).reshape(side, 2 * side)[:, side // 2 : side // 2 + side].T


LAYOUTS: dict[str, Callable[[int], _Array]] = {
    "contiguous": _contiguous,
    "face": _face,
    "nested": _nested,
    "transposed": _transposed,
}


@contextmanager
def _busy(n: int) -> Iterator[None]:
    """Keep n cores busy."""
    code = "while True: pass"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(n)]
    try:
        time.sleep(_SETTLE_S)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _time(call: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


def _measure(array: _Array, limit_s: float) -> dict[str, float]:
    """Return the median times in ms, taken in turns, into memory whose pages are there."""
    target = np.zeros(array.shape, array.dtype)
    ways: dict[str, Callable[[], object]] = {
        "serial": lambda: _native.copy(target, array, 0),
        "ours": lambda: _native.copy(target, array, -1),
        "numpy": lambda: np.copyto(target, array),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for call in ways.values():
        call()
    if not (target == array).all():
        raise AssertionError("packed wrongly")
    helped = _native.n_helped()
    deadline_s = time.perf_counter() + limit_s
    while len(times["ours"]) < _N_ROUNDS_MIN or time.perf_counter() < deadline_s:
        for name, call in ways.items():
            times[name].append(_time(call) * 1e3)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    return {**medians, "ratio": medians["serial"] / medians["ours"], "pieces_helped": _native.n_helped() - helped}


def _size(n_bytes: int) -> str:
    return f"{n_bytes >> 20} MB" if n_bytes >> 20 else f"{n_bytes >> 10} KB"


def _table(figures: dict[str, dict[str, Any]], sizes: list[int]) -> str:
    headings = ["serial ms / ours ms = times as fast", *map(_size, sizes)]
    rows = []
    for name, by_size in figures.items():
        cells = [by_size[str(size)] for size in sizes]
        rows.append([name, *(f"{c['serial']:.2f} / {c['ours']:.2f} = {c['ratio']:.2f}" for c in cells)])
        rows.append(["  numpy ms", *(f"{c['numpy']:.2f}" for c in cells)])
    return format_table(headings, rows)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=LAYOUTS, metavar="LAYOUT", help=", ".join(LAYOUTS))
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs: a look, not a measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, with metadata")
    return parser.parse_args()


def main() -> int:
    """Measure what the command line asks for, and print a table for each number of busy cores."""
    options = _parse_arguments()
    n_cpus = len(os.sched_getaffinity(0))
    metadata = collect_metadata(n_cpus)
    print(f"{__doc__.splitlines()[0]}\n{format_metadata(metadata)}\n", flush=True)
    sizes = _SIZES[1::2] if options.quick else _SIZES
    loads = {"all other cores idle": 0, "some busy": max(1, (n_cpus - 1) // 2), "all cores busy": n_cpus}
    report: dict[str, Any] = {"metadata": metadata, "loads": {}}
    for load, n_busy in loads.items():
        figures: dict[str, dict[str, Any]] = {}
        with _busy(n_busy):
            for name in options.only or LAYOUTS:
                print(f"{load}: {name}", file=sys.stderr, flush=True)
                limit_s = _ROUND_S * (0.1 if options.quick else 1)
                figures[name] = {str(size): _measure(LAYOUTS[name](size // 8), limit_s) for size in sizes}
        print(f"{load} ({n_busy} processes that compute)\n{_table(figures, sizes)}\n", flush=True)
        report["loads"][load] = {"n_busy": n_busy, "layouts": figures}
    save_report(report, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
