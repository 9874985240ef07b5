"""Makes the exceptions for failed outcomes: those that tasks raised, and those of values that did not travel."""

from __future__ import annotations

import sys

from pool_party import _native
from pool_party._ground.errors import RemoteError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pool_party._ground.quoting import Place
    from pool_party._wire.codec import Payload


def error_of(status: int, value: Any) -> BaseException:
    """Return the exception for a task that failed, as `multiprocessing.Pool` raises it."""
    if status == _native.STATUS_RAISED:
        raised: BaseException = value
        return raised
    if status == _native.STATUS_FAILED:
        failure: BaseException = value[0] if isinstance(value[0], BaseException) else _rebuild(*value[:3])
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
    """Like `error_of`, but as executors raise it: for a result that does not pickle, the error that pickling raised."""
    if status == _native.STATUS_UNENCODABLE:
        return _rebuild(*value[2][:3])
    return error_of(status, value)


def place_in(status: int, value: Any) -> Place | None:
    """Return which item of its task has failed, and what was called for it, if the worker tells."""
    place: Place | None = value[-1] if status == _native.STATUS_FAILED and isinstance(value[-1], tuple) else None
    return place


class _Verbatim(str):
    """A string that is its own repr, for a repr that was made in the worker."""

    __repr__ = str.__str__


def _unencodable(reason: str, text: str, description: object) -> BaseException:
    try:
        import multiprocessing.pool as pool  # slow to import, and seldom needed
    except Exception:  # no descriptor or no memory is left
        return RemoteError(f"the result of a task could not be sent: {text}. Reason: {reason}")
    error: BaseException = pool.MaybeEncodingError(_Verbatim(reason), _Verbatim(text))  # type: ignore[attr-defined]
    return error


def _remote_traceback(text: str) -> BaseException:
    try:
        import multiprocessing.pool as pool
    except Exception:  # no descriptor or no memory is left
        return RemoteError(text)
    cause: BaseException = pool.RemoteTraceback(text)  # type: ignore[attr-defined]  # not in its stubs
    return cause


def _rebuild(payload: Payload | str | None, text: str, traceback_text: str) -> BaseException:
    """Rebuild an exception from what `loop.describe` made of it in the worker. Its cause is the remote traceback.

    It raises nothing but KeyboardInterrupt: whoever waits gets an outcome, also if no descriptor is left for imports.
    """
    error: BaseException
    try:
        from pool_party._wire import codec

        if payload is None:
            raise TypeError("its worker could not encode it")
        if isinstance(payload, str):
            raise TypeError(f"it does not pickle: {payload}")
        error = codec.decode(payload)
        if not isinstance(error, BaseException):
            raise TypeError(f"it unpickles as {type(error).__name__}")
    except KeyboardInterrupt:
        raise  # the user pressed Ctrl-C in the thread that asks for the outcome
    except BaseException as reason:
        error = RemoteError(f"a task raised {text}, which could not be rebuilt here: {reason!r}")
    error.__cause__ = _remote_traceback(traceback_text)
    if isinstance(error, NameError | KeyError | AttributeError):
        _add_hint(error, traceback_text)
    return error


def _add_hint(error: BaseException, traceback_text: str) -> None:
    """Say what to do if a task has asked for a global of the caller's `__main__` in a way that does not name it."""
    text = str(error)
    name = text.strip("'") if isinstance(error, KeyError) else text.rpartition(" '")[2].rstrip("'")
    if isinstance(error, NameError):
        name = text.removeprefix("name '").partition("'")[0]
    elif isinstance(error, KeyError) and "globals()" not in traceback_text and "__main__" not in traceback_text:
        return
    elif isinstance(error, AttributeError) and not text.startswith("module '__m"):
        return
    if name in vars(sys.modules["__main__"]):
        error.add_note(
            f"pool_party: workers get the globals of __main__ that the code of functions names, and {name!r} is not "
            "among them; name it in the function, or pass it as an argument"
        )
