"""Handles a command whose output nobody reads to its end, as in `pool-party doctor | head`."""

import os
import select
import sys
from collections.abc import Callable

_BROKEN_PIPE = 141  # the status that a shell reports for a program that SIGPIPE ended
_OUTPUTS = (1, 2)  # file descriptors: standard output, standard error


def run(command: Callable[[], int]) -> int:
    """Run a command and flush what it printed. Return its exit status.

    If the reader of its output is gone, the command ends silently when it prints next. Its status is then the one that
    shells report for SIGPIPE.

    Raises: BrokenPipeError for any other pipe, and whatever else the command raises.
    """
    try:
        try:
            return command()
        finally:  # also after `--help`, which raises SystemExit
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        if not (unread := list(filter(_is_unread, _OUTPUTS))):
            raise
        _discard(unread)
        return _BROKEN_PIPE


def _is_unread(fd: int) -> bool:
    """Return whether nobody can read what is written to a descriptor any more."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _discard(fds: list[int]) -> None:
    """Redirect what is still buffered to /dev/null.

    Python flushes it at its end, and would report the error again.
    """
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    for fd in fds:
        os.dup2(null, fd)
    os.close(null)
