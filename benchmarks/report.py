"""The report: the goals, and the text that each benchmark has printed, with its question, machine and load."""

import json
from pathlib import Path

from goals import Json, format_goals
from metadata import format_metadata
from suite import BENCHMARKS

_INTRO = (
    "Written by `pool-party bench` (`make bench`) from the JSON files beside it. Pools stand side by side because "
    "they were measured in one run, in turns; believe ratios rather than figures."
)


def _read(path: Path) -> Json | None:
    try:
        found = json.loads(path.read_text())
        return found if isinstance(found["metadata"], dict) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _section(name: str, found: Json) -> str:
    heading = name
    if benchmark := BENCHMARKS.get(name):
        heading = f"{benchmark.question} (`benchmarks/{benchmark.program.name}`)"
    text = "\n".join(found.get("text", [f"{name}.json is of a version that wrote no tables."]))
    return f"## {heading}\n\n{format_metadata(found['metadata'])}\n\n{text.strip()}"


def write_report(folder: Path) -> Path | None:
    """Write report.md from the figures in a folder; return its path, or None if there are no figures."""
    read = {path.stem: _read(path) for path in sorted(folder.glob("*.json"))}
    names = [name for name in BENCHMARKS if name in read] + [name for name in read if name not in BENCHMARKS]
    found = {name: figures for name in names if (figures := read[name])}
    if not found:
        return None
    parts = ["# Benchmarks", _INTRO, "## Goals", format_goals(found)]
    if quick := [name for name, figures in found.items() if figures["metadata"].get("is_quick")]:
        parts.append(f"Not to be believed, since only a quick look was taken: {', '.join(quick)}.")
    parts += [f"{name}.json could not be read." for name in names if name not in found]
    parts += [_section(name, figures) for name, figures in found.items()]
    path = folder / "report.md"
    path.write_text("\n\n".join(parts) + "\n")
    return path
