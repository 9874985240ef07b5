"""Which workers suit people who compute with NumPy, SciPy, pandas and scikit-learn?

    python benchmarks/science.py [--quick] [--only SECTION] [--peer TEXT] [--workers N] [--repeats N] [--json FILE]

sweep: scikit-learn fits over a range of parameters, groups of pandas tables, runs of scipy.optimize. It measures the
time once the workers are warm, the time to warm up, and the memory of the workers. transfer: an array of 64 MB there
and back.

Every measurement runs in a fresh process that has imported the packages before it opens a pool, as a script does. The
results of all ways are compared with those of the serial one.
"""

import argparse
import importlib.util
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fresh import Figures, begin, end
from peers import available_peers
from program import (
    ONE_THREAD,
    Record,
    Result,
    Runs,
    add_only,
    add_peer,
    add_repeats,
    add_workers,
    check_results,
    finish,
    gather,
    make_parser,
    n_usable_cpus,
    wanted,
)
from science_ways import SERIAL, TRANSFER_BYTES
from tables import cell, duration, megabytes, ratio, table

from pool_party._workers.interp.extensions import IS_SUPPORTED

_TIMEOUT_S = 400.0
_N_ROUNDS = 5  # of each workload in a process
_SECTIONS = ("sweep", "transfer")
_PACKAGES = ("numpy", "scipy", "pandas", "sklearn")
_WAYS = (
    "ThreadPool",
    "pool_party thread",
    "Pool",
    "Pool, fork",
    "pool_party process",
    "pool_party process, fork",
    "joblib",
    "pool_party interp",
)
_QUICK_PEERS = {"sweep": "joblib", "transfer": "Pool"}
_REFERENCES = {"pool_party thread": "ThreadPool", "pool_party process, fork": "Pool, fork"}  # of transfers; else Pool

type _Summary = dict[str, Any]


