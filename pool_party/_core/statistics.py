"""What a pool says of itself."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Statistics:
    """A pool's counts at one moment. Tasks are what workers are handed: a chunk of a map is one task.

    policy, n_threads: the policy's name, and for each worker the threads that native libraries may use in it now.
    n_lends, n_reclaims: how often that number was raised while other workers had no work, and lowered again.
    n_waits, waited_s: how often parallel regions waited for others ("exclusive", "counting"), and for how long in all.
    idle_bytes: shared memory that holds no value and is kept for the next ones; at most 64 MB soon after the last call.
    n_workers_starting: workers that take no tasks yet: their process or interpreter is being made, or their modules are
        imported, or their initializer runs. There is no limit to that time; the others work meanwhile.
    """

    kind: str
    n_workers: int
    n_submitted: int
    n_completed: int
    n_failed: int
    n_pending: int
    n_workers_started: int
    n_workers_lost: int
    policy: str | None = None
    n_threads: tuple[int, ...] = ()
    n_lends: int = 0
    n_reclaims: int = 0
    n_waits: int = 0
    waited_s: float = 0.0
    n_workers_starting: int = 0
    idle_bytes: int = 0
