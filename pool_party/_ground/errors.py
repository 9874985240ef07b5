"""The errors of pool_party. Those that derive from errors of `concurrent.futures` are in broken.py.

Each class also derives from the error that the standard library raises in the same situation. Their module is
`pool_party`, for tracebacks and pickles, also before anybody has used the public name.
"""


class PoolPartyError(Exception):
    """The root of all errors that pool_party itself raises. It is also an `Exception`.

    The pool raises this class itself in a forked child, when a pool is traced twice, when its shared memory was
    overwritten or its file descriptors were closed, when an interpreter is to be started while `tracemalloc` traces,
    and in the place of an error whose module cannot be imported, since no descriptor or memory is left.
    """

    __module__ = "pool_party"


class PoolClosed(PoolPartyError, ValueError, RuntimeError):
    """You closed the pool, and used it afterwards.

    It is also a `ValueError`, as `multiprocessing.Pool` raises it, and a `RuntimeError`, as executors do.
    """

    __module__ = "pool_party"


class PoolTerminated(PoolClosed):
    """You terminated the pool while this result was pending. It is a `PoolClosed`.

    It is unknown whether the task ran, or had begun to run.
    """

    __module__ = "pool_party"


class CannotWait(PoolPartyError, RuntimeError):
    """A thread was to wait for the end of a pool, which needs that thread. It is also a `RuntimeError`.

    For example, a task of a pool of threads has joined that pool. `threading.Thread.join` raises a RuntimeError then,
    and so do the pools of the standard library.
    """

    __module__ = "pool_party"


class RemoteError(PoolPartyError):
    """A result or an exception could not be unpickled here. It is a `PoolPartyError`.

    The message says what the worker sent, and the cause has the worker's traceback or the error of unpickling.
    """

    __module__ = "pool_party"


def worker_lost(message: str, pid: int | None, exitcode: int | None) -> PoolPartyError:
    """Make a WorkerLost, or what `_substitute` returns if that cannot be imported. It never raises."""
    try:
        from pool_party._ground.broken import WorkerLost
    except Exception as reason:
        return _substitute(message, reason)
    return WorkerLost(message, pid, exitcode)


def initializer_failed(message: str) -> PoolPartyError:
    """Make an InitializerFailed, or what `_substitute` returns if that cannot be imported. It never raises."""
    try:
        from pool_party._ground.broken import InitializerFailed
    except Exception as reason:
        return _substitute(message, reason)
    return InitializerFailed(message)


def _substitute(message: str, reason: Exception) -> PoolPartyError:
    """Return the error in the place of one whose module could not be imported, so that the call still fails.

    At the end of the interpreter it is a PoolTerminated: concurrent.futures registers an exit hook, which is too late.
    Before that the import fails for want of memory or of descriptors.
    """
    if isinstance(reason, (ImportError, RuntimeError)):
        return PoolTerminated(message)
    return PoolPartyError(f"{message} (the exact error could not be made: {reason!r})")


def pool_damaged() -> PoolPartyError:
    """Make the error that every call raises once the memory that the pool shares with its workers was overwritten."""
    return PoolPartyError(
        "the pool is broken: its shared memory was overwritten, as by a write to a file descriptor that was not the "
        "writer's own"
    )


def descriptor_closed() -> PoolPartyError:
    """Make the error for a pool, or in a worker process, one of whose file descriptors was closed. It never raises."""
    from pool_party._ground.imports import loaded

    loop = loaded("pool_party._workers.loop")
    if loop is not None and loop.is_remote and not loop._is_interpreter:
        return worker_lost(
            "a task has closed file descriptors that were not its own (as os.closerange does), so this worker can no "
            "longer pass large values; the pool replaces it. Close only descriptors that the task has opened",
            None,
            None,
        )
    return PoolPartyError(
        "the program has closed file descriptors of pool_party (as os.closerange does), so the pool can no longer pass "
        "large values. Close descriptors before pools are opened, and open a new pool"
    )


def describe_exit(exitcode: int | None) -> str:
    """Describe a process's end: 'was killed by signal 9 (SIGKILL)' or 'exited with code 1'."""
    if exitcode is None:
        return "ended"
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    try:
        import signal  # slow to import, since it imports enum

        name = f" ({signal.Signals(-exitcode).name})"
    except (ValueError, OSError, MemoryError):  # a number without a name; no descriptor or memory for the import
        name = ""
    return f"was killed by signal {-exitcode}{name}"
