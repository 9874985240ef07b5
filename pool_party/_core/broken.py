"""The errors that are also those of `concurrent.futures`; apart from the others, since its import takes long."""

from concurrent.futures import BrokenExecutor
from concurrent.futures.process import BrokenProcessPool

from pool_party._core.errors import PoolPartyError


class WorkerLost(PoolPartyError, BrokenProcessPool):
    """The worker that ran this task died; other tasks are not affected.

    pid: its process id. exitcode: as `Process.exitcode`, negative for a signal.
    """

    def __init__(self, message: str, pid: int | None = None, exitcode: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.exitcode = exitcode

    def __reduce__(self) -> tuple[type, tuple[str, int | None, int | None]]:
        return type(self), (str(self), self.pid, self.exitcode)


class InitializerFailed(PoolPartyError, BrokenExecutor):
    """No worker can be made: the initializer raised (`__cause__`), or its process died every time."""
