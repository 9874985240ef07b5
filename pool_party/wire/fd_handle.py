"""A file descriptor on its way to a worker process: inherited under fork, else sent."""

from __future__ import annotations

import os
from multiprocessing import reduction

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Handle:
    """A descriptor of the parent's; picklable only while a process is being started."""

    def __init__(self, fd: int) -> None:
        self._fd: Any = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (reduction.DupFd(self._fd),)

    def open(self) -> int:
        """A descriptor of the worker's own."""
        return os.dup(self._fd) if isinstance(self._fd, int) else self._fd.detach()


def _rebuild(duplicate: Any) -> Handle:
    return Handle(duplicate)
