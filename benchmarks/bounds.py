"""Bounds for the pools of dispatch.py: the minimum cost of the same work without a pool."""

import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from peers import Handle, Peer, peer_named

BOUND = "bound"  # the kind of these "peers"

type _Task = Callable[[Any], Any]


class CallerHandle:
    """No pool: the caller runs every task itself."""

    def map(self, task: _Task, values: Sequence[Any]) -> list[Any]:
        """Return the results in order."""
        return list(map(task, values))

    def call(self, task: _Task, value: Any) -> Any:
        """Run one task."""
        return task(value)

    def as_done(self, task: _Task, values: Sequence[Any]) -> Iterator[Any]:
        """Yield the results in order."""
        yield from map(task, values)

    def close(self) -> None:
        """Do nothing."""


class PipeHandle(CallerHandle):
    """A child that reads tasks from one pipe, and answers through another."""

    def __init__(self) -> None:
        from_parent, self._to_child = os.pipe()
        self._from_child, to_parent = os.pipe()
        self._pid = self._start(from_parent, to_parent)
        os.close(from_parent)
        os.close(to_parent)

    def _start(self, source: int, sink: int) -> int:
        """Fork the child. Return its id."""
        child = os.fork()
        if not child:
            os.close(self._to_child)
            serve(source, sink)
            os._exit(0)
        return child

    def map(self, task: _Task, values: Sequence[Any]) -> list[Any]:
        """Return the results in order: one task at a time."""
        return [self.call(task, value) for value in values]

    def call(self, task: _Task, value: Any) -> Any:
        """Run one task in the child and wait for it."""
        os.write(self._to_child, pickle.dumps((task, value)))
        return pickle.loads(os.read(self._from_child, 65536))

    def close(self) -> None:
        """End the child."""
        os.close(self._to_child)
        os.close(self._from_child)
        os.waitpid(self._pid, 0)


def serve(source: int, sink: int) -> None:
    """Run the tasks that come through a pipe, until it is closed."""
    while message := os.read(source, 65536):
        task, value = pickle.loads(message)
        os.write(sink, pickle.dumps(task(value)))


class NewPipeHandle(PipeHandle):
    """The same with a child that was not forked, and so has all of its memory for itself."""

    def _start(self, source: int, sink: int) -> int:
        code = f"from bounds import serve; serve({source}, {sink})"
        return subprocess.Popen([sys.executable, "-c", code], pass_fds=(source, sink)).pid


class BareInterpreters(CallerHandle):
    """Interpreters with their own GIL, made one after the other by CPython's own functions. They run nothing."""

    def __init__(self, n_workers: int) -> None:
        self._module = importlib.import_module("_interpreters")
        self._ids = [self._module.create("isolated") for _ in range(n_workers)]

    def close(self) -> None:
        """End them, one after the other."""
        for identity in self._ids:
            self._module.destroy(identity)


def _bound(name: str, module: str, new: Callable[[int], Handle], since: tuple[int, int] = (3, 12)) -> Peer:
    return Peer(name, BOUND, "", module, lambda _, n_workers: new(n_workers), since)


_CALLER = _bound("no pool: the caller itself", "os", lambda _: CallerHandle())
_PIPES = _bound("no pool: a forked child, two pipes", "os", lambda _: PipeHandle())
_NEW_PIPES = _bound("no pool: a new child, two pipes", "os", lambda _: NewPipeHandle())
_BARE = _bound("no pool: CPython's interpreters, which run nothing", "_interpreters", BareInterpreters, (3, 13))
# by section of dispatch.py
BOUNDS = {"throughput": (_CALLER,), "round-trip": (_PIPES, _NEW_PIPES), "start": (_PIPES, _NEW_PIPES, _BARE)}
_ALL = {bound.name: bound for bounds in BOUNDS.values() for bound in bounds}


def bounds_of(section: str) -> list[Peer]:
    """Return the bounds of a section that exist on this Python."""
    return [bound for bound in BOUNDS.get(section, ()) if bound.is_available()]


def peer_or_bound(name: str) -> Peer:
    """Return the peer or the bound of that name."""
    return _ALL.get(name) or peer_named(name)
