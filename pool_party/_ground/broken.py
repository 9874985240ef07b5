"""The errors that derive from those of other packages, whose slow import keeps them out of errors.py."""

import multiprocessing
from concurrent.futures.process import BrokenProcessPool

from pool_party._ground.errors import PoolPartyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures.thread import BrokenThreadPool
else:
    try:
        from concurrent.futures.interpreter import BrokenInterpreterPool as BrokenThreadPool  # which derives from it
    except ImportError:  # before Python 3.14
        from concurrent.futures.thread import BrokenThreadPool


class WorkerLost(PoolPartyError, BrokenProcessPool):
    """The worker that ran this task died. Other tasks are not affected, and the pool has replaced the worker.

    It is also a `concurrent.futures.process.BrokenProcessPool`. The task is not run again, since it may have had
    effects. It can be pickled.

    Args:
        message: What happened.
        pid: The worker's process id. None if it had no process of its own.
        exitcode: The number that `multiprocessing.Process.exitcode` gives: negative for a signal. None if unknown.
    """

    __module__ = "pool_party"

    def __init__(self, message: str, pid: int | None = None, exitcode: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.exitcode = exitcode

    def __reduce__(self) -> tuple[type, tuple[str, int | None, int | None]]:
        return type(self), (str(self), self.pid, self.exitcode)


class InitializerFailed(PoolPartyError, BrokenProcessPool, BrokenThreadPool):
    """No worker can be made: an initializer or an import of `preload` raised, or processes died every time.

    It is also the `BrokenProcessPool`, `BrokenThreadPool` and, from Python 3.14 on, `BrokenInterpreterPool` of
    `concurrent.futures`, each of which is a `BrokenExecutor`. Its cause is what the initializer raised. From then on
    every call of the pool raises it.
    """

    __module__ = "pool_party"


class TaskTimeout(PoolPartyError, multiprocessing.TimeoutError, TimeoutError):
    """The time of a task is up: its `timeout_s`, or the `deadline_s` of its call. Other tasks are not affected.

    It is also a `multiprocessing.TimeoutError` and the built-in `TimeoutError`, which are two classes. It can be
    pickled.
    """

    __module__ = "pool_party"


class ClusterLost(PoolPartyError, BrokenProcessPool):
    """The cluster that ran a pool's tasks cannot be reached any more. It is also a `BrokenProcessPool`.

    All pending calls raise it, and so does every later one. It is unknown which of the pending tasks have run. Open a
    new pool once the cluster is there again.
    """

    __module__ = "pool_party"
