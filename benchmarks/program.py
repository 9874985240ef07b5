"""Common parts of the programs of this folder: options, rounds of measurements, and the file of figures."""

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fresh import Figures
from metadata import collect_metadata, format_metadata

_INTERRUPTED = 130  # the exit status that shells report after SIGINT
_LOOK_S = 1.0
_TOLERANCE = 1e-7  # relative; the order of additions may differ
KINDS = ("thread", "process", "interp")
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}

type Result = tuple[Figures | None, str]  # what `fresh.end` returns


def n_usable_cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def make_parser(doc: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every program: --quick and --json."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer, shorter runs: shows that everything runs, measures little")
    add("--json", type=Path, metavar="FILE", help="write all figures there, with metadata")
    return parser


def add_workers(parser: argparse.ArgumentParser, several: bool = False, default: str = "") -> None:
    """Add --workers: a number, or `several` numbers, whose default the program computes and describes."""
    if several:
        parser.add_argument("--workers", nargs="+", type=int, metavar="N", help=f"workers per pool; default: {default}")
        return
    parser.add_argument(
        "--workers",
        type=int,
        default=n_usable_cpus(),
        metavar="N",
        help="workers per pool; default: the CPUs that this process may use",
    )


def add_repeats(parser: argparse.ArgumentParser, default: int | None) -> None:
    """Add --repeats; without a default, each section has its own."""
    shown = "each section's own" if default is None else default
    help_text = f"runs of which the tables have the median; default: {shown}; with --quick: 1"
    parser.add_argument("--repeats", type=int, default=default, metavar="N", help=help_text)


def add_kinds(parser: argparse.ArgumentParser) -> None:
    """Add --kinds."""
    help_text = f"kinds of workers; default: {' '.join(KINDS)}"
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help=help_text)


def add_only(parser: argparse.ArgumentParser, sections: Iterable[str]) -> None:
    """Add --only, which chooses among sections."""
    names = list(sections)
    help_text = f"one of {', '.join(names)}; may be given more than once"
    parser.add_argument("--only", action="append", choices=names, metavar="SECTION", help=help_text)


def add_peer(parser: argparse.ArgumentParser) -> None:
    """Add --peer; see `wanted`."""
    help_text = "leave out what has no TEXT in its name; may be given more than once"
    parser.add_argument("--peer", action="append", default=[], metavar="TEXT", help=help_text)


def wanted(names: Iterable[str], texts: Sequence[str]) -> list[str]:
    """Return the names that contain one of the texts of --peer; all names if there are no texts."""
    return [name for name in names if not texts or any(text in name for text in texts)]


def say(text: str) -> None:
    """Print progress on standard error."""
    print(text, file=sys.stderr, flush=True)


class Runs:
    """The figures of every subject so far, and the first failure of each failed subject."""

    def __init__(self) -> None:
        self.figures: dict[str, list[Figures]] = {}
        self.failures: dict[str, str] = {}

    def add(self, subject: str, result: Result) -> None:
        """Add the result of `fresh.end`."""
        figures, failure = result
        if figures is None:
            self.failures.setdefault(subject, failure)
        else:
            self.figures.setdefault(subject, []).append(figures)

    def failure_text(self, where: str = "") -> str:
        """Return the failures as a list in Markdown; the empty string if there are none."""
        return "\n".join(f"- not measured: {where}{subject}: {failure}" for subject, failure in self.failures.items())

    def as_json(self, summaries: Mapping[str, Any]) -> dict[str, Any]:
        """Return a section of the record: for each subject its summary and its runs, or why there are none."""
        found = {name: {"summary": summary, "runs": self.figures[name]} for name, summary in summaries.items()}
        return found | {name: {"failure": reason} for name, reason in self.failures.items()}


