"""The command `python examples/demo`: its options."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from demo.plan import POOL_KINDS, default_n_workers, make_plan
from demo.show import run_plan
from pool_party._cli import output, values

_USAGE_ERROR = 2  # the same as argparse's
_INTERRUPTED = 130  # the status that a shell reports for a program that SIGINT ended


def _kinds(text: str) -> tuple[str, ...]:
    """Return the kinds of pools in a comma-separated list, in which "sequential" is ignored."""
    names = [name.strip() for name in text.split(",")]
    if unknown := set(names) - {"sequential", *POOL_KINDS}:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: no such kind of workers")
    return tuple(name for name in names if name != "sequential")


def _size_px(text: str) -> tuple[int, int]:
    """Return the width and the height that a text such as "640x480" names, in pixels."""
    width, _, height = text.partition("x")
    try:
        return values.positive(width), values.positive(height)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 640x480") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python examples/demo", description="A short tour on this machine.")
    add = parser.add_argument
    add("--workers", type=values.positive, metavar="N", help="workers per pool; default: CPUs, at most 8")
    add(
        "--output",
        type=Path,
        default=Path("pool_party_demo.png"),
        metavar="FILE",
        help="where to put the picture; default: %(default)s",
    )
    add("--quick", action="store_true", help="a smaller picture and fewer problems: some seconds")
    add(
        "--kinds",
        type=_kinds,
        default="thread,process,interp",
        metavar="A,B",
        help="workers to compare with the sequential run; default: %(default)s",
    )
    add("--size", type=_size_px, metavar="WxH", help="size of the picture in pixels")
    add("--skip-numpy", action="store_true", help="leave out the eigenvalue problems")
    return parser


def _run(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    if not arguments.output.absolute().parent.is_dir():
        print(f"demo: {arguments.output}: there is no such folder", file=sys.stderr)
        return _USAGE_ERROR
    plan = make_plan(
        arguments.output,
        arguments.workers or default_n_workers(),
        arguments.kinds,
        quick=arguments.quick,
        size_px=arguments.size,
        with_numpy=not arguments.skip_numpy,
    )
    return run_plan(plan)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration as `argv` says (by default the program's arguments). Return its exit status."""
    try:
        return output.run(lambda: _run(argv))
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        return _INTERRUPTED
