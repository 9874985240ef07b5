"""The command of the runner: reads its options, installs the patches, and runs the program."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_USAGE_ERROR = 2


def main(argv: Sequence[str], name: str) -> int:
    """Run the program that a command line describes. Return the exit status; SystemExit of the program is raised.

    argv: the command line without the name of the runner. name: how the runner was called, for its messages.
    """
    from pool_party._running import options

    if argv and argv[0] in ("-h", "--help", "--version"):
        return _tell(argv[0], name)
    try:
        request = options.read(argv)
    except options.UsageError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return _USAGE_ERROR
    from pool_party._running import children, program

    journal = None
    if request.report is not None:
        from pool_party._running import report

        journal = report.arrange(request.report)
    if request.trace is not None:
        from pool_party._running import traces

        traces.arrange(request.trace)
    children.install(request.settings, journal)
    return program.run(request.program)


def _tell(option: str, name: str) -> int:
    from pool_party import __version__
    from pool_party._running import options

    text = f"pool-party {__version__}\n" if option == "--version" else options.help_text(name)
    sys.stdout.write(text)
    return 0
