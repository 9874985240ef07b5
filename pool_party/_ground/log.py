"""The logger "pool_party". The logging module is imported only when there is something to log."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def log_exception(message: str, *args: object) -> None:
    """Log an error, with the exception that is being handled. It never raises, since the pool's threads must go on."""
    try:
        import logging

        logging.getLogger("pool_party").exception(message, *args, stacklevel=2)
    except Exception:  # no descriptor or no memory is left for the import
        _write(message % args if args else message, sys.exception())


def attempt(step: "Callable[..., object]", *args: object) -> bool:
    """Do one step of several, of which each must be done even if another one raises. Log what it raises.

    Return whether it has succeeded. For threads in which no signal handler runs.
    """
    try:
        step(*args)
    except BaseException:
        log_exception("looking after the pool failed; it goes on")
        return False
    return True


def _write(message: str, error: BaseException | None) -> None:
    """Write one line to the program's standard error, if it has one."""
    while error is not None and error.__context__ is not None:
        error = error.__context__  # what was being handled before logging failed
    try:
        sys.stderr.write(f"pool_party: {message}: {error!r}\n")
    except Exception:
        pass
