"""What does a trace cost, while it runs and while there is none?

    python benchmarks/tracing.py [--against DIR] [--rounds N] [--workers N] [--quick] [--json FILE]

maps tasks that do nothing, one task a chunk, and calls one after another, with `pool.trace` and without. `--against`
names another checkout, with its extension built in place: say, of the revision before there were traces. Every
measurement runs in a fresh process; ways take turns, in another order each round. Ratios are of the same round.
Before that tracing_native.c does the same in the channel alone, if there are the sources and a C compiler.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fresh import Figures, begin, end
from metadata import collect_metadata, format_metadata, save_report

import pool_party
from pool_party._demo.report import format_table

_TIMEOUT_S = 60.0
_QUICK_EFFORT = 0.1
_KINDS = ("process", "interp", "thread")

type _Rounds = list[dict[str, Figures]]  # by way


def _ways(options: argparse.Namespace) -> dict[str, tuple[str, Path]]:
    """Return, for each way, the mode and the checkout."""
    here = Path(pool_party.__file__).resolve().parents[1]
    other = {"another checkout": ("off", options.against.resolve())} if options.against else {}
    return {**other, "no trace": ("off", here), "a trace": ("on", here)}


def _native(options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Return, for each way, ns to put a task in the channel, and to claim it and send its result."""
    figures: dict[str, tuple[float, float]] = {}
    compiler = shutil.which(os.environ.get("CC", "cc"))
    for way, (mode, checkout) in _ways(options).items():
        native = checkout / "native"
        if compiler is None or not native.is_dir():
            continue
        has_trace = (native / "trace.c").exists()
        sources = [native / name for name in ("segment.c", "channel.c", "blocks.c", "limits.c", "prim/linux.c")]
        sources += [native / "trace.c"] if has_trace else []
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program"
            flags = ["-std=c11", "-O2", "-fPIC", "-pthread", f"-I{native}", *(["-DHAS_TRACE"] if has_trace else [])]
            here = Path(__file__).with_name("tracing_native.c")
            subprocess.run([compiler, *flags, here, *sources, "-o", program], check=True)
            printed = subprocess.run([program, *([] if mode == "off" else ["on"])], check=True, capture_output=True)
        put_ns, serve_ns = map(float, printed.stdout.split())
        figures[way] = put_ns, serve_ns
    return figures


def _measure(kind: str, options: argparse.Namespace) -> _Rounds:
    rounds: _Rounds = []
    ways = list(_ways(options).items())
    for n in range(options.rounds):
        print(f"{kind}: round {n + 1} of {options.rounds}", file=sys.stderr, flush=True)
        figures: dict[str, Figures] = {}
        for way, (mode, checkout) in ways[n % len(ways) :] + ways[: n % len(ways)]:
            arguments = [kind, mode, options.workers, _QUICK_EFFORT if options.quick else 1.0]
            environment = os.environ | {"PYTHONPATH": str(checkout)}
            measured, failure = end(begin("tracing_sections", arguments, environment), _TIMEOUT_S)
            if measured is None:
                raise SystemExit(f"{kind}, {way}: {failure}")
            figures[way] = measured
        rounds.append(figures)
    return rounds


def _row(kind: str, way: str, rounds: _Rounds, reference: str) -> list[str]:
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--against", type=Path, metavar="DIR", help="another checkout to compare with")
    add("--rounds", type=int, default=15, metavar="N", help="default: %(default)s")
    add(
        "--workers",
        type=int,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="workers per pool; default: the CPUs that this process may use",
    )
    add("--quick", action="store_true", help="one short round: shows that everything runs, measures nothing")
    add("--json", type=Path, metavar="FILE", help="write all figures there, with metadata")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
    return options


def main() -> int:
    """Measure what the command line asks for, and print its table."""
    options = _parse_arguments()
    metadata = collect_metadata(options.workers)
    print(f"{__doc__.splitlines()[0]}\n{format_metadata(metadata)}\n", flush=True)
    report: dict[str, Any] = {"metadata": metadata, "kinds": {}}
    report["native"] = native = _native(options)
    if native:
        rows = [[way, f"{put_ns:.1f} ns", f"{serve_ns:.1f} ns"] for way, (put_ns, serve_ns) in native.items()]
        print(format_table(["the channel alone, best of many", "put", "claim and reply"], rows), "\n", flush=True)
    reference = next(iter(_ways(options)))
    rows = []
    for kind in _KINDS:
        report["kinds"][kind] = rounds = _measure(kind, options)
        rows += [_row(kind, way, rounds, reference) for way in _ways(options)]
    print(f"ratios are to {reference!r}, with quartiles; lower is better")
    print(format_table(["", "map, per task", "", "CPU time of all", "", "one call", "", "to write the file"], rows))
    save_report(report, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
