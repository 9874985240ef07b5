"""`worker_memory_limit=`: how much memory a worker process has, and when that is too much.

The worker looks after its tasks, and ends after one that has left it above the limit. So no task begins in a worker
that is above it. The parent looks every `PERIOD_S`, and kills a worker that is above it amid a task.

What counts is private memory in RAM: neither libraries' files nor memory that processes share. What a forked process
has from its parent does not count.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from pool_party._workers.process import ProcessWorker

PERIOD_S = 0.1  # between two looks of the parent
GROWTH = 100  # bytes per ns: no task fills memory faster, so a worker far below its limit need not look for a while

_PAGE = os.sysconf("SC_PAGE_SIZE")


def private_bytes(pid: "int | str" = "self") -> int:
    """Return a process's private memory, or 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            _, resident, shared, *_ = file.read().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE


def watch_own(limit: int, inherited: int) -> "Callable[[], int]":
    """Return what `Worker.retire_when` calls in a process with this limit."""

    def look() -> int:
        left = limit - (private_bytes() - inherited)
        return left // GROWTH if left >= 0 else -1

    return look


def end_if_above(worker: "ProcessWorker", limit: int, is_busy: "Callable[[int], bool]") -> None:
    """Kill a worker that is above its limit amid a task, and store how much memory it had.

    It is stopped meanwhile, so the task that it has then is the one that made it grow.
    """
    if worker.pid is None or _grown(worker) <= limit:
        return

    def is_above() -> bool:
        n_bytes = _grown(worker) if is_busy(worker.n) else 0
        worker.burst_bytes = n_bytes if n_bytes > limit else 0
        return n_bytes > limit

    worker.kill_if(is_above)


def _grown(worker: "ProcessWorker") -> int:
    return private_bytes(worker.pid or 0) - worker.inherited_bytes
