"""Text output: tables and progress."""

import sys
import time
from collections.abc import Sequence
from typing import TextIO

_REDRAW_S = 0.1


def format_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text. The first column is flush left, the others are flush right."""
    lines = [list(headings), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * width for width in widths]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            f"{cell:<{width}}" if column == 0 else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  " + "   ".join((first, *others)).rstrip()

    return "\n".join(map(line, (lines[0], rule, *lines[1:])))


def format_mb(size_bytes: int | None) -> str:
    """Return a size in megabytes, or a dash if it is unknown."""
    return "-" if size_bytes is None else f"{size_bytes / 1e6:.0f} MB"


class Progress:
    """Prints one line per stage: a running count on a terminal, else only the line's begin and end.

    Only one thread may use it.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._is_live = self._stream.isatty()
        self._label = ""
        self._n_done = self._n_total = 0
        self._drawn_s = 0.0

    def start(self, label: str, n_total: int) -> None:
        """Begin the line of a stage that has `n_total` steps."""
        self._label, self._n_total, self._n_done = label, n_total, 0
        if self._is_live:
            self._draw()
        else:
            self._write(f"  {label:<11}{n_total} tasks ... ")

    def advance(self, n_steps: int = 1) -> None:
        """Count finished steps."""
        self._n_done += n_steps
        if self._is_live and time.monotonic() - self._drawn_s >= _REDRAW_S:
            self._draw()

    def finish(self, text: str) -> None:
        """End the line with its outcome."""
        if self._is_live:
            self._write(f"\r\x1b[K  {self._label:<11}{self._n_total} tasks ... {text}\n")
        else:
            self._write(f"{text}\n")

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        self._write(f"\r\x1b[K  {self._label:<11}{self._n_done} of {self._n_total} tasks")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
