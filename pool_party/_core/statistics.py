"""The counts that a pool reports of itself."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Statistics:
    """A pool's counts at one moment. A task is what a worker is handed: a chunk of a map is one task.

    Args:
        kind: The kind of the workers: "thread", "process", "interp", "dask" or "mpi".
        n_workers: The number of workers that live now; with "dask" and "mpi" those of all machines that have joined.
        n_submitted: The number of tasks that were submitted since the pool was opened.
        n_completed: The number of tasks that have an outcome, be it a result or an exception.
        n_failed: The number of those that have an exception.
        n_pending: The number of tasks that have no outcome yet.
        n_workers_started: The number of workers that were ever started; with "dask" and "mpi" those of all machines
            that have ever joined.
        n_workers_lost: The number of workers that died before the pool ended them; with "dask" and "mpi" those of
            machines that were lost.
        policy: The policy's name, or None.
        n_threads: For each worker, the number of threads that native libraries may use in it now.
        n_lends: How often that number was raised while other workers had no work.
        n_reclaims: How often it was lowered again.
        n_waits: How often parallel regions waited for others ("exclusive" and "counting" only).
        waited_s: How long they waited, in seconds, all together.
        n_workers_starting: The number of workers that take no tasks yet: their process or interpreter is being made, or
            their modules are imported, or their initializer runs. There is no limit to that time.
        idle_bytes: The bytes of shared memory that hold no value and are kept for the next ones. Soon after the last
            call they are 64 MB at most.
        n_retried: How often a task was tried again, because of `options(retries=)`. The other counts do not count a
            task again.
        n_overdue: The number of tasks whose time is up, by `options(timeout_s=)` or `options(deadline_s=)`, and which
            their workers still run. The worker is lost to other tasks for as long. It stays above 0 if a task of a
            thread or an interpreter is inside a C function, which nothing can interrupt.
        n_records_lost: The number of log records and lines of output (`log=True`, `output="relay"`) that workers which
            have ended had begun to send, and that did not arrive: at most one for each that was killed, and those that
            were dropped while handlers were too slow.

    Guarantees:
        The object never changes. Its counts may be of slightly different moments while tasks run.
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
    n_retried: int = 0
    n_overdue: int = 0
    n_records_lost: int = 0
