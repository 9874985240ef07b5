"""`pool-party bench`: runs the benchmarks of the checkout that contains this package."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_NO_CHECKOUT = """\
pool-party: the benchmarks are not installed with the package. Clone its repository, and run there
    make bench                      in an environment of its own
    python benchmarks/bench.py      with a Python that has the checkout installed"""
_FAILED = 1
_SIGNALLED = 128  # plus the signal's number: the status that a shell reports for a program that a signal ended


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command, which benchmarks/bench.py has as well."""
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="which; see --list; default: all")
    add("--quick", action="store_true", help="a look, not a measurement, which leaves docs/performance.md alone")
    add("--document", action="store_true", help="only write the document again, from the figures that are there")
    add("--list", action="store_true", help="name the benchmarks, with how long each takes, and end")
    add("--beside-load", action="store_true", help="with cells: only dynamic against static, beside busy processes")


def _environment() -> dict[str, str]:
    """Return an environment in which every program that the benchmarks start finds this package."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))}


def run(arguments: argparse.Namespace, root: Path = _ROOT) -> int:
    """Run the benchmarks. Return the exit status of the command."""
    program = root / "benchmarks" / "bench.py"
    if not program.is_file():
        print(_NO_CHECKOUT, file=sys.stderr)
        return _FAILED
    flags = ("quick", "document", "list", "beside_load")
    options = [f"--{name.replace('_', '-')}" for name in flags if getattr(arguments, name)]
    with subprocess.Popen(
        [sys.executable, str(program), *options, "--", *arguments.names], env=_environment()
    ) as child:
        try:
            status = child.wait()
        except KeyboardInterrupt:  # the child got the signal as well: wait while it saves its measurements
            child.wait()
            raise
    return status if status >= 0 else _SIGNALLED - status
