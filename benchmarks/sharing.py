"""Do programs that share a machine run more threads than it has CPUs?

    python benchmarks/sharing.py [--quick] [--seconds S] [--seed N] [--json FILE]

Programs start, work, rest and are killed at random, at most as many at a time as there are CPUs. Each has a pool of one
worker process, which multiplies matrices with all the threads that it may use. Every 5 ms the threads of the workers
that run, or that wait for a CPU, are counted; the ways are measured one after the other, for --seconds each. A worker
always has at least one thread, so with more workers than CPUs there would be more threads by design. Each worker's
first task loads NumPy.

Then two programs, which take the machine for one with eight CPUs: one has a task that lasts, and the other gets one
from time to time. How soon after that has the first one lowered its budget?
"""

import math
import os
import random
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from program import Record, finish, make_parser, n_usable_cpus, percentile, say
from tables import duration, table

_PERIOD_S = 0.005
_SECONDS, _QUICK_SECONDS = 600.0, 4.0
_LIVES_S = (0.5, 12.0)  # how long a program lives, at random
_GAP_S = 1.0  # at most, until another one starts in its place
_WORK_S, _REST_S = (0.05, 1.0), (0.05, 0.8)
_LOOK_S, _TURN_S = 0.0002, 0.02
_N_TURNS, _N_QUICK_TURNS = 400, 10
_IMPORT = f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r}); import sharing"
WAYS = {"one machine for each": "pool", 'scope="machine"': "machine"}


def multiply(until_s: float) -> None:
    """Multiply matrices until a time on the monotonic clock."""
    import numpy as np

    matrix = np.ones((400, 400))
    while time.monotonic() < until_s:
        matrix @ matrix


def run_program() -> None:
    """Work and rest at random, until this program is killed. argv: scope, seed."""
    from pool_party import ComposablePool

    rng = random.Random(int(sys.argv[2]))
    with ComposablePool(1, kind="process", scope=sys.argv[1]) as pool:
        print(pool.apply(os.getpid), flush=True)
        while True:
            pool.apply(multiply, (time.monotonic() + rng.uniform(*_WORK_S),))
            time.sleep(rng.uniform(*_REST_S))


def follow() -> None:
    """Hold a task, and print when the worker's budget is lowered, until standard input ends."""
    from pool_party import ComposablePool

    with ComposablePool(1, kind="thread", policy="static", scope="machine") as pool:
        pool.apply_async(sys.stdin.read)
        before = 0
        while select.select([sys.stdin], [], [], _LOOK_S) == ([], [], []):
            (now,) = pool.statistics().n_threads
            if now != before:
                print(time.monotonic() if now < before else 0.0, now, flush=True)
            before = now


def begin_often(n_times: int) -> list[float]:
    """Return when a task was begun, so many times, each after a rest."""
    from pool_party import ComposablePool

    times_s = []
    with ComposablePool(1, kind="thread", policy="static", scope="machine") as pool:
        for _ in range(n_times):
            time.sleep(_TURN_S)
            times_s.append(time.monotonic())
            pool.apply(time.sleep, (_TURN_S,))
    return times_s


