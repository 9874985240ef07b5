"""How far apart are two CPUs, does that change, and what does it do to a library with two threads?

    python benchmarks/cpu_distance.py [--quick] [--seconds S] [--json FILE]

The CPUs of a virtual machine may be moved to cores that share a cache and to cores that do not, and the machine does
not see it. The threads of a BLAS wait for each other many times in each call, so these calls then take longer, in
programs with a pool and in those without. This program has none: in turns it passes a cache line between two threads,
and decomposes a matrix with one BLAS thread and with two. Needs a C compiler, two CPUs, and the machine for itself.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from native_bounds import HAND_OVER, compile_native, run_native
from program import Record, finish, make_parser, n_usable_cpus
from tables import table
from threadpoolctl import ThreadpoolController

_SECONDS, _QUICK_SECONDS = 120.0, 3.0
_SHAPE, _N_CALLS = (1600, 600), 4
_PAUSE_S = 0.12  # OpenBLAS's threads spin for some 50 ms after a call
_FAR = 3.0  # as many times the shortest hand-over

_HEADINGS = ["a cache line to the other CPU", "of the time", "one BLAS thread", "two", "times as fast", "changes"]


class Sample(NamedTuple):
    """One turn: times in seconds, the second and third of a QR decomposition."""

    hand_over_s: float
    one_s: float
    two_s: float


def _time(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_N_CALLS):
        started_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - started_s)
    return statistics.median(times)


def watch(program: Path, seconds: float) -> list[Sample]:
    """Measure in turns for some seconds."""
    import numpy as np

    matrix = np.random.default_rng(0).random(_SHAPE)
    libraries, ends_at, samples = ThreadpoolController(), time.monotonic() + seconds, list[Sample]()
    while not samples or time.monotonic() < ends_at:
        times = []
        for n_threads in (1, 2):
            with libraries.limit(limits=n_threads):
                times.append(_time(lambda: np.linalg.qr(matrix)))
            time.sleep(_PAUSE_S)
        samples.append(Sample(1e-9 * run_native(program, 1)[HAND_OVER], *times))
    return samples


def rows_of(samples: list[Sample]) -> list[list[str]]:
    """Return a row for turns in which the CPUs were near to each other, and one for those in which they were not."""
    limit_s = _FAR * min(sample.hand_over_s for sample in samples)
    are_far = [sample.hand_over_s > limit_s for sample in samples]
    n_changes = sum(one != other for one, other in pairwise(are_far))
    rows = []
    for is_far in (False, True):
        group = [sample for sample, far in zip(samples, are_far, strict=True) if far == is_far]
        if group:
            hand_over_s, one_s, two_s = (statistics.median(column) for column in zip(*group, strict=True))
            share = f"{100 * len(group) / len(samples):.0f} %"
            times = [f"{1e3 * one_s:.0f} ms", f"{1e3 * two_s:.0f} ms", f"{one_s / two_s:.2f} x"]
            rows.append([f"{1e9 * hand_over_s:.0f} ns", share, *times, str(n_changes)])
    return rows


def main() -> int:
    """Measure as the command line says, and print a table."""
    parser = make_parser(__doc__ or "")
    parser.add_argument("--seconds", type=float, metavar="S", help=f"how long; default: {_SECONDS:.0f}")
    options: argparse.Namespace = parser.parse_args()
    record = Record(__doc__ or "", 1, options)
    with tempfile.TemporaryDirectory() as folder:
        program = compile_native(folder)
        if program is None or n_usable_cpus() < 2:
            record.show("Not measured: this needs a C compiler and two CPUs.")
            return 0
        samples = watch(program, options.seconds or (_QUICK_SECONDS if options.quick else _SECONDS))
    record.put("samples", [sample._asdict() for sample in samples])
    record.show(f"QR of {_SHAPE[0]} x {_SHAPE[1]}, medians.", table(_HEADINGS, rows_of(samples)))
    return 0


if __name__ == "__main__":
    finish(main)
