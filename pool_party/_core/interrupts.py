"""Telling what a signal handler raised from what went wrong by itself."""

import sys
import types
from typing import Any


def _code_of(handler: Any) -> types.CodeType | None:
    """The code that a signal handler runs first, if it is written in Python."""
    if isinstance(handler, types.MethodType):
        handler = handler.__func__
    function = handler if isinstance(handler, types.FunctionType) else type(handler).__dict__.get("__call__")
    return function.__code__ if isinstance(function, types.FunctionType) else None


def is_from_handler(error: BaseException) -> bool:
    """Whether a handler of Python's signals raised an exception: its frame is in the traceback.

    An alarm that goes off while arguments are pickled raises there, as if it were pickling that failed.
    """
    signal = sys.modules.get("signal")
    if signal is None or error.__traceback__ is None:
        return False
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    traceback = error.__traceback__
    while traceback is not None and codes:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next  # type: ignore[assignment]  # None at the end
    return False
