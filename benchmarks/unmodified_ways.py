"""The ways in which unmodified.py runs a program, or several at the same time, each in a separate process.

    python -c 'from unmodified_ways import main; main()' WAY N_WORKERS SCALE PROGRAM FLAVOUR [PROGRAM FLAVOUR...]

prints the time until all of them had ended, and what they printed, as JSON.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PROGRAMS = Path(__file__).resolve().parent / "programs"
COUNTS = tuple(f"{library}_NUM_THREADS" for library in ("OPENBLAS", "OMP", "MKL", "NUMBA"))


class Way(NamedTuple):
    """How a program is started.

    options: the command line of Python before the program's name. n_threads: what every library's variable says; 0: no
    variable is set. n_workers: in the place of the program's own number; 0: its own. is_apart: programs that run at the
    same time have CPUs of their own, as many each.
    """

    options: tuple[str, ...] = ()
    n_threads: int = 0
    n_workers: int = 0
    is_apart: bool = False


PLAIN, OURS, SHARED = "plain", "python -m pool_party", "--scope machine"


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


def ways_together(n_cpus: int) -> dict[str, Way]:
    """Return the ways of two programs at the same time by name: the same, and how a person would divide the CPUs."""
    return {
        PLAIN: Way(),
        SHARED: Way(("-m", "pool_party", "--scope", "machine")),
        "1 thread": Way(n_threads=1),
        "1 thread, half the workers": Way(n_threads=1, n_workers=max(1, n_cpus // 2)),
        "CPUs of their own": Way(is_apart=True),
    }


def _start(program: str, flavour: str, way: Way, n_workers: int, scale: float) -> subprocess.Popen[bytes]:
    arguments = [PROGRAMS / f"{program}.py", flavour, way.n_workers or n_workers, scale]
    environment = {name: value for name, value in os.environ.items() if name not in COUNTS}
    environment |= dict.fromkeys(COUNTS, str(way.n_threads)) if way.n_threads else {}
    command = [sys.executable, *way.options, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(programs: Sequence[tuple[str, str]], way: Way, n_workers: int, scale: float) -> dict[str, object]:
    """Run programs, each with its flavour, to the end of all. Raises SystemExit with the last line of a failed one."""
    cpus = sorted(os.sched_getaffinity(0))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started_s = time.perf_counter()
    processes = []
    for i, (program, flavour) in enumerate(programs):
        if way.is_apart:
            os.sched_setaffinity(0, cpus[i :: len(programs)])  # the program inherits it
        processes.append(_start(program, flavour, way, n_workers, scale))
    outputs = [process.communicate() for process in processes]
    wall_s = time.perf_counter() - started_s
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            sys.exit((errors.decode().strip() or f"exit status {process.returncode}").splitlines()[-1])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": wall_s, "cpu_s": cpu_s, "output": b"".join(output for output, _ in outputs).decode()}


def main() -> None:
    """Measure as the command line says, and print the figures as JSON."""
    name, n_workers, scale, *rest = sys.argv[1:]
    programs = list(zip(rest[::2], rest[1::2], strict=True))
    n_cpus = len(os.sched_getaffinity(0))
    way = (ways if len(programs) == 1 else ways_together)(n_cpus)[name]
    print(json.dumps(run(programs, way, int(n_workers), float(scale))), flush=True)
