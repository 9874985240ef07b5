"""The errors that are also those of `concurrent.futures`; apart from the others, since its import takes long."""

from concurrent.futures import BrokenExecutor
from concurrent.futures.process import BrokenProcessPool

from pool_party._core.errors import PoolPartyError


class WorkerLost(PoolPartyError, BrokenProcessPool):
    """The worker that ran this task died. Other tasks are not affected, and the pool has replaced the worker.

    It is also a `concurrent.futures.process.BrokenProcessPool`. The task is not run again, since it may have had
    effects. It can be pickled.

    Args:
        message: What happened.
        pid: The worker's process id. None: it had no process of its own.
        exitcode: The number that `multiprocessing.Process.exitcode` has: negative for a signal. None: unknown.
    """

    def __init__(self, message: str, pid: int | None = None, exitcode: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.exitcode = exitcode

    def __reduce__(self) -> tuple[type, tuple[str, int | None, int | None]]:
        return type(self), (str(self), self.pid, self.exitcode)


class InitializerFailed(PoolPartyError, BrokenExecutor):
    """No worker can be made: an initializer or an import of `preload` raised, or processes died every time.

    It is also a `concurrent.futures.BrokenExecutor`. What the initializer raised is its cause. Every call of the pool
    raises it from then on.
    """
