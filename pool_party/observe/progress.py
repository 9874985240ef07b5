"""Showing how far a call is: by a bar, a callable, or an object of tqdm's or rich's that the user has.

The thread that waits for results does it, between two waits and at most ten times a second. Tasks and results are not
counted for it: a call knows how many of its tasks have an outcome. So progress costs a task next to nothing, no lock of
the pool is held meanwhile, and an exception in the user's code can neither lose a result nor stop a worker.
"""

import sys
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol, TextIO

from pool_party._core.log import log_exception
from pool_party.wire.interrupts import is_from_handler

INTERVAL_S = 0.1  # at least this long between two updates; tqdm's own default
REST = 10  # and at least this many times as long as the last update took, so that slow ones do not slow the call down
LINE_S = 30.0  # between plain lines

type Progress = Any  # None, a bool, "lines", a callable, a tqdm, or a tuple of a rich Progress and a task's id


class _Display(Protocol):
    """What is shown. `show` is called once at the start, then with ever larger counts; `end` once."""

    interval_s: float

    def show(self, done: int, total: int | None) -> None: ...
    def end(self, done: int, total: int | None) -> None: ...


class Watch:
    """Shows the progress of one call. Thread-safe, and an exception of the display is logged, once.

    total: the number of items, or None while it is not known.
    """

    def __init__(self, display: _Display) -> None:
        self._display = display
        self._showing = threading.Lock()  # no thread waits for it
        self._done = 0
        self._shown: tuple[int, int | None] | None = None
        self._is_broken = False
        self.total: int | None = None
        self._due_at = 0.0  # on the monotonic clock
        self.interval_s = display.interval_s

    def is_due(self) -> bool:
        """Whether it is time to call `note`."""
        return monotonic() >= self._due_at

    def left_s(self, deadline: float | None) -> float:
        """Return how long a thread may wait before the next `note`, and before a deadline on the monotonic clock."""
        until = self._due_at if deadline is None else min(self._due_at, deadline)
        return max(0.0, until - monotonic())

    def start(self, total: int | None) -> None:
        self.total = total
        self.note(0)

    def note(self, done: int) -> None:
        """Show that this many items are done, unless another thread, or a frame further out, is showing.

        In that case that thread or frame shows it as soon as it is through.
        """
        self._done = max(self._done, done if self.total is None else min(done, self.total))
        while self._shown != (self._done, self.total) and self._showing.acquire(blocking=False):
            try:
                self._show()
            finally:
                self._showing.release()
        self._due_at = max(self._due_at, monotonic() + self.interval_s)

    def _show(self) -> None:
        self._shown = self._done, self.total
        began = monotonic()
        self._try(self._display.show)
        ended = monotonic()
        self._due_at = ended + REST * (ended - began)

    def finish(self, done: int) -> None:
        """Show the final number of items. If it was not known before, it is the total, too."""
        if self.total is None:
            self.total = done
        self.note(done)
        self.end()

    def end(self) -> None:
        """Close what was opened for this call, which may be incomplete."""
        if not self._is_broken:
            self._try(self._display.end)
            self._is_broken = True

    def _try(self, act: Callable[[int, int | None], object]) -> None:
        if self._is_broken:
            return
        try:
            act(self._done, self.total)
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
    if progress is True or progress == "lines":
        return _choose_own(progress == "lines")
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
    ipython = sys.modules.get("IPython")
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
        now = monotonic()
        if now >= self._printed + LINE_S:
            self._printed = now
            self._print(now, done, total)

    def end(self, done: int, total: int | None) -> None:
        if self._printed > self._began:
            self._print(monotonic(), done, total)

    def _print(self, now: float, done: int, total: int | None) -> None:
        print(f"pool_party: {_describe(done, total)} after {now - self._began:.0f} s", file=self._stream, flush=True)


class _OneLine:
    """A line of a terminal that is written over and over, where tqdm is not installed."""

    interval_s = INTERVAL_S

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, done: int, total: int | None) -> None:
        print(f"\r{_describe(done, total)}", end="", file=self._stream, flush=True)

    def end(self, done: int, total: int | None) -> None:
        print(file=self._stream, flush=True)
