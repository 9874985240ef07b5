"""Metadata that later readers of a figure need: the machine, Python, the versions."""

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


def _commit() -> str:
    """Return the commit of this checkout, with "+" if it has uncommitted changes; "" if unknown."""
    describe = ["git", "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
    try:
        found = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:
        return ""
    return found.stdout.strip()


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
        "commit": _commit(),
        "missing_peers": missing_peers(),
        "n_workers": n_workers,
        "load_average_before": list(os.getloadavg()),
    }


def _format_run(metadata: dict[str, Any]) -> str:
    """Return when and under which load it ran; what is known at its end only is left out before."""
    date, taken_s = metadata["date"].replace("T", " ")[:16], metadata.get("taken_s")
    commit = f", commit {metadata['commit']}" if metadata.get("commit") else ""
    after = f", {metadata['load_average_after'][0]:.2f} afterwards" if "load_average_after" in metadata else ""
    taken = "" if taken_s is None else f" in {taken_s / 60:.1f} min"
    return f"Measured {date} UTC{taken}{commit}; load {metadata['load_average_before'][0]:.2f}{after}."


def format_metadata(metadata: dict[str, Any]) -> str:
    """Return the description as lines for people."""
    versions = ", ".join(f"{name} {number}" for name, number in metadata["versions"].items())
    gil = "" if metadata["has_gil"] else " without GIL"
    lines = [
        f"{metadata['n_workers']} workers, {metadata['n_cpus_usable']} usable CPUs of {metadata['n_cpus']} "
        f"({metadata['cpu']}), Linux {metadata['kernel']}, {metadata['python']}{gil}, "
        f"start method {metadata['start_method']}; {versions}.",
        _format_run(metadata),
    ]
    if missing := metadata.get("missing_peers"):
        lines.append(f"Left out, since not installed or not in this Python: {', '.join(missing)}.")
    if (busy := metadata.get("busy_cpus_before", 0)) > _BUSY_CPUS:
        lines.append(f"Other programs kept {busy:.1f} CPUs busy when it began: measure it again.")
    if metadata.get("is_quick"):
        lines.append("**A quick look, which shows that everything runs: these figures are not a measurement.**")
    return "\n".join(lines)
