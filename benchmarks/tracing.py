"""What does a trace cost, while it runs and while there is none?

    python benchmarks/tracing.py [--against DIR] [--rounds N] [--workers N] [--kinds KIND...] [--quick] [--json FILE]

maps empty tasks, one task a chunk, and calls them one after another, with `pool.trace` and without. `--against` names
another checkout with its extension built in place, for example the revision before traces. Every measurement runs in a
fresh process; ways take turns, in reverse order every other round. Ratios compare figures of the same round. First,
tracing_native.c does the same in the channel alone, if the sources and a C compiler are available.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from fresh import Figures, begin, end
from program import Record, Runs, add_kinds, add_workers, finish, gather, make_parser
from tables import table

import pool_party

_TIMEOUT_S = 60.0
_QUICK_EFFORT = 0.03


def _ways(options: argparse.Namespace) -> dict[str, tuple[str, Path]]:
    """Return, for each way, the mode and the checkout."""
    here = Path(pool_party.__file__).resolve().parents[1]
    other = {"another checkout": ("off", options.against.resolve())} if options.against else {}
    return {**other, "no trace": ("off", here), "a trace": ("on", here)}


def _sources(native: Path) -> list[Path]:
    """Return the sources of the channel, which do not use Python."""
    paths = native.rglob("*.c")
    return sorted(path for path in paths if "python.h" not in path.read_text())


def _compile(native: Path, folder: str) -> Path:
    """Build the program that measures the channel whose sources are in `native`."""
    program = Path(folder) / "program"
    flags = ["-std=c11", "-O2", "-fPIC", "-pthread", f"-I{native}"]
    flags += ["-DHAS_TRACE"] if list(native.rglob("trace.c")) else []
    command = [os.environ.get("CC", "cc"), *flags, Path(__file__).with_name("tracing_native.c"), *_sources(native)]
    subprocess.run([*command, "-ldl", "-o", program], check=True)
    return program


def _native(options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Return, for each way, ns to put a task in the channel, and to claim it and send its result."""
    figures: dict[str, tuple[float, float]] = {}
    if shutil.which(os.environ.get("CC", "cc")) is None:
        return figures
    checkouts = {checkout for _, checkout in _ways(options).values() if (checkout / "native").is_dir()}
    with ExitStack() as folders:
        programs = {
            checkout: _compile(checkout / "native", folders.enter_context(tempfile.TemporaryDirectory()))
            for checkout in checkouts
        }
        for way, (mode, checkout) in _ways(options).items():
            if checkout in programs:
                command = [programs[checkout], *([] if mode == "off" else ["on"])]
                put_ns, serve_ns = map(float, subprocess.run(command, check=True, capture_output=True).stdout.split())
                figures[way] = put_ns, serve_ns
    return figures


def _measure(kind: str, options: argparse.Namespace) -> Runs:
    ways = _ways(options)
    effort = _QUICK_EFFORT if options.quick else 1.0

    def measure(way: str) -> tuple[Figures | None, str]:
        mode, checkout = ways[way]
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        return end(begin("tracing_sections", [kind, mode, options.workers, effort], environment), _TIMEOUT_S)

    return gather(kind, list(ways), options.rounds, measure)


def _complete_rounds(runs: Runs) -> list[dict[str, Figures]]:
    """Return, by way, the figures of each round in which every way was measured."""
    rounds = zip(*runs.figures.values(), strict=False)
    return [] if runs.failures else [dict(zip(runs.figures, figures, strict=True)) for figures in rounds]


def _row(kind: str, way: str, rounds: list[dict[str, Figures]], reference: str) -> list[str]:
    def median(key: str) -> float:
        return statistics.median(figures[way][key] for figures in rounds)

    def ratio(key: str) -> str:
        ratios = sorted(figures[way][key] / figures[reference][key] for figures in rounds)
        lower, upper = ratios[len(ratios) // 4], ratios[len(ratios) - 1 - len(ratios) // 4]
        return "" if way == reference else f"{statistics.median(ratios):.3f} ({lower:.2f}-{upper:.2f})"

    cells = [f"{median('map_ns'):.0f} ns", ratio("map_ns"), f"{median('cpu_ns'):.0f} ns", ratio("cpu_ns")]
    cells += [f"{median('call_us'):.2f} us", ratio("call_us")]
    return [f"{kind}, {way}", *cells, f"{median('end_s'):.2f} s" if way == "a trace" else ""]


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_workers(parser)
    add_kinds(parser)
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout to compare with")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="default: %(default)s; with --quick: 1")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
    return options


def main() -> int:
    """Measure as the command line says, and print its table."""
    options = _parse_arguments()
    record = Record(__doc__, options.workers, options)
    native = _native(options)
    record.put("native", native)
    if native:
        rows = [[way, f"{put_ns:.1f} ns", f"{serve_ns:.1f} ns"] for way, (put_ns, serve_ns) in native.items()]
        record.show(table(["the channel alone, best of many", "put", "claim and reply"], rows))
    reference = next(iter(_ways(options)))
    rows, failures, kinds = [], [], {}
    for kind in options.kinds:
        runs = _measure(kind, options)
        failures.append(runs.failure_text(f"{kind}, "))
        if rounds := _complete_rounds(runs):
            kinds[kind] = rounds
            rows += [_row(kind, way, rounds, reference) for way in _ways(options)]
        record.put("kinds", kinds)
    title = f"Ratios are to {reference!r}, with quartiles; lower is better."
    headings = ["", "map, per task", "", "CPU time of all", "", "one call", "", "to write the file"]
    record.show(title, table(headings, rows), "\n".join(filter(None, failures)))
    return int(any(failures))


if __name__ == "__main__":
    finish(main)
