"""Shows how far the work is."""

import sys
import time
from typing import TextIO

_REDRAW_S = 0.1


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
