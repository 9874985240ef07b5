"""Which packages with extension modules load in workers of kind "interp", for `pool-party doctor`.

    python -c 'from pool_party.cli.packages import main; main()' PACKAGE

tries one in a process of its own, which may crash, and prints the result as JSON.
"""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader

from pool_party._core.errors import describe_exit
from pool_party.cli.demo.report import format_table
from pool_party.workers.interp.extensions import IS_SUPPORTED, PACKAGES, what_is_missing

_CHECK_LIMIT_S = 120.0
_DISTRIBUTIONS = {"sklearn": "scikit-learn"}  # names that differ from those of the packages
# What is imported to try a package: that which brings its extension modules along.
_MODULES = {
    "scipy": ("scipy.linalg", "scipy.optimize", "scipy.sparse", "scipy.special", "scipy.stats", "scipy.signal"),
    "sklearn": ("sklearn.linear_model", "sklearn.ensemble", "sklearn.cluster"),
}


@dataclass(frozen=True)
class Package:
    """A package as it is installed here. version: None if it is not, "?" if it does not say."""

    name: str
    version: str | None
    has_own_importer: bool = False  # an editable install, whose extension modules do not come past our loader

    @property
    def tested(self) -> str | None:
        """The version that our tests were run with, if it is one of the list."""
        return PACKAGES.get(self.name)


def find(name: str) -> Package:
    """Looks for a package without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a module that was made by hand has no spec
        spec = None
    if spec is None:
        return Package(name, None)
    try:
        version = importlib.metadata.version(_DISTRIBUTIONS.get(name, name))
    except importlib.metadata.PackageNotFoundError:
        version = "?"
    return Package(name, version, has_own_importer=type(spec.loader) is not SourceFileLoader)


def judge(package: Package) -> str:
    """Whether it will load, to judge by this Python, its version and how it is installed."""
    if package.version is None:
        return "not installed"
    if package.tested is None:
        return "not known"
    if not IS_SUPPORTED:
        return "no"
    if package.has_own_importer:
        return "no: an editable install"
    return "yes" if package.version == package.tested else "very likely: another version was tested"


def advise(packages: Iterable[Package]) -> Iterator[str]:
    """What can be done where something will not load."""
    found = [package for package in packages if package.version is not None]
    if not IS_SUPPORTED:
        yield f"these need {what_is_missing()}: use kind='process' for them"
    elif any(package.tested and package.has_own_importer for package in found):
        yield "an editable install loads extension modules past our loader: install a wheel, or use kind='process'"


def describe(checked: Sequence[str] | None = None) -> Iterator[str]:
    """A table of the packages. checked: names of those to try; empty: all of the list; None: none."""
    packages = [find(name) for name in dict.fromkeys([*PACKAGES, *(checked or ())])]
    headings = ["package", "installed", "tested", "will load"]
    rows = [[p.name, p.version or "-", p.tested or "-", judge(p)] for p in packages]
    failures = []
    if checked is not None:
        headings.append("tried")
        for package, row in zip(packages, rows, strict=True):
            is_wanted = package.version is not None and (not checked or package.name in checked)
            result = try_in_process(package.name) if is_wanted and judge(package) != "no" else "-"
            cell, _, reason = result.partition(": ")
            row.append(cell)
            failures += [f"{package.name} {result}"] if reason else []
    yield format_table(headings, rows)
    yield from failures
    yield from advise(packages)


# ---- trying ----


def try_in_process(name: str) -> str:
    """Imports a package in an interpreter worker of another process; how long that took, or what went wrong."""
    code = "from pool_party.cli.packages import main; main()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    command = [sys.executable, "-c", code, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_CHECK_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"failed: no result within {_CHECK_LIMIT_S:.0f} s"
    if done.returncode:
        return f"failed: the process {describe_exit(done.returncode)}"
    result: str = json.loads(done.stdout.splitlines()[-1])
    return result


def _import(modules: Iterable[str]) -> float:
    """In the worker: seconds for the imports."""
    started_s = time.perf_counter()
    for name in modules:
        __import__(name)
    return time.perf_counter() - started_s


def try_here(name: str, extensions: Sequence[str] | None) -> str:
    """Imports a package in an interpreter worker of this process."""
    from pool_party import InterpreterPool

    with InterpreterPool(1, extensions=extensions) as pool:
        try:
            taken_s = pool.apply(_import, (_MODULES.get(name, (name,)),))
            text = f"imported in {taken_s:.2f} s"
        except Exception as error:
            text = f"failed: {type(error).__name__}: {error}"
    pool.join()
    return text


def main() -> None:
    """Tries the package that the command line names, and at the user's own risk if that fails."""
    name = sys.argv[1]
    result = try_here(name, None)
    if name not in PACKAGES and IS_SUPPORTED and result.startswith("failed: ImportError"):
        result = try_here(name, [name])
        result += "" if ": " in result else f", with extensions=[{name!r}] only"
    print(json.dumps(result))
