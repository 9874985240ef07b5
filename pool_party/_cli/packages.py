"""Which packages with extension modules load in workers of kind "interp", for `pool-party doctor`.

    python -c 'from pool_party._cli.packages import main; main()' PACKAGE

tries one package in a process of its own, which may crash, and prints the result as JSON.
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
from importlib.machinery import ExtensionFileLoader, SourceFileLoader

from pool_party import _native
from pool_party._ground.errors import describe_exit
from pool_party._measuring.table import format_table
from pool_party._workers.interp.extensions import IS_SUPPORTED, what_is_missing
from pool_party._workers.interp.known import AT_RISK, PACKAGES, REFUSED, TESTED, why_refused

_CHECK_LIMIT_S = 120.0
_DISTRIBUTIONS = {  # package -> its distribution, if the names differ
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "pywt": "pywavelets",
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "yaml": "pyyaml",
    "rpds": "rpds-py",
    "zmq": "pyzmq",
    "nacl": "pynacl",
    "google": "protobuf",
}
# The modules that are imported to try a package, because they load its extension modules.
_MODULES = {
    "scipy": ("scipy.linalg", "scipy.optimize", "scipy.sparse", "scipy.special", "scipy.stats", "scipy.signal"),
    "sklearn": ("sklearn.linear_model", "sklearn.ensemble", "sklearn.cluster"),
}
# package -> the sentence with which interpreters refuse it, or the module in it that crashes
_REFUSALS = {name.partition(".")[0]: why_refused(name) for name in (*REFUSED, *(AT_RISK if IS_SUPPORTED else ()))}


@dataclass(frozen=True)
class Package:
    """A package as installed here.

    version: None if it is not installed, "?" if it does not tell its version.
    """

    name: str
    version: str | None
    has_own_importer: bool = False  # an editable install: its extension modules bypass our loader

    @property
    def tested(self) -> str | None:
        """The version that was tested or tried, or None if it is not in our list for this Python."""
        return (PACKAGES if IS_SUPPORTED else TESTED).get(self.name)

    @property
    def refusal(self) -> str | None:
        """The sentence with which interpreters refuse it, or None if they do not."""
        return _REFUSALS.get(self.name)


def find(name: str) -> Package:
    """Look for a package without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a hand-made module has no spec
        spec = None
    if spec is None:
        return Package(name, None)
    try:
        version = importlib.metadata.version(_DISTRIBUTIONS.get(name, name))
    except importlib.metadata.PackageNotFoundError:
        version = "?"
    usual = (SourceFileLoader, ExtensionFileLoader, type(None))  # a namespace, such as `google`, has no loader yet
    return Package(name, version, has_own_importer=type(spec.loader) not in usual)


def judge(package: Package) -> str:
    """Return whether the package will load, judging by this Python, its version and how it is installed."""
    if package.version is None:
        return "not installed"
    if package.refusal is not None:
        return "only with extensions=" if package.name in AT_RISK else "no: it crashes"
    if package.tested is None:
        return "not known"
    if not IS_SUPPORTED:
        return "no"
    if package.has_own_importer:
        return "no: an editable install"
    return "yes" if package.version == package.tested else "very likely: another version was tested"


def advise(packages: Iterable[Package]) -> Iterator[str]:
    """Yield what can be done if a package will not load."""
    found = [package for package in packages if package.version is not None]
    yield from (package.refusal for package in found if package.refusal is not None)
    if not IS_SUPPORTED:
        yield f"these need {what_is_missing()}: use kind='process' for them"
    elif any(package.tested and package.has_own_importer for package in found):
        yield "an editable install loads extension modules past our loader: install a wheel, or use kind='process'"


def describe(checked: Sequence[str] | None = None) -> Iterator[str]:
    """Yield a table of the packages that are known and installed, and of `checked`.

    checked: the names of those to try; empty: all in the table; None: none.
    """
    known = [name for name in (*PACKAGES, *_REFUSALS) if not name.startswith("_")]
    packages = [find(name) for name in dict.fromkeys([*known, *(checked or ())])]
    packages = [package for package in packages if package.version is not None or package.name in (checked or ())]
    headings = ["package", "installed", "tested", "will load"]
    rows = [[p.name, p.version or "-", p.tested or "-", judge(p)] for p in packages]
    failures = []
    if checked is not None:
        headings.append("tried")
        for package, row in zip(packages, rows, strict=True):
            is_wanted = package.version is not None and (not checked or package.name in checked)
            can_be_tried = (not package.refusal or package.name in AT_RISK) and judge(package) != "no"
            result = try_in_process(package.name) if is_wanted and can_be_tried else "-"
            cell, _, reason = result.partition(": ")
            row.append(cell)
            failures += [f"{package.name} {result}"] if reason else []
    yield format_table(headings, rows)
    yield from failures
    yield from advise(packages)


# ---- trying ----


def try_in_process(name: str) -> str:
    """Import a package in an interpreter worker of another process. Return how long it took, or what went wrong."""
    code = "from pool_party._cli.packages import main; main()"
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


def _import(modules: Iterable[str]) -> tuple[float, int, int]:
    """Import modules, in the worker. Return the seconds that it took, and the mappings and bytes of static TLS."""
    from pool_party._workers.interp import extensions
    from pool_party._workers.interp.elf import Dynamic

    started_s = time.perf_counter()
    before, _ = _native.count_mappings()
    for name in modules:
        __import__(name)
    taken_s = time.perf_counter() - started_s
    n_tls = sum(Dynamic(path).static_tls_bytes for path in extensions.copied())
    return taken_s, _native.count_mappings()[0] - before, n_tls


def try_here(name: str, extensions: Sequence[str] | None) -> str:
    """Import a package in an interpreter worker of this process. Return how long it took, or what went wrong."""
    from pool_party import InterpreterPool

    with InterpreterPool(1, extensions=extensions) as pool:
        try:
            taken_s, n_mappings, n_tls = pool.apply(_import, (_MODULES.get(name, (name,)),))
            text = f"imported in {taken_s:.2f} s, {n_mappings} mappings"
            if n_tls:
                text += f", {n_tls} bytes of static TLS"
        except Exception as error:
            text = f"failed: {type(error).__name__}: {error}"
    pool.join()
    return f"{text}{''.join(_effects())}"


def _effects() -> Iterator[str]:
    """Yield what the copies of interpreters have done to this process."""
    n_process, n_file, _ = _native.copies_locks()
    if n_process or n_file:
        yield f", locks files by {' and '.join(['fcntl'] * bool(n_process) + ['flock'] * bool(n_file))}"
    if causes := sorted({os.path.basename(cause) for cause in _native.staying()}):
        yield f", stays loaded ({', '.join(causes)})"


def main() -> None:
    """Try the package named on the command line. If that fails, try it with the option `extensions`."""
    name = sys.argv[1]
    result = try_here(name, None)
    if name not in PACKAGES and IS_SUPPORTED and result.startswith("failed: ImportError"):
        result = try_here(name, [name])
        result += "" if ": " in result else f", with extensions=[{name!r}] only"
    print(json.dumps(result))
