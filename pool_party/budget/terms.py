"""A worker process's budget as it is sent to it. Each worker process imports this module, so it imports little."""

from __future__ import annotations

import os
from functools import partial

from pool_party import _native
from pool_party.budget import arbiter, environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from pool_party.wire.fd_handle import Handle


class GateHandle:
    """A gate on its way to a worker process: its descriptor, or None for the machine-wide gate.

    Tokens that a task holds also count for pools that the task opens. So their workers learn here which processes they
    descend from.
    """

    def __init__(self, handle: Handle | None, n_tokens: int, exclusive: bool) -> None:
        self.handle = handle
        self.n_tokens = n_tokens
        self.exclusive = exclusive
        self.ancestors = _native.ancestors()

    def open(self) -> _native.Gate:
        """Open the gate, in the worker."""
        _native.descend_from(self.ancestors)
        if self.handle is None:
            return _native.Gate.machine(self.n_tokens)
        return _native.Gate.attach(self.handle.open())


def refresh_gated(worker: _native.Worker, gate: _native.Gate, n_tokens: int) -> int | None:
    """Find new libraries. If the regions of one cannot be gated, gate the worker's tasks instead."""
    told = arbiter.refresh()
    if not arbiter.is_all_gated():
        worker.gate_tasks(gate, n_tokens)
    return told


class Terms:
    """A worker process's budget at its start.

    n_threads: the worker's own count. n_in_all: the pool's.
    cpus: the CPUs that libraries' threads may use. mask: the CPUs that the worker is pinned to. An empty tuple stands
    for all CPUs of the process.
    users: the count variables of the user's environment.
    overlaps: whether budgets may add up to more than there are CPUs. changes: whether the parent may change this one.
    """

    def __init__(
        self,
        n_threads: int,
        n_in_all: int,
        cpus: tuple[int, ...],
        mask: tuple[int, ...],
        users: dict[str, str],
        overlaps: bool,
        changes: bool,
        gate: GateHandle | None,
    ) -> None:
        self.n_threads = n_threads
        self.n_in_all = n_in_all
        self.cpus = cpus
        self.mask = mask
        self.users = users
        self.overlaps = overlaps
        self.changes = changes
        self.gate = gate

    def environment(self) -> dict[str, str]:
        """Return the variables that are set for the worker, which differ from those of this process."""
        return environment.of_worker(self.n_threads, self.n_in_all, self.overlaps, self.users)

    def enter(self, worker: _native.Worker) -> None:
        """Apply the terms before the initializer: set the environment, the CPUs, and limits of loaded libraries."""
        environment.enter(self.n_threads, self.n_in_all, self.overlaps, self.users)
        arbiter.enter_process(self.n_threads)
        refresh: Callable[[], int | None] = arbiter.refresh
        if self.gate is not None:
            gate = self.gate.open()
            arbiter.open_gate(gate, self.gate.exclusive)
            refresh = partial(refresh_gated, worker, gate, self.n_in_all)
        follow = self.cpus or tuple(os.sched_getaffinity(0))
        if self.changes:
            _native.limits_cpus(follow)
        worker.refresh_with(refresh)
        worker.keep_grant(follow if self.changes else None)
        refresh()
        if self.mask:
            os.sched_setaffinity(0, self.mask)
