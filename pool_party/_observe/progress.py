"""Showing how far a call is: by a bar, a callable, or an object of tqdm's or rich's that the user has.

No lock of the pool is held meanwhile, and an exception in the user's code can neither lose a result nor stop a worker.
"""

import shutil
import sys
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, NamedTuple, Protocol, TextIO

from pool_party._core.log import log_exception
from pool_party.wire.interrupts import is_from_handler

INTERVAL_S = 0.1  # at least this long between two updates; tqdm's own default
LINE_S = 30.0  # between plain lines

type Progress = Any  # None, a bool, "lines", a callable, a tqdm, or a tuple of a rich Progress and a task's id


class Bar(NamedTuple):
    """How far a loop of a task is, by `pool_party.progress`.

    worker: the name of the worker. desc: what the loop is called. total: None if it is not known. number: no other bar
    of this worker has it; the bars that a task has open are in the order in which it opened them.
    """

    worker: str
    desc: str
    done: int
    total: int | None
    number: int

    @property
    def name(self) -> str:
        """What the bar is called where it is shown."""
        return self.desc or self.worker


class _Display(Protocol):
    """What is shown. `show` is called once at the start, then with ever larger counts; `end` once.

    show_bars: called with what tasks show at the moment, if that has changed; with nothing before `end`.
    """

    interval_s: float

    def show(self, done: int, total: int | None) -> None: ...
    def show_bars(self, bars: list[Bar]) -> None: ...
    def end(self, done: int, total: int | None) -> None: ...


class Watch:
    """Shows the progress of one call, by one thread at a time. An exception of the display is logged, once."""

    def __init__(self, display: _Display) -> None:
        self._display = display
        self._done = 0
        self._total: int | None = None
        self._shown: tuple[int, int | None] | None = None
        self._bars: list[Bar] = []
        self._is_broken = False
        self.interval_s = display.interval_s

    def show(self, done: int, total: int | None = None) -> None:
        """Show that this many items are done, if that is new. total: of how many, once that is known."""
        self._total = self._total if total is None else total
        self._done = max(self._done, done if self._total is None else min(done, self._total))
        if self._shown != (self._done, self._total):
            self._shown = self._done, self._total
            self._try(self._display.show, self._done, self._total)

    def show_bars(self, bars: list[Bar]) -> None:
        """Show what tasks show now, if that is new."""
        if self._bars != bars:
            self._bars = bars
            self._try(self._display.show_bars, bars)

    def finish(self, done: int, is_complete: bool) -> None:
        """Show the final number of items, and close what was opened for this call.

        is_complete: it is the total, if that was not known before.
        """
        self.show_bars([])
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


def bar_over(iterable: Iterable[Any], desc: str, total: int | None) -> Iterable[Any]:
    """Return a bar of tqdm over an iterable, or the iterable itself where no bar would be seen."""
    if sys.stderr is None or not (sys.stderr.isatty() or _is_notebook()):
        return iterable
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return iterable
    bar: Iterable[Any] = tqdm(iterable, desc=desc or None, total=total)
    return bar


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

    def show_bars(self, bars: list[Bar]) -> None:
        show_bars = getattr(self._function, "show_bars", None)
        if show_bars is not None:
            show_bars(bars)

    def end(self, done: int, total: int | None) -> None:
        """Do nothing: the last count was passed."""


class _Nested:
    """The bars of tasks, which are opened when they are first seen, and closed when they are seen no more."""

    def __init__(
        self, open_bar: Callable[[Bar], Any], update: Callable[[Any, Bar], object], close: Callable[[Any], object]
    ) -> None:
        self._open_bar = open_bar
        self._update = update
        self._close = close
        self._shown: dict[tuple[str, int], Any] = {}  # by worker and number

    def show(self, bars: list[Bar]) -> None:
        present = {(bar.worker, bar.number): bar for bar in bars}
        for key in self._shown.keys() - present.keys():
            self._close(self._shown.pop(key))
        for key, bar in present.items():
            if key not in self._shown:
                self._shown[key] = self._open_bar(bar)
            self._update(self._shown[key], bar)


def _nested_tqdm(make: Callable[..., Any], **options: Any) -> _Nested:
    """Show bars of tasks by further bars of tqdm, each on the first line that is free."""
    return _Nested(
        lambda bar: make(total=bar.total, desc=bar.name, leave=False, **options),
        lambda shown, bar: shown.update(bar.done - shown.n),
        lambda shown: shown.close(),
    )


class _Bar:
    """A tqdm of the user's, which may have counted before, and which others may update, too."""

    interval_s = INTERVAL_S

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._shown = 0
        self.show_bars = _nested_tqdm(type(bar), file=getattr(bar, "fp", None)).show

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
        self.show_bars = _nested_tqdm(make).show

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
        self.show_bars = _Nested(
            lambda bar: progress.add_task(bar.name, total=bar.total),
            lambda shown, bar: progress.update(shown, completed=bar.done),
            progress.remove_task,
        ).show

    def show(self, done: int, total: int | None) -> None:
        if total is not None and any(task.id == self._task and task.total is None for task in self._progress.tasks):
            self._progress.update(self._task, total=total)
        self._progress.advance(self._task, done - self._shown)
        self._shown = done

    def end(self, done: int, total: int | None) -> None:
        """Do nothing: the user's `Progress` draws itself."""


def _describe(done: int, total: int | None) -> str:
    return f"{done:,} items done" if total is None else f"{done:,} of {total:,} items done"


def _describe_bar(bar: Bar) -> str:
    return f"{bar.name}: {_describe(bar.done, bar.total)}"


class _Lines:
    """A plain line every 30 seconds, for log files. Calls that are shorter have none."""

    interval_s = 1.0  # an update may come this much later, if no results arrive

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = self._printed = monotonic()
        self._count: tuple[int, int | None] = 0, None

    def show(self, done: int, total: int | None) -> None:
        self._count = done, total
        if monotonic() >= self._printed + LINE_S:
            self._print(_describe(done, total))

    def show_bars(self, bars: list[Bar]) -> None:
        if bars and monotonic() >= self._printed + LINE_S:
            self._print("; ".join([_describe(*self._count), *map(_describe_bar, bars)]))

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
        self._parts = [""]  # of the line: the call, and each bar of a task

    def show(self, done: int, total: int | None) -> None:
        self._parts[0] = _describe(done, total)
        self._print()

    def show_bars(self, bars: list[Bar]) -> None:
        self._parts[1:] = map(_describe_bar, bars)
        self._print()

    def _print(self) -> None:
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{'; '.join(self._parts)[:width]}\x1b[K", end="", file=self._stream, flush=True)

    def end(self, done: int, total: int | None) -> None:
        print(file=self._stream, flush=True)
