"""The benchmark results of one machine: the JSON files of a folder."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

type Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Found:
    """Figures by benchmark, as its program wrote them; `unreadable` names files without such JSON."""

    benchmarks: dict[str, Json]
    unreadable: list[str] = field(default_factory=list)

    def section(self, benchmark: str, section: str) -> Json:
        """Return a section by subject; empty if it was not measured."""
        sections: Json = self.benchmarks.get(benchmark, {}).get("sections", {})
        found: Json = sections.get(section, {})
        return found

    def figure(self, benchmark: str, section: str, subject: str, key: str = "median") -> float | None:
        """Return a figure of a summary; None if it was not measured."""
        value = self.section(benchmark, section).get(subject, {}).get("summary", {}).get(key)
        return float(value) if isinstance(value, int | float) else None

    def is_quick(self, benchmark: str) -> bool:
        """Whether the figures come from a quick run."""
        return bool(self.benchmarks.get(benchmark, {}).get("metadata", {}).get("is_quick"))


def measured(section: Json) -> Iterator[tuple[str, Json]]:
    """Yield the subjects of a section that have figures."""
    for subject, found in section.items():
        if isinstance(found, dict) and "summary" in found:
            yield subject, found


def failures(section: Json) -> Iterator[tuple[str, str]]:
    """Yield the subjects of a section without figures, and why."""
    for subject, found in section.items():
        if isinstance(found, dict) and "failure" in found:
            yield subject, found["failure"]


def _read(path: Path) -> Json | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("metadata"), dict) else None


def _merge(whole: Json, part: Json) -> Json:
    """Return figures with those of another run of the same program added (lists, and sections)."""
    merged = dict(whole)
    for key, value in part.items():
        if isinstance(value, list) and isinstance(whole.get(key), list):
            merged[key] = [*whole[key], *value]
        elif key == "sections":
            merged[key] = whole.get(key, {}) | value
    return merged


def load(folder: Path) -> Found:
    """Return the figures of a folder: those of NAME.json, or the combined figures of NAME-PART.json."""
    names = {path.stem for path in folder.glob("*.json")}
    found: dict[str, Json] = {}
    unreadable: list[str] = []
    for path in sorted(folder.glob("*.json")):
        whole = _name_of(path.stem)
        if whole != path.stem and whole in names:
            continue  # outdated parts of a benchmark that has since been run as a whole
        if (figures := _read(path)) is None:
            unreadable.append(path.name)
        else:
            found[whole] = _merge(found[whole], figures) if whole in found else figures
    return Found(found, unreadable)


def _name_of(stem: str) -> str:
    """Return the benchmark that a file belongs to: cells-process is a part of cells, wake-up is not one of wake."""
    from suite import BENCHMARKS

    return stem if stem in BENCHMARKS else stem.partition("-")[0]