def gather(label: str, subjects: Sequence[str], n_repeats: int, measure: Callable[[str], Result]) -> Runs:
    """Measure all subjects once, then all again in reverse order, and so on.

    A short slowdown of the machine therefore affects all of them, and a long one affects different ones each time. A
    subject that failed is not measured again.
    """
    runs = Runs()
    for repeat in range(n_repeats):
        say(f"{label}: round {repeat + 1} of {n_repeats}")
        for subject in subjects if repeat % 2 == 0 else reversed(subjects):
            if subject not in runs.failures:
                runs.add(subject, measure(subject))
    return runs


def without_samples(figures: Figures) -> Figures:
    """Return figures with lists of samples replaced by their medians."""
    return {key: statistics.median(value) if isinstance(value, list) else value for key, value in figures.items()}


def medians(runs: Sequence[Figures]) -> dict[str, float]:
    """Return the median of each figure over all runs, which have the same ones."""
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` % of the values do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def _are_equal(there: Any, here: Any) -> bool:
    if isinstance(here, list):
        return len(there) == len(here) and all(map(_are_equal, there, here))
    return math.isclose(there, here, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def check_results(runs: Runs, reference: str) -> None:
    """Turn each subject whose results differ from the reference's into a failure; drop all results.

    The figures of each run have {"workloads": {NAME: {"results": [...], ...}}}.
    """
    found = {subject: [run["workloads"] for run in figures] for subject, figures in runs.figures.items()}
    results = {
        subject: [{name: w.pop("results") for name, w in run.items()} for run in found[subject]] for subject in found
    }
    expected = results.get(reference, [None])[0]
    for subject in found:
        if expected is None:
            runs.failures.setdefault(subject, f"there are no results of {reference} to compare with")
            continue
        wrong = {name for run in results[subject] for name in run if not _are_equal(run[name], expected[name])}
        if wrong:
            runs.failures[subject] = f"other results than {reference}: {', '.join(sorted(wrong))}"
            del runs.figures[subject]


def _busy_cpus() -> float:
    """Return how many CPUs other programs use while this one waits; load averages only describe the past."""
    from pool_party._measuring.meter import cpu_of_machine_s

    before_s, started_s = cpu_of_machine_s(), time.monotonic()
    time.sleep(_LOOK_S)
    return (cpu_of_machine_s() - before_s) / (time.monotonic() - started_s)


class Record:
    """The results of a run: its tables are printed, and all of it is rewritten to `options.json` after every part."""

    def __init__(self, doc: str, n_workers: int, options: argparse.Namespace) -> None:
        self._path: Path | None = options.json
        self._started_s = time.monotonic()
        self._metadata = collect_metadata(n_workers) | {"is_quick": options.quick}
        if not options.quick:
            self._metadata["busy_cpus_before"] = round(_busy_cpus(), 2)
        self._parts: dict[str, Any] = {}
        self._text: list[str] = []
        print(f"{doc.splitlines()[0]}\n\n{format_metadata(self._metadata)}\n", flush=True)

    def show(self, *paragraphs: str) -> None:
        """Print Markdown, and keep it for the document; empty paragraphs are left out."""
        text = "\n\n".join(filter(None, paragraphs))
        print(f"{text}\n", flush=True)
        self._text += [*text.splitlines(), ""]
        self._write()

    def put(self, key: str, value: Any) -> None:
        """Set a part of the record."""
        self._parts[key] = value
        self._write()

    def put_section(self, name: str, value: Mapping[str, Any]) -> None:
        """Add a section to part "sections"."""
        self.put("sections", self._parts.get("sections", {}) | {name: value})

    def _write(self) -> None:
        if self._path is None:
            return
        self._metadata["load_average_after"] = list(os.getloadavg())
        self._metadata["taken_s"] = round(time.monotonic() - self._started_s, 1)
        unfinished = self._path.with_name(f"{self._path.name}.part")
        unfinished.write_text(
            json.dumps({"metadata": self._metadata} | self._parts | {"text": self._text}, indent=1) + "\n"
        )
        unfinished.replace(self._path)


def finish(main: Callable[[], int]) -> NoReturn:
    """End this process with the exit status that `main` returns; Ctrl-C prints no traceback."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
