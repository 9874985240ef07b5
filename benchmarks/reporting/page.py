"""The whole report: the machine, the goals, and the part of every benchmark."""

from collections.abc import Callable
from pathlib import Path

from suite import BENCHMARKS
from tables import table

from reporting import clusters, management, nested, packing, parts, science, transfers
from reporting.drawing import can_draw
from reporting.found import Found, Json, load
from reporting.generic import generic
from reporting.goals import format_goals

_PARTS: dict[str, Callable[[Found], parts.Part]] = {
    "dispatch": parts.dispatch,
    "modes": parts.modes,
    "cells": nested.cells,
    "scaling": nested.scaling,
    "overhead": management.overhead,
    "wake-up": management.wake_up,
    "transfer": transfers.transfer,
    "packing": packing.packing,
    "memory": parts.memory,
    "tracing": management.tracing,
    "science": science.science,
    "cluster-size": clusters.cluster_size,
}
_TITLES = {
    "dispatch": "Handing out tasks",
    "modes": "Workloads by modes",
    "cells": "Nested parallelism",
    "scaling": "Nested parallelism by the number of workers",
    "overhead": "Managing parallelism",
    "wake-up": "Waking workers",
    "transfer": "Transfers",
    "objects": "Objects that tasks share, and those of scripts",
    "packing": "Packing",
    "memory": "Memory",
    "tracing": "Traces",
    "profile-task": "Where the time of a task goes",
    "science": "NumPy, SciPy, pandas and scikit-learn",
    "libraries": "joblib, scikit-learn and Dask in pools",
    "asyncio-calls": "Calls that asyncio awaits",
    "cluster": "Tasks on a Dask cluster",
    "cluster-size": "A pool on many machines",
    "unmodified": "Programs as they are",
}
_BUSY_CPUS = 0.25
_QUICK = "**A quick look, which shows that everything runs: these figures are not a measurement.**"


class NothingThere(Exception):
    """A folder has no figures to report."""


def _machine(found: Found) -> str:
    """Return the metadata of the latest run."""
    latest = max((figures["metadata"] for figures in found.benchmarks.values()), key=lambda data: data.get("date", ""))
    versions = ", ".join(f"{name} {number}" for name, number in latest.get("versions", {}).items())
    gil = "" if latest.get("has_gil", True) else ", without GIL"
    return (
        f"{latest.get('cpu', 'unknown CPU')}, "
        f"{latest.get('n_cpus_usable', '?')} usable CPUs of {latest.get('n_cpus', '?')}, "
        f"Linux {latest.get('kernel', '?')}, {latest.get('python', '?')}{gil}; {versions}."
    )


def _when(name: str, metadata: Json) -> list[str]:
    before, after = (metadata.get(f"load_average_{when}", [0])[0] for when in ("before", "after"))
    taken_s, commit = metadata.get("taken_s"), metadata.get("commit", "")
    return [
        name,
        metadata.get("date", "").replace("T", " ")[:16],
        "-" if taken_s is None else f"{taken_s / 60:.1f} min",
        f"{before:.2f}, {after:.2f}",
        commit or "-",
        "quick" if metadata.get("is_quick") else "",
    ]


def _runs(found: Found) -> str:
    rows = [_when(name, figures["metadata"]) for name, figures in found.benchmarks.items()]
    lines = [table(["benchmark", "date (UTC)", "took", "load before, after", "commit", ""], rows, is_text=True)]
    for name, figures in found.benchmarks.items():
        if missing := figures["metadata"].get("missing_peers"):
            lines.append(f"- {name}: left out, since not installed or not in this Python: {', '.join(missing)}")
        if (busy := figures["metadata"].get("busy_cpus_before", 0)) > _BUSY_CPUS:
            lines.append(f"- {name}: other programs kept {busy:.1f} CPUs busy when it began: measure it again")
    lines += [f"- {name} could not be read" for name in found.unreadable]
    return "\n\n".join((lines[0], "\n".join(lines[1:]))).strip()


def _goals(found: Found) -> str:
    quick = [name for name in found.benchmarks if found.is_quick(name)]
    note = f"\n\nNot to be believed, since only a quick look was taken: {', '.join(quick)}." if quick else ""
    return format_goals(found) + note


def _section(name: str, found: Found, folder: Path) -> str:
    """Return the part of a benchmark, and draw its picture."""
    part = (_PARTS.get(name) or (lambda figures: generic(name, figures)))(found)
    lines = [f"## {_TITLES.get(name, name)}"]
    if name in BENCHMARKS:
        lines.append(f"{BENCHMARKS[name].question} (`benchmarks/{BENCHMARKS[name].program.name}`)")
    if found.is_quick(name):
        lines.append(_QUICK)
    if part.picture and can_draw():
        lines.append(f"![{name}]({part.picture(folder / f'{name}.svg').name})")
    return "\n\n".join((*lines, part.text))


def _safe_section(name: str, found: Found, folder: Path) -> str:
    """Return the part of a benchmark, or why there is none: figures of another version affect only themselves."""
    try:
        return _section(name, found, folder)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        return f"## {_TITLES.get(name, name)}\n\nThe figures cannot be shown ({type(error).__name__}: {error})."


def write_report(folder: Path) -> Path:
    """Write report.md and its pictures from the figures in a folder; return its path.

    Raises:
        NothingThere: if there are none.
    """
    found = load(folder)
    if not found.benchmarks:
        raise NothingThere(f"{folder} has no figures; run some benchmarks first")
    order = [name for name in _TITLES if name in found.benchmarks]
    order += [name for name in found.benchmarks if name not in _TITLES]
    intro = (
        "Written by `pool-party bench` (`make bench`) from the JSON files beside it. Pools stand side by side because "
        "they were measured in one run, in turns; believe ratios rather than figures. Lower is better unless it says "
        "otherwise. Ours are blue bars and thick curves; the bound is a red line."
    )
    head = ["# Benchmarks", intro, _machine(found), "## Goals", _goals(found), "## Runs", _runs(found)]
    if not can_draw():
        head.append("There are no pictures, since matplotlib is not installed.")
    path = folder / "report.md"
    path.write_text("\n\n".join((*head, *(_safe_section(name, found, folder) for name in order))) + "\n")
    return path
