"""Descriptors of ours: never those of the standard streams, and only while they belong to the same file.

A program may have closed its standard streams. What it, a library or a child then writes to descriptor 1 or 2 must
not reach a file of ours. And a program that becomes a daemon, or a task, may close all descriptors, and then open
files that get the numbers of ours.
"""

import os

from pool_party._ground.errors import descriptor_closed


def file_of(fd: int) -> tuple[int, int] | None:
    """Return what identifies the file behind a descriptor, or None if the descriptor is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Known:
    """A descriptor that must be looked up before each use, since somebody may close it, and open another file."""

    __slots__ = ("_fd", "_file")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._file = file_of(fd)

    @property
    def fd(self) -> int:
        """The descriptor, or -1 if it does not belong to its file any more."""
        return self._fd if self._fd >= 0 and file_of(self._fd) == self._file else -1

    def get(self) -> int:
        """Return the descriptor. Raises: PoolPartyError if it is lost."""
        if (fd := self.fd) < 0:
            raise descriptor_closed()
        return fd


_owners: dict[int, object] = {}  # by descriptor: a mark of the last `Owned` that got it


class Owned(Known):
    """A descriptor that is closed once, and only if it is still ours.

    Somebody may close it, and its number may become that of the same file once more: two pidfds of a process are one
    file, and before Linux 6.9 all pidfds are. So one whose descriptor another `Owned` has got has lost its own.

    Not by `weakref.finalize`: the first of those in a program decides where all of them are among its exit handlers.
    """

    __slots__ = ("_mark",)

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._mark = _owners[fd] = object()

    @property
    def fd(self) -> int:
        return super().fd if _owners[self._fd] is self._mark else -1

    def close(self) -> None:
        fd, self._mark = self.fd, None
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
