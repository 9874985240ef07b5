"""The benchmarks that bench.py runs: their arguments, and their approximate duration."""

import ast
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


def n_usable_cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A program of this folder, NAME.py with "_" for "-", and how it is run.

    `minutes` and `quick_minutes`: its duration on two idle CPUs of 2020. `needs`: modules that must be importable.
    """

    name: str
    minutes: float
    quick_minutes: float
    arguments: tuple[str, ...] = ()
    quick_arguments: tuple[str, ...] = ("--quick",)
    needs: tuple[str, ...] = ()

    @property
    def program(self) -> Path:
        """Where the program is."""
        return HERE / f"{self.name.replace('-', '_')}.py"

    @property
    def question(self) -> str:
        """The question of the program: the first line of its docstring."""
        return (ast.get_docstring(ast.parse(self.program.read_text())) or "").partition("\n")[0]

    def missing(self) -> list[str]:
        """Return the modules that it needs and this Python lacks."""
        return [module for module in self.needs if importlib.util.find_spec(module) is None]

    def command_line(self, is_quick: bool) -> tuple[str, ...]:
        """Return the arguments for the program."""
        return self.quick_arguments if is_quick else self.arguments

    def expected_minutes(self, is_quick: bool) -> float:
        """Return the expected duration."""
        return self.quick_minutes if is_quick else self.minutes


_CELL_WAYS = ("one-thread", "one-worker", "default", "joblib", "static", "exclusive", "counting", "dynamic")
_CELLS = ("--workers", str(n_usable_cpus()), "--ways", *_CELL_WAYS)
_TRANSFER = ("--only", "bytes", "--only", "ndarray", "--only", "shared")
_ALL = (
    Benchmark("dispatch", 4.5, 0.8, ("--repeats", "3")),
    Benchmark("modes", 3.5, 0.3),
    Benchmark("cells", 11, 0.4, ("--repeats", "2", *_CELLS), ("--quick", *_CELLS), needs=("numpy",)),
    Benchmark("scaling", 5, 0.6, needs=("numpy",)),
    Benchmark("overhead", 3.5, 0.5, ("--repeats", "2"), needs=("numpy",)),
    Benchmark("wake-up", 1.5, 0.4),
    Benchmark("transfer", 5, 0.7, _TRANSFER, ("--quick", *_TRANSFER, "--max-size", str(4 << 20))),
    Benchmark("objects", 5, 1, needs=("numpy",)),
    Benchmark("packing", 4, 0.4),
    Benchmark("memory", 1.5, 0.4, ("--repeats", "1")),
    Benchmark("tracing", 1, 0.3, ("--rounds", "5")),
    Benchmark("profile-task", 1, 0.3),
    Benchmark("science", 3, 1, needs=("scipy", "pandas", "sklearn")),
    Benchmark("libraries", 5, 1.5, needs=("joblib", "numpy")),
    Benchmark("asyncio-calls", 4, 0.7),
    Benchmark("cluster", 6, 1.5, needs=("distributed", "numpy")),
    Benchmark("cluster-size", 8, 1),
    Benchmark("unmodified", 15, 2, needs=("numpy",)),
    Benchmark("sharing", 4, 0.2, ("--seconds", "120"), needs=("numpy",)),
)
BENCHMARKS = {benchmark.name: benchmark for benchmark in _ALL if benchmark.program.is_file()}
