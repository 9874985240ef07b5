"""Finds out whether a script runs without a main guard. It is asked only when a pool gives up."""

from __future__ import annotations

import ast
import sys
import threading

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def is_missing() -> bool:
    """Whether the main thread is now at a statement of the main module that processes run as well, if they import it.

    That is a statement of the module itself, outside `if __name__ == "__main__"`. False if that is unknown: while there
    are other interpreters, too, since `sys._current_frames` makes objects for the frames of their threads, which run
    meanwhile, and may free those. CPython 3.12 is seen to crash from it.
    """
    if _native.n_interpreters():
        return False
    try:
        main = sys.modules["__main__"].__dict__
        frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None and not (frame.f_globals is main and frame.f_code.co_name == "<module>"):
            frame = frame.f_back
        if frame is None:
            return False
        with open(frame.f_code.co_filename, "rb") as file:
            statements = ast.parse(file.read()).body
        return not any(_is_guard(statement) and _has_line(statement, frame.f_lineno) for statement in statements)
    except Exception:
        return False  # no such file: a prompt, `-c`, stdin


def _is_guard(statement: ast.stmt) -> bool:
    names = ast.walk(statement.test) if isinstance(statement, ast.If) else ()
    return any(isinstance(name, ast.Name) and name.id == "__name__" for name in names)


def _has_line(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)
