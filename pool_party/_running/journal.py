"""A file in memory in which child processes note their figures for the report of the process that the runner started.

Each note is one line, which is appended by a single call: what a process noted stays whenever it is killed. A child
opens the file through the folder of the runner's process in /proc. So the file has no name that could be left behind,
children need no descriptor, and it is gone with the last process that has it open.
"""

from __future__ import annotations

import json
import os

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    # The process that made the file, its descriptor there, and the file's device and inode. Immutable.
    Address = tuple[int, int, int, int]

_MAX_BYTES = 64 << 20  # guess: notes of a hundred thousand pools; later ones are lost


def make() -> Address:
    """Make an empty journal, which this process keeps until it ends."""
    _native.occupy_standard()
    fd = os.memfd_create("pool_party-report")
    status = os.fstat(fd)
    return os.getpid(), fd, status.st_dev, status.st_ino


def _open(address: Address, flags: int) -> int | None:
    """Open the journal. Return None if it is gone, or not ours to open.

    Its descriptor may have been closed, or its process may have ended, and another file or process may have the number.
    A forked child has the descriptor, too, and needs it if it has changed its user.
    """
    pid, fd, *identity = address
    for process in ("self", pid):
        try:
            _native.occupy_standard()
            opened = os.open(f"/proc/{process}/fd/{fd}", flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            continue
        status = os.fstat(opened)
        if [status.st_dev, status.st_ino] == identity:
            return opened
        os.close(opened)
    return None


def append(address: Address, note: dict[str, Any]) -> None:
    """Add a note. It is lost if the journal is gone or full."""
    fd = _open(address, os.O_WRONLY | os.O_APPEND)
    if fd is None:
        return
    try:
        if os.fstat(fd).st_size < _MAX_BYTES:
            os.write(fd, json.dumps(note).encode() + b"\n")
    except OSError:
        pass  # there is no memory left
    finally:
        os.close(fd)


def read(address: Address) -> list[dict[str, Any]] | None:
    """Return all notes, oldest first, or None if the journal is gone."""
    fd = _open(address, os.O_RDONLY)
    if fd is None:
        return None
    with open(fd, "rb") as file:
        lines = file.read().split(b"\n")
    return [json.loads(line) for line in lines[:-1] if line]  # what follows the last line end was cut off
