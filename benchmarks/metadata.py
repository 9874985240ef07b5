"""Metadata that later readers of a figure need: the machine, Python, the versions."""

import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from peers import default_start_method, missing_peers

_PACKAGES = (
    *("composable-pool", "numpy", "scipy", "pandas", "scikit-learn"),
    *("loky", "joblib", "cloudpickle", "threadpoolctl"),
)
_BUSY_CPUS = 0.25
_ROOT = Path(__file__).resolve().parents[1]
_DOCUMENT = ("docs/performance.md", "docs/pictures/figures.svg")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def current_commit() -> str:
    """Return the commit of this checkout, with "+" if it has uncommitted changes other than the document itself.

    It is "" if there is none, and if this Python has another pool_party than the checkout's.
    """
    package = importlib.util.find_spec("pool_party")
    if package is None or Path(str(package.origin)).resolve() != _ROOT / "pool_party" / "__init__.py":
        return ""
    is_changed = _git("status", "--porcelain", "--", ":(top)", *(f":(top,exclude){file}" for file in _DOCUMENT))
    commit = _git("rev-parse", "--short=10", "HEAD")
    return f"{commit}+" if commit and is_changed else commit


def _has_gil() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def collect_metadata(n_workers: int, packages: Iterable[str] = ()) -> dict[str, Any]:
    """Return a JSON-compatible description of this run, with versions of further packages."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "n_cpus": os.cpu_count(),
        "n_cpus_usable": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "has_gil": _has_gil(),
        "start_method": default_start_method(),
        "versions": _versions([*_PACKAGES, *packages]),
        "commit": current_commit(),
        "missing_peers": missing_peers(),
        "n_workers": n_workers,
        "load_average_before": list(os.getloadavg()),
    }


def format_machine(metadata: dict[str, Any]) -> str:
    """Return what a run has in common with others on its machine."""
    gil = "" if metadata["has_gil"] else " without GIL"
    cpus = f"{metadata['cpu']}, {metadata['n_cpus_usable']} usable CPUs of {metadata['n_cpus']}"
    return f"{cpus}, Linux {metadata['kernel']}, {metadata['python']}{gil}"


def format_run(metadata: dict[str, Any]) -> str:
    """Return what a run has for itself; what is known at its end only is left out before."""
    versions = ", ".join(f"{name} {number}" for name, number in metadata["versions"].items())
    date, taken_s = metadata["date"].replace("T", " ")[:16], metadata.get("taken_s")
    after = f", {metadata['load_average_after'][0]:.2f} afterwards" if "load_average_after" in metadata else ""
    taken = "" if taken_s is None else f" in {taken_s / 60:.1f} min"
    lines = [
        f"{metadata['n_workers']} workers, start method {metadata['start_method']}; {versions}. "
        f"Measured {date} UTC{taken}; load {metadata['load_average_before'][0]:.2f}{after}."
    ]
    if missing := metadata.get("missing_peers"):
        lines.append(f"Left out, since not installed or not in this Python: {', '.join(missing)}.")
    if (busy := metadata.get("busy_cpus_before", 0)) > _BUSY_CPUS:
        lines.append(f"Other programs kept {busy:.1f} CPUs busy when it began: measure it again.")
    if metadata.get("is_quick"):
        lines.append("**A quick look, which shows that everything runs: these figures are not a measurement.**")
    return "\n".join(lines)


def format_metadata(metadata: dict[str, Any]) -> str:
    """Return the whole description as lines for people."""
    commit = f", commit {metadata['commit']}" if metadata.get("commit") else ""
    return f"{format_machine(metadata)}{commit}.\n{format_run(metadata)}"
