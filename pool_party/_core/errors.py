"""The errors of pool_party. Those that derive from errors of `concurrent.futures` are in broken.py.

Each class also derives from the error that the standard library raises in the same situation.
"""


class PoolPartyError(Exception):
    """The root of all errors that pool_party itself raises. It is also an `Exception`.

    The pool raises this class itself in a forked child, when a pool is traced twice, and when its shared memory was
    overwritten.
    """


class PoolClosed(PoolPartyError, ValueError, RuntimeError):
    """You closed the pool, and used it afterwards.

    It is also a `ValueError`, as `multiprocessing.Pool` raises it, and a `RuntimeError`, as executors do.
    """


class PoolTerminated(PoolClosed):
    """You terminated the pool while this result was pending. It is a `PoolClosed`.

    It is unknown whether the task ran, or had begun to run.
    """


class RemoteError(PoolPartyError):
    """A result or an exception could not be unpickled here. It is a `PoolPartyError`.

    The message says what the worker sent, and the cause has the worker's traceback or the error of unpickling.
    """


def worker_lost(message: str, pid: int | None, exitcode: int | None) -> PoolPartyError:
    """Make a WorkerLost, or a PoolTerminated if the interpreter is ending and WorkerLost cannot be imported."""
    try:
        from pool_party._core.broken import WorkerLost
    except (ImportError, RuntimeError):  # RuntimeError: concurrent.futures registers an exit hook, which is too late
        return PoolTerminated(message)
    return WorkerLost(message, pid, exitcode)


def initializer_failed(message: str) -> PoolPartyError:
    """Make an InitializerFailed, or a PoolTerminated at the end of the interpreter, as `worker_lost` does."""
    try:
        from pool_party._core.broken import InitializerFailed
    except (ImportError, RuntimeError):
        return PoolTerminated(message)
    return InitializerFailed(message)


def pool_damaged() -> PoolPartyError:
    """Make the error that every call raises once the memory that the pool shares with its workers was overwritten."""
    return PoolPartyError(
        "the pool is broken: its shared memory was overwritten, as by a write to a file descriptor that was not the "
        "writer's own"
    )


def describe_exit(exitcode: int | None) -> str:
    """Describe a process's end: 'was killed by signal 9 (SIGKILL)' or 'exited with code 1'."""
    if exitcode is None:
        return "ended"
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    import signal  # slow to import, since it imports enum

    try:
        name = f" ({signal.Signals(-exitcode).name})"
    except ValueError:
        name = ""
    return f"was killed by signal {-exitcode}{name}"
