"""The exceptions behind outcomes that are no results: tasks' own, and those of values that did not travel."""

from typing import Any

from pool_party import _native
from pool_party._core.errors import RemoteError
from pool_party.wire import codec


def error_of(status: int, value: Any) -> BaseException:
    """The exception for a task's outcome that is no result, as `multiprocessing.Pool` raises it."""
    if status in (_native.STATUS_FAILED, _native.STATUS_RAISED):
        failure: BaseException = value if isinstance(value, BaseException) else _rebuild(*value)
        return failure
    if status == _native.STATUS_UNENCODABLE:
        return _unencodable(*value)
    if status == _native.STATUS_CANCELLED:
        from concurrent.futures import CancelledError  # slow to import, and seldom needed

        return CancelledError()
    error: BaseException = RemoteError(f"the result of a task could not be unpickled here: {value!r}")
    error.__cause__ = value
    return error


def future_error_of(status: int, value: Any) -> BaseException:
    """As `error_of`, but as executors raise it: for a result that does not pickle, the error that pickling raised."""
    if status == _native.STATUS_UNENCODABLE:
        _, _, description = value
        return _rebuild(*description)
    return error_of(status, value)


class _Verbatim(str):
    """A text whose repr is itself: a repr that was made in the worker."""

    __repr__ = str.__str__


def _unencodable(reason: str, text: str, description: object) -> BaseException:
    import multiprocessing.pool as pool  # slow to import, and seldom needed

    error: BaseException = pool.MaybeEncodingError(_Verbatim(reason), _Verbatim(text))  # type: ignore[attr-defined]
    return error


def _rebuild(payload: "codec.Payload | str", text: str, traceback_text: str) -> BaseException:
    """An exception from a worker, which sent what `loop.describe` made of it; its cause is the remote traceback."""
    import multiprocessing.pool as pool

    error: BaseException
    try:
        if isinstance(payload, str):
            raise TypeError(f"it does not pickle: {payload}")
        error = codec.decode(payload)
        if not isinstance(error, BaseException):
            raise TypeError(f"it unpickles as {type(error).__name__}")
    except KeyboardInterrupt:
        raise  # of whoever asks for the outcome
    except BaseException as reason:
        error = RemoteError(f"a task raised {text}, which could not be rebuilt here: {reason!r}")
    error.__cause__ = pool.RemoteTraceback(traceback_text)  # type: ignore[attr-defined]  # not in its stubs
    return error
