"""Showing how far a call is: by a bar, a callable, or an object of tqdm's or rich's that the user has.

No lock of the pool is held meanwhile, and an exception in the user's code can neither lose a result nor stop a worker.
"""

import shutil
import sys
from collections.abc import Callable
from time import monotonic
from typing import Any, Literal, Protocol, TextIO

from pool_party._ground.imports import loaded
from pool_party._ground.log import log_exception
from pool_party._wire.interrupts import is_from_handler

INTERVAL_S = 0.1  # at least this long between two updates; tqdm's own default
LINE_S = 30.0  # between plain lines

type Progress = bool | Literal["lines"] | Callable[[int, int | None], object] | tuple[Any, Any] | Bar | None


class Bar(Protocol):
    """What `progress` takes of tqdm. A tuple is a `Progress` of rich and a task's id."""

    n: Any
    total: Any

    def update(self, n: Any = ..., /) -> object: ...
    def refresh(self) -> object: ...


class _Display(Protocol):
    """What is shown. `show` is called once at the start, then with ever larger counts; `end` once."""

    interval_s: float

    def show(self, done: int, total: int | None) -> None: ...
    def end(self, done: int, total: int | None) -> None: ...


class Watch:
    """Shows the progress of one call, by one thread at a time. An exception of the display is logged, once."""

    def __init__(self, display: _Display) -> None:
        self._display = display
        self._done = 0
        self._total: int | None = None
        self._shown: tuple[int, int | None] | None = None
        self._is_broken = False
        self.interval_s = display.interval_s

    def show(self, done: int, total: int | None = None) -> None:
        """Show that this many items are done, if that is new. total: of how many, once that is known."""
        self._total = self._total if total is None else total
        self._done = max(self._done, done if self._total is None else min(done, self._total))
        if self._shown != (self._done, self._total):
            self._shown = self._done, self._total
            self._try(self._display.show, self._done, self._total)

    def finish(self, done: int, is_complete: bool) -> None:
        """Show the final number of items, and close what was opened for this call.

        is_complete: it is the total, if that was not known before.
        """
        self.show(done, done if is_complete and self._total is None else None)
        self._try(self._display.end, self._done, self._total)

    def _try(self, act: Callable[..., object], *args: Any) -> None:
        if self._is_broken:
            return
        try:
            act(*args)
        except Exception as error:
            if is_from_handler(error):
                raise
            self._is_broken = True
            log_exception("showing progress failed; the call goes on without it")


def open_watch(progress: Progress) -> Watch | None:
    """Return a watch for the argument `progress` of a call, or None if nothing is to be shown.

    Raises: TypeError and ValueError for other values.
    """
    display = _choose(progress)
    return None if display is None else Watch(display)


def _choose(progress: Progress) -> _Display | None:
    if progress is None or progress is False:
        return None
    if progress is True or (isinstance(progress, str) and progress == "lines"):
        return _choose_own(has_lines=progress is not True)
    if isinstance(progress, str):
        raise ValueError(f"progress must be 'lines' if it is a str, not {progress!r}")
    if isinstance(progress, tuple) and len(progress) == 2 and hasattr(progress[0], "advance"):
        return _RichTask(*progress)
    if not isinstance(progress, type):
        if all(hasattr(progress, name) for name in ("update", "refresh", "n", "total")):
            return _Bar(progress)
        if callable(progress):
            return _Function(progress)
    raise TypeError(
        "progress must be a bool, 'lines', a callable of two arguments, an instance of tqdm, or a tuple of a "
        f"rich.progress.Progress and a task's id, not {progress!r}"
    )


def _choose_own(has_lines: bool) -> _Display | None:
    """Choose between a bar and plain lines, by where standard error leads."""
    stream = sys.stderr
    if stream is None:
        return None
    if not stream.isatty() and not _is_notebook():
        return _Lines(stream) if has_lines else None
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _OneLine(stream)
    return _OwnBar(tqdm)


def _is_notebook() -> bool:
    ipython = loaded("IPython")
    shell = ipython and ipython.get_ipython()
    return hasattr(shell, "kernel")


# ---- displays ----


class _Function:
    interval_s = INTERVAL_S

    def __init__(self, function: Callable[[int, int | None], object]) -> None:
        self._function = function

    def show(self, done: int, total: int | None) -> None:
        self._function(done, total)

    def end(self, done: int, total: int | None) -> None:
        """Do nothing: the last count was passed."""


class _Bar:
    """A tqdm of the user's, which may have counted before, and which others may update, too."""

    interval_s = INTERVAL_S

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._shown = 0

    def show(self, done: int, total: int | None) -> None:
        if self._bar.total is None and total is not None:
            self._bar.total = total
        self._bar.update(done - self._shown)
        self._shown = done

    def end(self, done: int, total: int | None) -> None:
        self._bar.refresh()


class _OwnBar:
    """A tqdm that is made for one call."""

    interval_s = INTERVAL_S

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._bar: Any = None

    def show(self, done: int, total: int | None) -> None:
        if self._bar is None:
            self._bar = self._make(total=total)
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def end(self, done: int, total: int | None) -> None:
        if self._bar is not None:
            self._bar.close()


class _RichTask:
    """A task of a `rich.progress.Progress` of the user's."""

    interval_s = INTERVAL_S

    def __init__(self, progress: Any, task: Any) -> None:
        self._progress = progress
        self._task = task
        self._shown = 0

    def show(self, done: int, total: int | None) -> None:
        if total is not None and any(task.id == self._task and task.total is None for task in self._progress.tasks):
            self._progress.update(self._task, total=total)
        self._progress.advance(self._task, done - self._shown)
        self._shown = done

    def end(self, done: int, total: int | None) -> None:
        """Do nothing: the user's `Progress` draws itself."""


def _describe(done: int, total: int | None) -> str:
    return f"{done:,} items done" if total is None else f"{done:,} of {total:,} items done"


class _Lines:
    """A plain line every 30 seconds, for log files. Calls that are shorter have none."""

    interval_s = 1.0  # an update may come this much later, if no results arrive

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = self._printed = monotonic()

    def show(self, done: int, total: int | None) -> None:
        if monotonic() >= self._printed + LINE_S:
            self._print(_describe(done, total))

    def end(self, done: int, total: int | None) -> None:
        if self._printed > self._began:
            self._print(_describe(done, total))

    def _print(self, text: str) -> None:
        self._printed = monotonic()
        print(f"pool_party: {text} after {self._printed - self._began:.0f} s", file=self._stream, flush=True)


class _OneLine:
    """A line of a terminal that is written over and over, where tqdm is not installed."""

    interval_s = INTERVAL_S

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, done: int, total: int | None) -> None:
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{_describe(done, total)[:width]}\x1b[K", end="", file=self._stream, flush=True)

    def end(self, done: int, total: int | None) -> None:
        print(file=self._stream, flush=True)
