"""The errors of pool_party; those that are also errors of `concurrent.futures` are in broken.py.

Each class also derives from what the standard library raises in its place.
"""


class PoolPartyError(Exception):
    """The root of all errors that pool_party itself raises. It is also an `Exception`.

    A pool raises it by itself in a child that was forked, if it is traced twice, or if its shared memory was
    overwritten.
    """


class PoolClosed(PoolPartyError, ValueError, RuntimeError):
    """You closed the pool, and used it afterwards.

    It is also a `ValueError`, as `multiprocessing.Pool` raises it, and a `RuntimeError`, as executors do.
    """


class PoolTerminated(PoolClosed):
    """You terminated the pool while this result was pending. It is a `PoolClosed`.

    Whether the task has run, or had begun to, is not known.
    """


class RemoteError(PoolPartyError):
    """A result or an exception could not be unpickled here. It is a `PoolPartyError`.

    The message says what the worker sent, and the cause has the worker's traceback or the error of unpickling.
    """


def worker_lost(message: str, pid: int | None, exitcode: int | None) -> PoolPartyError:
    """A WorkerLost; at the end of the interpreter, when its module can no longer be imported, a PoolTerminated."""
    try:
        from pool_party._core.broken import WorkerLost
    except (ImportError, RuntimeError):  # RuntimeError: concurrent.futures registers what is to be done at exit
        return PoolTerminated(message)
    return WorkerLost(message, pid, exitcode)


def initializer_failed(message: str) -> PoolPartyError:
    """An InitializerFailed; at the end of the interpreter, as `worker_lost`."""
    try:
        from pool_party._core.broken import InitializerFailed
    except (ImportError, RuntimeError):
        return PoolTerminated(message)
    return InitializerFailed(message)


def pool_damaged() -> PoolPartyError:
    """What every call raises once somebody has written over the memory that the pool shares with its workers."""
    return PoolPartyError(
        "the pool is broken: its shared memory was overwritten, as by a write to a file descriptor that was not the "
        "writer's own"
    )


def describe_exit(exitcode: int | None) -> str:
    """Words for a process's end: 'was killed by signal 9 (SIGKILL)' or 'exited with code 1'."""
    if exitcode is None:
        return "ended"
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    import signal  # slow to import, as enum is

    try:
        name = f" ({signal.Signals(-exitcode).name})"
    except ValueError:
        name = ""
    return f"was killed by signal {-exitcode}{name}"
