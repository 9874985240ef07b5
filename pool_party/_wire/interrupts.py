"""Distinguishes exceptions that a signal handler raised from failures of the interrupted code."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any

_HAS_VARARGS = 0x04  # co_flags of a function with *args


def _arguments(frame: "FrameType") -> "list[Any]":
    """Return the positional arguments of a call, as far as its function still has them."""
    code, values = frame.f_code, frame.f_locals
    arguments = [values.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & _HAS_VARARGS:
        rest = values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ())
        arguments += rest if isinstance(rest, tuple) else ()
    return arguments


def is_from_handler(error: BaseException) -> bool:
    """Return whether a Python signal handler raised an exception.

    The traceback then has a call with a signal number and a frame as arguments. For example, an alarm during the
    pickling of arguments raises there, and looks like a failure to pickle.
    """
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        arguments = _arguments(traceback.tb_frame)
        frame_type = type(traceback.tb_frame)
        for i, argument in enumerate(arguments[1:]):
            if isinstance(argument, frame_type) and isinstance(arguments[i], int):
                return True
        traceback = traceback.tb_next
    return False
