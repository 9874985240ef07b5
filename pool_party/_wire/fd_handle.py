"""File descriptors in values for workers.

A process inherits a descriptor or gets it through a socket. An interpreter of this process gets a duplicate.
"""

from __future__ import annotations

import os
import sys
from multiprocessing import reduction
from threading import get_ident

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from socket import socket
    from typing import Any


class Handle:
    """A descriptor of the parent, which pickles only while a process is being started."""

    def __init__(self, fd: int) -> None:
        self._fd: Any = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (reduction.DupFd(self._fd),)

    def open(self) -> int:
        """Return a descriptor that belongs to the worker."""
        _native.occupy_standard()
        return os.dup(self._fd) if isinstance(self._fd, int) else self._fd.detach()


def _rebuild(duplicate: Any) -> Handle:
    return Handle(duplicate)


# ---- to an interpreter of this process ----

_on_their_way: dict[int, list[int]] = {}  # duplicates in the value that a thread is pickling, by the thread's ident


class Duplicate:
    """A descriptor of this process that its receiver owns, in place of multiprocessing's DupFd."""

    def __init__(self, fd: int, file: tuple[int, int]) -> None:
        self.fd = fd
        self._file = file  # after a close, the number may belong to another file

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.fd, self._file)

    def detach(self) -> int:
        """Return the descriptor, once. Raises: OSError if it no longer belongs to that file."""
        if _file_of(self.fd) != self._file:
            raise OSError("the descriptor was closed on its way")
        return self.fd


class _Lent(Duplicate):
    """A descriptor that receivers duplicate, any number of times, while it is open."""

    def detach(self) -> int:
        _native.occupy_standard()
        return os.dup(super().detach())


def _file_of(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _duplicate(fd: int) -> Duplicate:
    _native.occupy_standard()
    made = os.dup(fd)
    _on_their_way.setdefault(get_ident(), []).append(made)
    return Duplicate(made, _file_of(made))


def _lend(fd: int) -> Duplicate:
    return _Lent(fd, _file_of(fd))


def _refuse(fd: int) -> Duplicate:
    raise TypeError("file descriptors travel to processes as arguments and results only, not as globals of __main__")


def _reducers(handle: Callable[[int], Duplicate]) -> dict[type, Callable[[Any], Any]]:
    """Return reducers for imported types that contain a descriptor. handle: makes the object that is sent for it."""

    def reduce_connection(conn: Connection[Any, Any]) -> tuple[Any, ...]:
        from multiprocessing import connection

        rebuild = connection.rebuild_connection  # type: ignore[attr-defined]
        return rebuild, (handle(conn.fileno()), conn.readable, conn.writable)

    def reduce_socket(sock: socket) -> tuple[Any, ...]:
        rebuild = reduction._rebuild_socket  # type: ignore[attr-defined]
        return rebuild, (handle(sock.fileno()), sock.family, sock.type, sock.proto)

    reducers: dict[type, Callable[[Any], Any]] = {}  # not for modules that another thread is importing at this moment
    if (socket_type := getattr(sys.modules.get("socket"), "socket", None)) is not None:
        reducers[socket_type] = reduce_socket
    if (connection_type := getattr(sys.modules.get("multiprocessing.connection"), "Connection", None)) is not None:
        reducers[connection_type] = reduce_connection
    return reducers


def is_handle(value: object) -> bool:
    """Return whether a value is a connection or a socket, which a process gets with a call, and not as a global."""
    return type(value) in _reducers(_refuse)


def lasting_reducers(is_local: bool) -> dict[type, Callable[[Any], Any]]:
    """Return reducers for pickles that several workers read later. is_local: they are interpreters of this process."""
    return _reducers(_lend if is_local else _refuse)


def local_reducers() -> tuple[dict[type, Callable[[Any], Any]], dict[int, list[int]]]:
    """Return reducers that replace multiprocessing's between interpreters, for modules that are imported.

    Also returns a dict. It is not empty once a reducer was used, and `settle_duplicates` must then be called.
    """
    return _reducers(_duplicate), _on_their_way


def settle_duplicates(are_sent: bool) -> None:
    """Leave the duplicates of a pickled value to its receiver, or close them if it could not be pickled."""
    for fd in _on_their_way.pop(get_ident(), ()):
        if not are_sent:
            os.close(fd)