def _environment(way: str, n_workers: int) -> dict[str, str]:
    """Return the environment of a way; it limits threads if the way does not share CPUs among its workers."""
    if way.startswith("pool_party") or way == "joblib":
        return dict(os.environ)
    n_threads = "1" if way == SERIAL else str(max(1, n_usable_cpus() // n_workers))
    return {**os.environ, **dict.fromkeys(ONE_THREAD, n_threads)}


def _ways(section: str, options: argparse.Namespace) -> list[str]:
    """Return the ways that are available here, in the order of the table."""
    names = {peer.name for peer in available_peers()} - (set() if IS_SUPPORTED else {"pool_party interp"})
    ways = wanted([way for way in _WAYS if way in names], options.peer)
    if options.quick:
        ways = [way for way in ways if way.startswith("pool_party") or way == _QUICK_PEERS[section]]
    return [SERIAL, *ways] if section == "sweep" else ways


def _measure(section: str, options: argparse.Namespace) -> Runs:
    size, n_rounds = ("quick", 1) if options.quick else ("full", _N_ROUNDS)

    def measure(way: str) -> Result:
        arguments = [section, way, options.workers, size, n_rounds]
        return end(begin("science_ways", arguments, _environment(way, options.workers)), _TIMEOUT_S)

    return gather(section, _ways(section, options), 1 if options.quick else options.repeats, measure)


# ---- results ----


def _median(runs: Sequence[Figures], key: str) -> float | None:
    values = [run[key] for run in runs if run.get(key) is not None]
    return statistics.median(values) if values else None


def _sum_up_sweep(runs: Sequence[Figures]) -> _Summary:
    times_s, cpu_s = {}, 0.0
    for name in runs[0]["workloads"]:
        times_s[name] = statistics.median(round_s for run in runs for round_s in run["workloads"][name]["rounds_s"])
        cpu_s += statistics.median(run["workloads"][name]["cpu_s"] for run in runs)
    rest = {key: _median(runs, key) for key in ("start_s", "bytes_per_worker", "bytes_of_process", "import_s")}
    return {f"{name}_s": time_s for name, time_s in times_s.items()} | {
        "all_s": sum(times_s.values()),
        "cpu_s": cpu_s,
        **rest,
    }


def _sum_up_transfer(runs: Sequence[Figures]) -> _Summary:
    return {key: _median(runs, key) for key in ("median_s", "best_s", "first_s")}


# ---- tables ----


def _ratio(a: float | None, b: float | None) -> str:
    return "-" if not a or not b else ratio(a / b)


def _format_sweep(summaries: Mapping[str, _Summary]) -> str:
    times = ("scikit-learn_s", "pandas_s", "scipy_s", "all_s", "cpu_s", "start_s")
    headings = ["", *(key.removesuffix("_s") for key in times), "memory per worker", "PSS of a process"]
    headings[-3] = "start-up"
    rows = [
        [
            way,
            *(cell(sums[key], duration) for key in times),
            *(cell(sums[key], megabytes) for key in ("bytes_per_worker", "bytes_of_process")),
        ]
        for way, sums in summaries.items()
    ]
    title = "Sweep: each workload, warm; start-up to the first results; memory of the whole tree of processes."
    return "\n\n".join(filter(None, (title, table(headings, rows), "\n".join(_compare(summaries)))))


def _compare(summaries: Mapping[str, _Summary]) -> list[str]:
    """Compare interpreters with our processes: the goal is at most 1 x."""
    interp, lines = summaries.get("pool_party interp"), []
    for way in ("pool_party process", "pool_party process, fork"):
        process = summaries.get(way)
        if interp is None or process is None:
            continue
        lines.append(
            f"- interp to {way.removeprefix('pool_party ')}: time {_ratio(interp['all_s'], process['all_s'])}, "
            f"CPU time {_ratio(interp['cpu_s'], process['cpu_s'])}, "
            f"start-up {_ratio(interp['start_s'], process['start_s'])}, "
            f"memory {_ratio(interp['bytes_per_worker'], process['bytes_of_process'])} a process's PSS, "
            f"{_ratio(interp['bytes_per_worker'], process['bytes_per_worker'])} what that adds to the whole"
        )
    return lines


def _format_transfer(summaries: Mapping[str, _Summary], n_bytes: int) -> str:
    rows = []
    for way, sums in summaries.items():
        reference = summaries.get(_REFERENCES.get(way, "Pool"), {}).get("median_s")
        faster = "-" if reference is None else ratio(reference / sums["median_s"])
        rows.append([way, *(cell(sums[key], duration) for key in ("median_s", "best_s", "first_s")), faster])
    title = f"An array of {n_bytes >> 20} MB to a worker and back, read by both."
    return f"{title}\n\n{table(['', 'median', 'best', 'first call', 'faster than its Pool'], rows)}"


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__ or "")
    add_only(parser, _SECTIONS)
    add_peer(parser)
    add_workers(parser)
    add_repeats(parser, 1)
    return parser.parse_args()


def main() -> int:
    """Measure as the command line says, and print a table for each section."""
    options = _parse_arguments()
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        print(f"science: left out, since these are not installed: {', '.join(missing)}")
        return 0
    record = Record(__doc__ or "", options.workers, options)
    has_failed = False
    for section in options.only or _SECTIONS:
        runs = _measure(section, options)
        if section == "sweep":
            check_results(runs, SERIAL)
        sum_up = _sum_up_sweep if section == "sweep" else _sum_up_transfer
        summaries = {way: sum_up(figures) for way, figures in runs.figures.items()}
        n_bytes = TRANSFER_BYTES["quick" if options.quick else "full"]
        text = _format_sweep(summaries) if section == "sweep" else _format_transfer(summaries, n_bytes)
        record.show(text, runs.failure_text())
        record.put_section(section, runs.as_json(summaries))
        has_failed |= bool(runs.failures)
    return int(has_failed)


if __name__ == "__main__":
    finish(main)
