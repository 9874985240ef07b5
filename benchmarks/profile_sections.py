"""The measurements of profile_task.py, each made in a separate process.

    python -c 'from profile_sections import main; main()' map|apply KIND N_WORKERS EFFORT
    python -c 'from profile_sections import bounds; bounds()'

prints the figures as JSON.
"""

import json
import marshal
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from profile_steps import count_steps, read_samples
from workloads.tasks import noop

from pool_party import ComposablePool

_RUN_S = 3.0  # duration of a run; each verb runs once without samples and once with them
_PER_S = 1999  # samples per second of each busy CPU
_STACK_BYTES = 4096
_N_MAPPED, _N_APPLIED = 100_000, 1000  # between two readings of the clock
_LEAST_OF = 20


class Sampler:
    """`perf record` on some processes: it waits, and samples from `begin` to `end`.

    `is_there` is false without perf.
    """

    def __init__(self, pids: set[int], path: Path) -> None:
        self.is_there, self._path = False, path
        if not shutil.which("perf"):
            return
        (commands, self._commands), (self._answers, answers) = os.pipe(), os.pipe()
        options = ["-q", "-e", "cpu-clock", "-F", str(_PER_S), "--call-graph", f"dwarf,{_STACK_BYTES}"]
        options += ["--delay=-1", f"--control=fd:{commands},{answers}", "-o", str(path), "-p", ",".join(map(str, pids))]
        self._process = subprocess.Popen(
            ["perf", "record", *options],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self.is_there = self._tell("disable")

    def _tell(self, command: str) -> bool:
        """Wait for perf to acknowledge a command; return False if it has ended."""
        try:
            os.write(self._commands, f"{command}\n".encode())
        except BrokenPipeError:
            return False
        return bool(os.read(self._answers, 16))

    def begin(self) -> None:
        """Sample from now on."""
        self.is_there = self.is_there and self._tell("enable")

    def end(self) -> None:
        """Stop, and write the samples."""
        if self.is_there:
            self._tell("disable")
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
            self.is_there = self._path.is_file()


def _per_task_ns(run: Callable[[], int], limit_s: float) -> tuple[float, int]:
    """Return the wall time per task, and the number of tasks."""
    n_tasks, started_s = 0, time.perf_counter()
    while (taken_s := time.perf_counter() - started_s) < limit_s:
        n_tasks += run()
    return 1e9 * taken_s / n_tasks, n_tasks


def _runner(pool: ComposablePool, verb: str) -> Callable[[], int]:
    def run_map() -> int:
        return len(pool.map(noop, range(_N_MAPPED), chunksize=1))

    def run_apply() -> int:
        for number in range(_N_APPLIED):
            pool.apply(noop, (number,))
        return _N_APPLIED

    return run_map if verb == "map" else run_apply


def main() -> None:
    """Measure a verb with empty tasks: wall time per task, and CPU time per task of each side and step."""
    verb, kind, n_workers, effort = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder, ComposablePool(n_workers, kind=kind) as pool:
        path = Path(folder) / "samples"
        run = _runner(pool, verb)
        _per_task_ns(run, 0.1 * _RUN_S * effort)
        figures["wall_ns"], _ = _per_task_ns(run, _RUN_S * effort)
        sampler = Sampler({os.getpid(), *(worker.pid for worker in pool._pool)}, path)
        sampler.begin()
        figures["sampled_wall_ns"], n_tasks = _per_task_ns(run, _RUN_S * effort)
        sampler.end()
        if sampler.is_there:
            script = ["perf", "script", "-i", str(path), "-F", "pid,tid,ip,sym"]
            text = subprocess.run(script, check=True, capture_output=True, text=True).stdout
            counts = count_steps(read_samples(text.splitlines()), os.getpid())
            figures["n_samples"] = counts.total()
            figures["steps_ns"] = [[side, step, 1e9 * n / _PER_S / n_tasks] for (side, step), n in counts.most_common()]
    print(json.dumps(figures))


def _least_ns(run: Callable[[], object], n: int) -> float:
    taken_ns = []
    for _ in range(_LEAST_OF):
        started_ns = time.perf_counter_ns()
        run()
        taken_ns.append(time.perf_counter_ns() - started_ns)
    return min(taken_ns) / n


def bounds() -> None:
    """Measure what Python needs for the same without any pool, in ns for each value or task."""
    values = range(1000, 11_000)
    dumped = [marshal.dumps(value) for value in values]
    figures = {
        "marshal: a number to bytes": _least_ns(lambda: [marshal.dumps(value) for value in values], len(values)),
        "marshal: a number from bytes": _least_ns(lambda: [marshal.loads(data) for data in dumped], len(values)),
        "the caller itself: list(map(noop, range(n)))": _least_ns(lambda: list(map(noop, values)), len(values)),
    }
    print(json.dumps(figures))
