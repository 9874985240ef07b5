"""The command `pool-party`: a table with one row per subcommand, which is imported only when it is used."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pool_party import __version__
from pool_party._cli import output

_USAGE_ERROR = 2  # the same as argparse's
_INTERRUPTED = 130  # the status that a shell reports for a program that SIGINT ended


class _Command(NamedTuple):
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    from pool_party._cli import doctor

    doctor.add_arguments(parser)


def _run_doctor(arguments: argparse.Namespace) -> int:
    from pool_party._cli import doctor

    return doctor.run(arguments)


def _add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    from pool_party._cli import bench

    bench.add_arguments(parser)


def _run_bench(arguments: argparse.Namespace) -> int:
    from pool_party._cli import bench

    return bench.run(arguments)


def _add_top_arguments(parser: argparse.ArgumentParser) -> None:
    from pool_party._cli import top

    top.add_arguments(parser)


def _run_top(arguments: argparse.Namespace) -> int:
    from pool_party._cli import top

    return top.run(arguments)


def _add_timeline_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, metavar="FILE", help="what pool.trace(FILE) has written")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="PICTURE", help="a .svg, or a .png with matplotlib; default: FILE.svg"
    )


def _run_timeline(arguments: argparse.Namespace) -> int:
    from pool_party._ground.errors import PoolPartyError
    from pool_party._observe import chrome, timeline

    picture = arguments.output or arguments.trace.with_suffix(".svg")
    try:
        trace = chrome.read(arguments.trace)
        timeline.save(trace, picture)
    except OSError as error:
        print(f"pool-party: {error.filename}: {error.strerror}", file=sys.stderr)
        return _USAGE_ERROR
    except (ValueError, PoolPartyError) as error:
        print(f"pool-party: {error}", file=sys.stderr)
        return _USAGE_ERROR
    print(timeline.describe(trace))
    print(f"\n{picture}: a row for each worker")
    return 0


_COMMANDS = {
    "bench": _Command("the benchmarks, and a document of what they find", _add_bench_arguments, _run_bench),
    "doctor": _Command(
        "what pools find on this machine, and what is wrong with it", _add_doctor_arguments, _run_doctor
    ),
    "timeline": _Command("draw what a pool's workers did, from a trace", _add_timeline_arguments, _run_timeline),
    "top": _Command("the programs whose pools share this machine, and what they do now", _add_top_arguments, _run_top),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pool-party", description="Worker pools for Python.")
    parser.add_argument("--version", action="version", version=f"pool-party {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True)
    for name, command in _COMMANDS.items():
        subparser = subparsers.add_parser(name, help=command.summary, description=command.summary)
        command.add_arguments(subparser)
    subparsers.add_parser("run", help="run a program with its pools replaced, as python -m pool_party does")
    return parser


def _run(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    return _COMMANDS[arguments.command].run(arguments)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names (by default the program's arguments). Return its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["run"]:  # argparse would take the program's options for ours
        from pool_party._running import command

        return command.main(argv[1:], "pool-party run")
    try:
        return output.run(lambda: _run(argv))
    except KeyboardInterrupt:
        print("\npool-party: interrupted", file=sys.stderr)
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
