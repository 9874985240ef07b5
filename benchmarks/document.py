"""The document of a run: its commit, date and machine, the goals, and what each benchmark has printed."""

import json
import re
from pathlib import Path

from goals import Found, Json, format_goals
from metadata import format_machine, format_run
from picture import draw
from suite import BENCHMARKS

MARK = "<!-- `pool-party bench` replaces all that follows. -->\n"
_BELIEVE = (
    "Pools stand side by side because they were measured in one run, in turns. Believe ratios rather than figures."
)
_PICTURE = "Times of a call, and of NumPy in uneven tasks, for pool_party and other pools"
_FOLDERS = re.compile(r"(?<![\w./])(?:/[\w.+-]+)+/(?=[\w.+-])")  # of a path, as messages of errors have them


def read_figures(folder: Path) -> Found:
    """Return what each benchmark has written to a folder.

    Raises:
        ValueError: if there is nothing, or if not all of it is of the same commit, Python and machine.
    """
    files = {name: folder / f"{name}.json" for name in BENCHMARKS}
    found: Found = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    if not found:
        raise ValueError("there are no figures of this commit; run some benchmarks first")
    runs = [figures["metadata"] for figures in found.values()]
    if not all(is_clean(run["commit"]) for run in runs):
        raise ValueError("there were uncommitted changes during the run, so no commit has these figures")
    if len({(run["commit"], format_machine(run)) for run in runs}) > 1:
        raise ValueError("not all figures are of the same commit, Python and machine; remove those of the others")
    return found


def is_clean(commit: str) -> bool:
    """Whether a commit, as `metadata.current_commit` returns it, has all that was measured."""
    return bool(commit) and not commit.endswith("+")


def _section(name: str, figures: Json) -> str:
    benchmark = BENCHMARKS[name]
    heading = f"## {benchmark.question} (`benchmarks/{benchmark.program.name}`)"
    return f"{heading}\n\n{format_run(figures['metadata'])}\n\n{'\n'.join(figures['text']).strip()}"


def format_document(found: Found, has_picture: bool) -> str:
    """Return the part of the document that is written from figures."""
    runs = [figures["metadata"] for figures in found.values()]
    days = sorted({run["date"][:10] for run in runs})
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    parts = [f"## The run\n\nCommit {runs[0]['commit']}, {when}: {format_machine(runs[0])}. {_BELIEVE}"]
    if missing := [name for name in BENCHMARKS if name not in found]:
        parts.append(f"Not in this run: {', '.join(missing)}.")
    if has_picture:
        parts.append(f"![{_PICTURE}](pictures/figures.svg)")
    parts += ["## Goals", format_goals(found), *(_section(name, figures) for name, figures in found.items())]
    return _FOLDERS.sub("", "\n\n".join(parts)) + "\n"


def write_document(found: Found, document: Path) -> None:
    """Write a document with its picture beside it; what stands before the mark, if there is a document, stays."""
    before = document.read_text().partition(MARK)[0] if document.exists() else "# Performance\n\n"
    if picture := draw(found):
        file = document.parent / "pictures" / "figures.svg"
        file.parent.mkdir(exist_ok=True)
        file.write_text(picture)
    document.write_text(f"{before}{MARK}\n{format_document(found, bool(picture))}")
