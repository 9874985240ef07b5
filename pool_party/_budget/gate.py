"""The gate of the policies "counting" and "exclusive", and the OpenBLAS libraries whose regions pass it.

A gate is a counting semaphore that processes share. The work is native (`native/budget/gate.c`,
`native/budget/region.c`). `native/README.md` says why a killed holder's tokens come back and why nothing deadlocks.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable

from pool_party._budget import limiter
from pool_party._budget.libraries import Library
from pool_party._native import REGION_NUMBERS, Gate, ancestors, descend_from, install_regions, uninstall_regions
from pool_party._wire.fd_handle import Handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pool_party._budget.plan import Plan
    from pool_party._ground.choices import Scope

__all__ = ["Entry", "Gate", "Gated", "can_be_gated", "open_for", "open_gate"]


def open_for(plan: Plan) -> tuple[Gate, Entry]:
    """Open the gate of a pool's plan. Return it, and how the pool's worker processes come to it."""
    gate = open_gate(plan.scope, plan.n_threads)
    handle = None if plan.scope == "machine" else Handle(gate.fd)
    return gate, Entry(handle, plan.n_threads, plan.policy.takes_all, max(1, plan.n_threads // len(plan.own)))


class Entry:
    """A gate on its way to a worker process: its descriptor, or None for the machine-wide gate.

    Tokens that a task holds also count for pools that the task opens. So their workers learn here which processes they
    descend from.

    n_ungated: how many threads a library may use whose parallel regions cannot pass the gate.
    """

    def __init__(self, handle: Handle | None, n_tokens: int, exclusive: bool, n_ungated: int) -> None:
        self.handle = handle
        self.n_ungated = n_ungated
        self.n_tokens = n_tokens
        self.exclusive = exclusive
        self.ancestors = ancestors()

    def enter(self) -> None:
        """Make the parallel regions of libraries in this worker process pass the gate."""
        descend_from(self.ancestors)
        gate = Gate.machine(self.n_tokens) if self.handle is None else Gate.attach(self.handle.open())
        limiter.add(Gated(gate, exclusive=self.exclusive, n_ungated=self.n_ungated))


def open_gate(scope: Scope, n_tokens: int, *, name: str = "") -> Gate:
    """Open a gate of `n_tokens` tokens, one for each thread that may be in a parallel region at a time.

    It logs a warning on a machine of more than 32 CPUs, where no region passes it.

    Args:
        scope: "pool" makes a new gate, which other processes reach by its `fd` (`Gate.attach`). "machine" opens the one
            that all programs of this user share; while other programs use it, it keeps its number of tokens.
        n_tokens: At least 1. A request for more tokens than this takes them all.
        name: Names a machine-wide gate other than the usual one.

    Raises:
        ValueError: The scope is unknown, or there is less than one token.
        PermissionError: The file of the machine's gate belongs to another user.
        OSError: The gate cannot be made, or the file is not a gate.
    """
    if not _has_room():
        logging.getLogger("pool_party").warning(
            "this machine has more than %d CPUs, so parallel regions pass no gate: each worker has its part of them, "
            "as with policy='static'; with 'dynamic' busy workers get those of idle ones",
            REGION_NUMBERS // 2,
        )
    if scope == "pool":
        return Gate(n_tokens)
    if scope == "machine":
        return Gate.machine(n_tokens, name)
    raise ValueError(f'scope must be "pool" or "machine", not {scope!r}')


def can_be_gated(library: Library) -> bool:
    """Whether the parallel regions of a library can pass a gate.

    That needs an OpenBLAS with a threads callback, as in PyPI's wheels.

    An OpenBLAS that was built for fewer threads has no room for our thread numbers, and none has on a machine of more
    than 32 CPUs. OpenBLAS on OpenMP was not tried.
    """
    n_threads = library.n_threads_max or 0
    has_room = n_threads >= REGION_NUMBERS and _has_room()
    return bool(library.callback) and library.threading_layer == "pthreads" and has_room


def _has_room() -> bool:
    """Whether this machine leaves thread numbers for regions.

    All OpenBLAS libraries share ours, which are below REGION_NUMBERS. OpenBLAS's own threads, one for each CPU, need
    numbers of their own, so a region must fit into the other half.
    """
    return (os.cpu_count() or 1) <= REGION_NUMBERS // 2


class Gated:
    """OpenBLAS libraries of this process whose parallel regions pass a gate, until `close`.

    The callback and the gate belong to the process, so only one `Gated` may exist at a time. Any thread may call any
    method, any number of times. A region that is running finishes as it began. In a forked child the regions stay
    gated. Updates inside LU (solve, inv, det) are not regions to OpenBLAS: they stay on its own threads and pass no
    gate.

    Args:
        gate: The gate that regions take tokens from. With None, regions run on our threads without tokens.
        exclusive: Whether a region takes all tokens, instead of one for each of its threads.
        n_ungated: How many threads a library may use that cannot be gated. 0: any number.
    """

    def __init__(self, gate: Gate | None, *, exclusive: bool = False, n_ungated: int = 0) -> None:
        self.gate = gate
        self.n_ungated = n_ungated
        self.exclusive = exclusive
        self._lock = threading.Lock()
        self._setters: list[int] = []

    @property
    def setters(self) -> tuple[int, ...]:
        """The gated libraries, by the addresses of their `openblas_set_threads_callback_function`."""
        return tuple(self._setters)

    def install(self, libraries: Iterable[Library]) -> None:
        """Gate those of the given libraries that can be gated and are not gated yet."""
        with self._lock:
            for library in filter(can_be_gated, libraries):
                if library.callback and library.callback not in self._setters:
                    install_regions(library.callback, self.gate, self.exclusive)
                    self._setters.append(library.callback)

    def most_of(self, library: Library) -> int:
        """Return how many threads a library may use, or 0 for any number."""
        return 0 if can_be_gated(library) else self.n_ungated

    def close(self) -> None:
        """Make the libraries use their own threads again."""
        with self._lock:
            while self._setters:
                uninstall_regions(self._setters.pop())

    def __enter__(self) -> Gated:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Gated n_libraries={len(self._setters)} exclusive={self.exclusive} gate={self.gate!r}>"
