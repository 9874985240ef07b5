"""The modes of the pool-party document and ours: one task after the other, or a map by a pool."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Self

from party_workloads import WORKLOADS
from peers import Handle, peer_named

SEQUENTIAL = "sequential"
_PEERS = {
    "thread": "ThreadPool",
    "futures": "ThreadPoolExecutor",
    "subprocess": "Pool",
    "ProcessPoolExecutor": "ProcessPoolExecutor",
    "InterpreterPoolExecutor": "InterpreterPoolExecutor",
    "loky": "loky",
    "pool_party-thread": "pool_party thread",
    "pool_party-process": "pool_party process",
    "pool_party-interp": "pool_party interp",
}
MODES = (SEQUENTIAL, *_PEERS)


def has_gil() -> bool:
    """Return whether this process has a GIL now."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def is_available(mode: str) -> bool:
    """Return whether a mode can be measured here."""
    return mode == SEQUENTIAL or peer_named(_PEERS[mode]).is_available()


def benchmark_name(workload: str, size: str, mode: str) -> str:
    """Return the name of a benchmark: fib[thread], fib[nogil-thread] without a GIL, fib-original[thread]."""
    sized = workload if size == "small" else f"{workload}-{size}"
    return f"{sized}[{'' if has_gil() else 'nogil-'}{mode}]"


class _Sequential:
    """Replaces a pool in mode "sequential"."""

    def map(self, task: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
        return list(map(task, values))

    def close(self) -> None:
        pass


class Mapping:
    """A workload in a mode. Its pool is opened for the first map, kept for all others, and closed at the end."""

    def __init__(self, workload: str, size: str, mode: str, n_workers: int) -> None:
        self._task, self._arguments = WORKLOADS[workload].task, WORKLOADS[workload].arguments(size)
        self._mode, self._n_workers = mode, n_workers
        self._handle: Handle | _Sequential | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.close()

    def open(self) -> None:
        """Open the pool and run the workload once, so that every worker has loaded what it needs.

        Raises:
            ArithmeticError: if the result is not what the task returns here.
        """
        peer = None if self._mode == SEQUENTIAL else peer_named(_PEERS[self._mode])
        self._handle = peer.open(self._n_workers) if peer else _Sequential()
        results = self.run()
        if len(results) != len(self._arguments) or results[-1] != self._task(self._arguments[-1]):
            raise ArithmeticError(f"{self._mode} computed something else than this process does")

    @property
    def is_open(self) -> bool:
        """Whether there is a pool."""
        return self._handle is not None

    def run(self) -> list[Any]:
        """Run the tasks, each assigned separately; return the results in order."""
        assert self._handle is not None
        return self._handle.map(self._task, self._arguments)
