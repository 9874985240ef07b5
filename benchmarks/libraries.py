"""What do joblib, scikit-learn and Dask gain from running in our pools, and what does that cost?

    python benchmarks/libraries.py [--quick] [--only SECTION] [--peer TEXT] [--workers N] [--repeats N] [--json FILE]

joblib: the overhead of a task, and the peak memory of tasks that take a large array. scikit-learn: five estimators,
with the start of the workers, and how many threads there are. dask: collections over its own schedulers and in pools.

Every measurement runs in a fresh process. Results are compared with those of the reference, and figures divided by
those of the same round.
"""

import argparse
import importlib.util
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fresh import Figures, begin, end
from libraries_ways import DASK, DEFAULT, OURS
from program import (
    KINDS,
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
from tables import table

from pool_party._workers.interp.extensions import IS_SUPPORTED

_TIMEOUT_S = 300.0
_NEEDS = {"joblib": ("joblib", "numpy"), "scikit-learn": ("sklearn",), "dask": ("dask", "pandas", "pyarrow")}
_OURS = tuple(f"{OURS}{kind}" for kind in KINDS)
_WAYS = {
    "joblib": ("loky", "threading", *_OURS),
    "scikit-learn": ("loky", "threading", DEFAULT, *_OURS),
    "dask": (f"{DASK}threads", f"{DASK}processes", f"{DASK}synchronous", *_OURS),
}
_REFERENCES = {"joblib": "loky", "scikit-learn": "loky", "dask": f"{DASK}threads"}
_IN_JOBLIB = ("threading", "loky")  # the wall time of a task is divided by theirs

type _Summary = dict[str, Any]


def _measure(section: str, ways: Sequence[str], options: argparse.Namespace) -> Runs:
    size = "quick" if options.quick else "full"

    def measure(way: str) -> Result:
        return end(begin("libraries_ways", [section, way, options.workers, size]), _TIMEOUT_S)

    return gather(section, ways, 1 if options.quick else options.repeats, measure)


def _ways(section: str, options: argparse.Namespace) -> list[str]:
    """Return the ways that are available here; the reference is always one of them."""
    ways = [way for way in _WAYS[section] if IS_SUPPORTED or way != f"{OURS}interp"]
    chosen = wanted(ways, options.peer)
    return [way for way in ways if way in chosen or way == _REFERENCES[section]]


# ---- results ----


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Return the median, the least and the largest of the ratios of figures of the same round."""
    found = [a / b for a, b in zip(ours, theirs, strict=False) if b]
    return {"ratio": statistics.median(found), "low": min(found), "high": max(found)} if found else {}


def _add_ratios(sums: _Summary, name: str, ours: Sequence[float], theirs: Sequence[float]) -> None:
    for key, value in ratios(ours, theirs).items():
        sums[name if key == "ratio" else f"{name}, {key}"] = value


def _tasks_us(runs: Sequence[Figures], key: str = "wall_us") -> list[float]:
    return [statistics.median(run[key]) for run in runs]


def _sum_up_joblib(figures: Mapping[str, Sequence[Figures]], way: str) -> _Summary:
    runs = figures[way]
    sums = {key: statistics.median(_tasks_us(runs, key)) for key in ("wall_us", "cpu_us")}
    for other in _IN_JOBLIB:
        _add_ratios(sums, f"to {other}", _tasks_us(runs), _tasks_us(figures.get(other, ())))
    sums["start_s"] = statistics.median(run["start_s"] for run in runs)
    peaks = [run["peak_bytes"] for run in runs if run["peak_bytes"]]
    return sums | ({"peak_bytes": statistics.median(peaks)} if peaks else {})


def _all_s(runs: Sequence[Figures], names: Sequence[str]) -> list[float]:
    """Return the time of all rounds of the named workloads, and of opening the pool, of each run."""
    return [run["open_s"] + sum(sum(run["workloads"][name]["rounds_s"]) for name in names) for run in runs]


def _sum_up_workloads(figures: Mapping[str, Sequence[Figures]], way: str, references: Sequence[str]) -> _Summary:
    runs = figures[way]
    names = list(runs[0]["workloads"])
    sums: _Summary = {
        f"{name}_s": statistics.median(round_s for run in runs for round_s in run["workloads"][name]["rounds_s"])
        for name in names
    }
    sums["all_s"] = statistics.median(_all_s(runs, names))
    for other in references:
        _add_ratios(sums, f"to {other}", _all_s(runs, names), _all_s(figures.get(other, ()), names))
    return sums | {key: max(run[key] for run in runs) for key in ("threads", "service_threads", "running_threads")}


def sum_up(section: str, runs: Runs) -> dict[str, _Summary]:
    """Return the summary of each way."""
    if section == "joblib":
        return {way: _sum_up_joblib(runs.figures, way) for way in runs.figures}
    references = [_REFERENCES[section], *[f"{DASK}processes"] * (section == "dask")]
    return {way: _sum_up_workloads(runs.figures, way, references) for way in runs.figures}


# ---- tables ----


def _write(key: str, sums: _Summary) -> str:
    value = sums.get(key)
    if value is None:
        return "-"
    if key.startswith("to "):
        return f"{value:.2f} x ({sums[f'{key}, low']:.2f} to {sums[f'{key}, high']:.2f})"
    if key.endswith("_bytes"):
        return f"{value / 1e6:.0f} MB"
    return f"{value:.1f} us" if key.endswith("_us") else f"{value:.2f} s" if key.endswith("_s") else str(value)


def _format(section: str, summaries: Mapping[str, _Summary], n_workers: int) -> str:
    keys = [key for key in dict.fromkeys(key for sums in summaries.values() for key in sums) if ", " not in key]
    headings = [key.removesuffix("_s").removesuffix("_us").replace("_", " ") for key in keys]
    rows = [[way, *(_write(key, sums) for key in keys)] for way, sums in summaries.items()]
    titles = {
        "joblib": "a task that does nothing, one a batch; peak memory of tasks that take the same large array",
        "scikit-learn": "seconds, with the start of the workers; at most {} threads are due: {} workers and {} CPUs",
        "dask": "seconds of a round; all: of all rounds, with the start of the workers",
    }
    title = titles[section].format(n_workers + n_usable_cpus(), n_workers, n_usable_cpus())
    return f"{section}: {title}.\n\n{table(['', *headings], rows)}"


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__ or "")
    add_only(parser, _WAYS)
    add_peer(parser)
    add_workers(parser)
    add_repeats(parser, 3)
    return parser.parse_args()


def main() -> int:
    """Measure as the command line says, and print a table for each section."""
    options = _parse_arguments()
    record = Record(__doc__ or "", options.workers, options)
    has_failed = False
    for section in options.only or _WAYS:
        if missing := [name for name in _NEEDS[section] if importlib.util.find_spec(name) is None]:
            record.show(f"{section}: left out, since these are not installed: {', '.join(missing)}")
            continue
        runs = _measure(section, _ways(section, options), options)
        if section != "joblib":  # whose process has compared its results itself
            check_results(runs, _REFERENCES[section])
        summaries = sum_up(section, runs)
        record.show(_format(section, summaries, options.workers), runs.failure_text())
        record.put_section(section, runs.as_json(summaries))
        has_failed |= bool(runs.failures)
    return int(has_failed)


if __name__ == "__main__":
    finish(main)
