"""Runs benchmarks one after the other, and makes a document of the results of all.

    python benchmarks/bench.py [NAME...] [--quick]
    python benchmarks/bench.py cells --beside-load [--quick]
    python benchmarks/bench.py --list
    python benchmarks/bench.py --document [--quick]

Each benchmark writes its figures and tables to results/COMMIT/NAME.json, which git ignores. A run of all writes them
into docs/performance.md, which is in git: so it measures a commit, and no uncommitted changes. A quick run may measure
these, and shows its tables only; of a commit, it writes results/COMMIT-quick/performance.md, which git ignores, too.
A benchmark that fails does not affect the others.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from checkout import make_importable
from suite import BENCHMARKS, HERE, Benchmark, n_usable_cpus

_BUSY_SHARE = 0.25  # of the CPUs: under a higher load the figures are unreliable
_PATIENCE = 5.0  # a benchmark is ended once it takes this many times longer than expected
_LEAST_LIMIT_S = 600.0
_LIMIT_BESIDE_S = 3600.0  # five minutes on an idle machine can take this long on a busy one
_GRACE_S = 15.0  # for a program that was interrupted to end its child processes
_SOME_FAILED = 1  # the exit status of a program that reports a failed measurement
_REFUSED = 2  # the exit status if nothing was measured
_DOCUMENT = HERE.parent / "docs" / "performance.md"


def _describe(is_quick: bool) -> str:
    width = max(map(len, BENCHMARKS))
    lines = [
        f"  {benchmark.name:<{width}}  {benchmark.minutes:4.1f}  {benchmark.quick_minutes:5.1f}  {benchmark.question}"
        for benchmark in BENCHMARKS.values()
    ]
    total, quick = (
        sum(benchmark.expected_minutes(quick) for benchmark in BENCHMARKS.values()) for quick in (False, True)
    )
    head = f"  {'':<{width}}   min  quick"
    return "\n".join((head, *lines, f"  {'all':<{width}}  {total:4.0f}  {quick:5.0f}"))


def _warn_of_load() -> None:
    load, n_cpus = os.getloadavg()[0], n_usable_cpus()
    if load > _BUSY_SHARE * n_cpus:
        print(f"bench: the load is {load:.1f} on {n_cpus} CPUs: other programs will be in the figures", file=sys.stderr)


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Return the exit status of a program, None if it had to be ended. It ends its measurements itself on SIGINT."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        return None
    finally:  # also when this program is interrupted
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        if process.poll() is None:
            process.kill()
            process.wait()


def _run(benchmark: Benchmark, folder: Path, is_quick: bool) -> str:
    """Run a benchmark; return what went wrong, or the empty string."""
    file = folder / f"{benchmark.name}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, str(benchmark.program), *benchmark.command_line(is_quick), "--json", str(file)]
    limit_s = max(_LEAST_LIMIT_S, _PATIENCE * 60 * benchmark.expected_minutes(is_quick))
    status = _wait(subprocess.Popen(command), limit_s)
    if status == 0:
        return ""
    if status == _SOME_FAILED and file.exists():
        return "some measurements failed"
    reason = f"not done after {limit_s:.0f} s" if status is None else f"exit status {status}"
    return f"{reason}; {'only the first parts have figures' if file.exists() else 'there are no figures'}"


def _run_all(benchmarks: Sequence[Benchmark], folder: Path, is_quick: bool) -> dict[str, str]:
    """Run those benchmarks that can be run, and print progress; return what went wrong, by benchmark."""
    problems: dict[str, str] = {}
    started_s = time.monotonic()
    for number, benchmark in enumerate(benchmarks, 1):
        left = sum(other.expected_minutes(is_quick) for other in benchmarks[number - 1 :])
        about = f"about {benchmark.expected_minutes(is_quick):.1f} min, all that is left about {left:.0f} min"
        print(f"\n==== {number} of {len(benchmarks)}: {benchmark.name} ({about}) ====\n", flush=True)
        if missing := benchmark.missing():
            print(f"left out, since not installed: {', '.join(missing)}", flush=True)
        elif problem := _run(benchmark, folder, is_quick):
            problems[benchmark.name] = problem
            print(f"bench: {benchmark.name}: {problem}", file=sys.stderr, flush=True)
    print(f"\n{len(benchmarks)} benchmarks in {(time.monotonic() - started_s) / 60:.1f} min", flush=True)
    return problems


def _document(folder: Path, document: Path) -> int:
    from document import read_figures, write_document

    try:
        write_document(read_figures(folder), document)
    except ValueError as error:
        print(f"bench: no document is written from {os.path.relpath(folder)}: {error}", file=sys.stderr)
        return _SOME_FAILED
    print(f"document: {os.path.relpath(document)}")
    return 0


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; default: all")
    add("--quick", action="store_true", help="a look, not a measurement, which leaves docs/performance.md alone")
    add("--document", action="store_true", help="only write the document again, from the figures that are there")
    add("--list", action="store_true", help="name the benchmarks, with how long each takes, and end")
    add("--beside-load", action="store_true", help="with cells: only dynamic against static, beside busy processes")
    options = parser.parse_args(argv)
    if options.beside_load and options.names != ["cells"]:
        parser.error("--beside-load belongs to the benchmark cells")
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; the exit status is 1 if a benchmark or the document failed."""
    options = _parse_arguments(argv)
    if options.list:
        print(_describe(options.quick))
        return 0
    make_importable()
    if options.beside_load:
        _warn_of_load()
        arguments = ["--beside-load", *["--quick"] * options.quick]
        program = BENCHMARKS["cells"].program
        status = _wait(subprocess.Popen([sys.executable, str(program), *arguments]), _LIMIT_BESIDE_S)
        return _SOME_FAILED if status is None else status
    from document import is_clean
    from metadata import current_commit

    commit = current_commit()
    folder = HERE / "results" / f"{commit or 'unknown'}{'-quick' * options.quick}"
    document = folder / "performance.md" if options.quick else _DOCUMENT
    if options.document:
        return _document(folder, document)
    if not options.quick and not is_clean(commit):
        why = "has uncommitted changes: commit them" if commit else "is not in git, or not installed: use one that is"
        or_else = "or add --quick, which leaves docs/performance.md alone"
        print(f"bench: figures must be of a commit, but this checkout {why}, {or_else}", file=sys.stderr)
        return _REFUSED
    folder.mkdir(parents=True, exist_ok=True)
    _warn_of_load()
    chosen = [BENCHMARKS[name] for name in options.names] or list(BENCHMARKS.values())
    problems = _run_all(chosen, folder, options.quick)
    for name, problem in problems.items():
        print(f"  {name}: {problem}")
    status = int(bool(problems))
    return status if options.names or not is_clean(commit) else max(_document(folder, document), status)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `list | head` ends without a message, as for other commands
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nbench: interrupted; what was measured is kept, and `--document` shows it")
