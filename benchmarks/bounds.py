"""Bounds for the pools of dispatch.py: the minimum cost of the same work without a pool."""

import os
import pickle
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
    """A forked child that reads tasks from one pipe, and answers through another."""

    def __init__(self) -> None:
        from_parent, self._to_child = os.pipe()
        self._from_child, to_parent = os.pipe()
        self._child = os.fork()
        if not self._child:
            os.close(self._to_child)
            self._serve(from_parent, to_parent)
        os.close(from_parent)
        os.close(to_parent)

    @staticmethod
    def _serve(source: int, sink: int) -> None:
        while message := os.read(source, 65536):
            task, value = pickle.loads(message)
            os.write(sink, pickle.dumps(task(value)))
        os._exit(0)

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
        os.waitpid(self._child, 0)


def _bound(name: str, new: Callable[[], Handle]) -> Peer:
    return Peer(name, BOUND, "", "os", lambda _, n_workers: new())


_CALLER = _bound("no pool: the caller itself", CallerHandle)
_PIPES = _bound("no pool: a forked child, two pipes", PipeHandle)
BOUNDS = {"throughput": _CALLER, "round-trip": _PIPES, "start": _PIPES}  # by section of dispatch.py


def peer_or_bound(name: str) -> Peer:
    """Return the peer or the bound of that name."""
    return next((bound for bound in BOUNDS.values() if bound.name == name), None) or peer_named(name)
