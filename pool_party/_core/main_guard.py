"""Finds out whether a script makes its pool without a main guard, so that workers must not run it."""

from __future__ import annotations

import sys
import threading

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_ONLY_AST = 0x400  # `ast.PyCF_ONLY_AST`; importing `ast` takes 2 ms


def is_missing() -> bool:
    """Whether the main thread is now at a statement of the main module that processes run as well, if they import it.

    That is a statement of the module itself, outside `if __name__ == "__main__"`; it may be an import of a module that
    is at such a statement. False if it is unknown: if another thread asks while there are other interpreters, since
    `sys._current_frames` makes objects for the frames of their threads, which run meanwhile, and may free those.
    CPython 3.12 is seen to crash from it.
    """
    try:
        if (frame := _frame_of_main()) is None:
            return False
        with open(frame.f_code.co_filename, "rb") as file:
            source = file.read()
        return b"__name__" not in source or not _is_guarded(source, frame.f_lineno)
    except Exception:
        return False  # no such file: a prompt, `-c`, stdin


def _frame_of_main() -> FrameType | None:
    """Return the frame of the main module's own code."""
    frame: FrameType | None
    if threading.current_thread() is threading.main_thread():
        frame = sys._getframe()
    elif _native.n_interpreters():
        return None
    else:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
    main = sys.modules["__main__"].__dict__
    while frame is not None and not (frame.f_globals is main and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    return frame


def _is_guarded(source: bytes, line: int) -> bool:
    """Whether the line is within an `if` statement of the module itself that looks at `__name__`."""
    for statement in compile(source, "", "exec", _ONLY_AST, dont_inherit=True).body:
        if type(statement).__name__ == "If" and statement.lineno <= line <= statement.end_lineno:
            return _looks_at_name(statement.test)
    return False


def _looks_at_name(node: Any) -> bool:
    if type(node).__name__ == "Name":
        return bool(node.id == "__name__")
    fields = [getattr(node, name, None) for name in getattr(node, "_fields", ())]
    return any(_looks_at_name(part) for field in fields for part in (field if isinstance(field, list) else [field]))