def measure_reactions(n_times: int) -> list[float]:
    """Return how many seconds after each task of this program another program had lowered its budget."""
    os.environ["POOL_PARTY_CPU_COUNT"] = "8"
    command = [sys.executable, "-c", f"{_IMPORT}; sharing.follow()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()  # it has begun
        times_s = begin_often(n_times)
        printed, _ = other.communicate()
    del os.environ["POOL_PARTY_CPU_COUNT"]
    lowered_s = [at for at, _ in (map(float, line.split()) for line in printed.splitlines()) if at]
    return [min((at for at in lowered_s if at > begun), default=math.inf) - begun for begun in times_s]


class Program:
    """A program that runs, and the process of its worker once that has started."""

    def __init__(self, scope: str, rng: random.Random) -> None:
        command = [sys.executable, "-c", f"{_IMPORT}; sharing.run_program()", scope, str(rng.getrandbits(32))]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._tasks: Path | None = None
        self.dies_at = time.monotonic() + rng.uniform(*_LIVES_S)

    def n_running(self) -> int:
        """Return how many threads of its worker run or wait for a CPU."""
        if self._tasks is None:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            if not line:
                return 0
            self._tasks = Path(f"/proc/{int(line)}/task")
        try:
            return sum(map(_is_running, self._tasks.iterdir()))
        except OSError:  # the worker has ended
            return 0

    def kill(self) -> None:
        """Kill the program. Its worker ends by itself."""
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()


def _is_running(thread: Path) -> bool:
    try:
        stat = (thread / "stat").read_bytes()
    except OSError:
        return False
    return stat[stat.rindex(b")") + 2 :][:1] == b"R"


@dataclass
class Seen:
    """What was seen of one way: the numbers of running threads, and for how long at a time they were too many."""

    n_cpus: int
    counts: list[int] = field(default_factory=list)
    excesses_s: list[float] = field(default_factory=list)
    n_programs: int = 0
    _since_s: float | None = None

    def add(self, n_running: int, at_s: float) -> None:
        """Add a sample."""
        self.counts.append(n_running)
        if n_running > self.n_cpus and self._since_s is None:
            self._since_s = at_s
        elif n_running <= self.n_cpus and self._since_s is not None:
            self.excesses_s.append(at_s - self._since_s)
            self._since_s = None

    def sum_up(self) -> dict[str, float]:
        """Return the figures."""
        busy = [count for count in self.counts if count]
        excesses_s = self.excesses_s or [0.0]
        return {
            "n_programs": self.n_programs,
            "n_samples": len(self.counts),
            "mean_running": sum(busy) / max(1, len(busy)),
            "most_running": max(self.counts, default=0),
            "too_many_share": sum(count > self.n_cpus for count in self.counts) / max(1, len(self.counts)),
            "n_excesses": len(self.excesses_s),
            "excess_median_s": percentile(excesses_s, 50),
            "excess_p99_s": percentile(excesses_s, 99),
            "excess_max_s": max(excesses_s),
        }


def watch(scope: str, seconds: float, seed: int) -> dict[str, float]:
    """Let programs come and go for some seconds, and return what was seen."""
    rng, n_cpus = random.Random(seed), n_usable_cpus()
    seen, alive = Seen(n_cpus), dict.fromkeys(range(n_cpus))
    starts_at = dict.fromkeys(alive, 0.0)
    programs: dict[int, Program] = {}
    ends_at = next_at = time.monotonic()
    ends_at += seconds
    try:
        while (now := time.monotonic()) < ends_at:
            for place in alive:
                if place in programs and now >= programs[place].dies_at:
                    programs.pop(place).kill()
                    starts_at[place] = now + rng.uniform(0.0, _GAP_S)
                elif place not in programs and now >= starts_at[place]:
                    programs[place] = Program(scope, rng)
                    seen.n_programs += 1
            seen.add(sum(program.n_running() for program in programs.values()), now)
            next_at = max(next_at + _PERIOD_S, now)
            time.sleep(max(0.0, next_at - time.monotonic()))
    finally:
        for program in programs.values():
            program.kill()
    return seen.sum_up()


def _row(name: str, found: dict[str, float]) -> list[str]:
    times = [f"{found[key] * 1e3:.0f} ms" for key in ("excess_median_s", "excess_p99_s", "excess_max_s")]
    counts = [f"{found['n_programs']:.0f}", f"{found['n_samples']:.0f}", f"{found['mean_running']:.2f}"]
    return [name, *counts, f"{100 * found['too_many_share']:.2f} %", f"{found['n_excesses']:.0f}", *times]


def main() -> int:
    """Measure as the command line says, and print a table."""
    parser = make_parser(__doc__ or "")
    parser.add_argument("--seconds", type=float, metavar="S", help=f"for each way; default: {_SECONDS:.0f}")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of what happens at random; default: 1")
    options = parser.parse_args()
    seconds = options.seconds or (_QUICK_SECONDS if options.quick else _SECONDS)
    record = Record(__doc__ or "", 1, options)
    found: dict[str, dict[str, float]] = {}
    for name, scope in WAYS.items():
        say(f"{name}: {seconds:.0f} s")
        found[name] = watch(scope, seconds, options.seed)
        record.put_section(name, found[name])
    headings = ["", "programs", "samples", "running, while any", "too many", "times", "median", "p99", "longest"]
    title = f"Threads of workers that run or wait for a CPU, of which there are {n_usable_cpus()}; lower is better."
    record.show(title, table(headings, [_row(name, figures) for name, figures in found.items()]))
    say("reactions")
    reactions_s = measure_reactions(_N_QUICK_TURNS if options.quick else _N_TURNS)
    record.put_section("reactions_s", {"all": reactions_s})
    row = ["the budget is lower", *(duration(percentile(reactions_s, p)) for p in (50, 99, 100))]
    title = f"Time from a task of one program to the lower budget of another, {len(reactions_s)} times."
    record.show(title, table(["", "median", "p99", "longest"], [row]))
    return 0


if __name__ == "__main__":
    finish(main)
