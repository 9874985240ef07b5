"""The ways in which unmodified.py runs a program, each in a separate process.

    python -c 'from unmodified_ways import main; main()' PROGRAM FLAVOUR WAY N_WORKERS SCALE

prints the time that the whole program took, and what it printed, as JSON.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

PROGRAMS = Path(__file__).resolve().parent / "programs"
COUNTS = tuple(f"{library}_NUM_THREADS" for library in ("OPENBLAS", "OMP", "MKL", "NUMBA"))


class Way(NamedTuple):
    """How a program is started.

    options: the command line of Python before the program's name. n_threads: what every library's variable says; 0: no
    variable is set. n_workers: in the place of the program's own number; 0: its own.
    """

    options: tuple[str, ...] = ()
    n_threads: int = 0
    n_workers: int = 0


PLAIN, OURS = "plain", "python -m pool_party"


def ways(n_cpus: int) -> dict[str, Way]:
    """Return the ways by name: as it is, under `python -m pool_party`, and what a person would try by hand."""
    return {
        PLAIN: Way(),
        OURS: Way(("-m", "pool_party")),
        "1 thread": Way(n_threads=1),
        f"1 thread, {n_cpus} workers": Way(n_threads=1, n_workers=n_cpus),
        f"{n_cpus} threads, 1 worker": Way(n_threads=n_cpus, n_workers=1),
        f"{n_cpus} workers": Way(n_workers=n_cpus),
    }


def run(program: str, flavour: str, way: Way, n_workers: int, scale: float) -> dict[str, object]:
    """Run a program to its end. Raises SystemExit with the last line that it said if it fails."""
    arguments = [PROGRAMS / f"{program}.py", flavour, way.n_workers or n_workers, scale]
    environment = {name: value for name, value in os.environ.items() if name not in COUNTS}
    environment |= dict.fromkeys(COUNTS, str(way.n_threads)) if way.n_threads else {}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *way.options, *map(str, arguments)], env=environment, capture_output=True, check=False
    )
    wall_s = time.perf_counter() - started_s
    if done.returncode:
        sys.exit((done.stderr.decode().strip() or f"exit status {done.returncode}").splitlines()[-1])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": wall_s, "cpu_s": cpu_s, "output": done.stdout.decode()}


def main() -> None:
    """Measure as the command line says, and print the figures as JSON."""
    program, flavour, name, n_workers, scale = sys.argv[1:]
    way = ways(len(os.sched_getaffinity(0)))[name]
    print(json.dumps(run(program, flavour, way, int(n_workers), float(scale))), flush=True)
