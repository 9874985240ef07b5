"""A worker process's budget as it is sent to it. Each worker process imports this module, so it imports little."""

from __future__ import annotations

import os

from pool_party import _native
from pool_party._budget import environment, limiter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pool_party._budget.gate import Entry


class ProcessBudget:
    """A worker process's budget at its start.

    n_threads: the worker's own count. n_in_all: the pool's.
    cpus: the CPUs that libraries' threads may use. mask: the CPUs that the worker is pinned to. An empty tuple stands
    for all CPUs of the process.
    users: the count variables of the user's environment.
    overlaps: whether budgets may add up to more than there are CPUs. changes: whether the parent may change this one.
    entry: what the policy has the process do besides; None: nothing.
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
        entry: Entry | None,
    ) -> None:
        self.n_threads = n_threads
        self.n_in_all = n_in_all
        self.cpus = cpus
        self.mask = mask
        self.users = users
        self.overlaps = overlaps
        self.changes = changes
        self.entry = entry

    def environment(self) -> dict[str, str]:
        """Return the variables that are set for the worker, which differ from those of this process."""
        return environment.of_worker(self.n_threads, self.n_in_all, self.overlaps, self.users)

    def enter(self, worker: _native.Worker) -> None:
        """Apply it before the initializer: set the environment, the CPUs, and limits of loaded libraries."""
        environment.enter(self.n_threads, self.n_in_all, self.overlaps, self.users)
        limiter.enter_process(self.n_threads)
        if self.entry is not None:
            self.entry.enter()
        follow = self.cpus or tuple(os.sched_getaffinity(0))
        if self.changes:
            _native.limits_cpus(follow)
        worker.refresh_with(limiter.refresh)
        worker.keep_grant(follow if self.changes else None)
        limiter.refresh()
        if self.mask:
            os.sched_setaffinity(0, self.mask)
