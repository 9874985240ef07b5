"""The picture in a terminal, small: each character is two pixels, one above the other."""

import os
from collections.abc import Iterator
from typing import TextIO

_COLUMNS = 64
_UPPER_HALF = "\u2580"  # its foreground is the upper pixel, its background the lower one
_RESET = "\x1b[0m"
_CUBE_START, _CUBE_SIDE = 16, 6  # of a terminal's 256 colours, these are a cube of red, green and blue


def can_show(stream: TextIO) -> bool:
    """Whether a stream is a terminal that wants colours and has 256 of them, as far as its environment tells."""
    names = os.environ.get("TERM", "") + os.environ.get("COLORTERM", "")
    has_colours = any(name in names for name in ("256color", "truecolor", "24bit"))
    is_unicode = (stream.encoding or "").lower().replace("-", "") == "utf8"
    return stream.isatty() and has_colours and is_unicode and not os.environ.get("NO_COLOR")


def _colour(pixels: bytes, start: int) -> int:
    red, green, blue = (round(value * (_CUBE_SIDE - 1) / 255) for value in pixels[start : start + 3])
    return _CUBE_START + (red * _CUBE_SIDE + green) * _CUBE_SIDE + blue


def draw(width_px: int, height_px: int, pixels: bytes) -> Iterator[str]:
    """Yield the lines of a picture: `pixels` has three bytes each (red, green, blue), in rows from the top."""
    columns = min(width_px, _COLUMNS)
    rows = max(2, columns * height_px // width_px // 2 * 2)

    def colour(column: int, row: int) -> int:
        x, y = column * width_px // columns, row * height_px // rows
        return _colour(pixels, 3 * (y * width_px + x))

    for row in range(0, rows, 2):
        cells = (f"\x1b[38;5;{colour(x, row)};48;5;{colour(x, row + 1)}m{_UPPER_HALF}" for x in range(columns))
        yield "".join(cells) + _RESET
