"""Markdown tables that can be read on a terminal, too, and the numbers in them."""

from collections.abc import Callable, Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], is_text: bool = False) -> str:
    """Return a table whose first column is flush left, and whose others are flush right unless they are text."""
    lines = [list(headings), *map(list, rows)]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    sides = ["<", *["<" if is_text else ">"] * (len(widths) - 1)]
    rule = ["-" * width if side == "<" else f"{'-' * (width - 1)}:" for width, side in zip(widths, sides, strict=True)]
    padded = (
        [f"{cell:{side}{width}}" for cell, side, width in zip(cells, sides, widths, strict=True)]
        for cells in (lines[0], rule, *lines[1:])
    )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def cell(value: float | None, write: Callable[[float], str]) -> str:
    """Return what `write` makes of a figure, and a dash if there is none."""
    return "-" if value is None else write(value)


def number(value: float) -> str:
    """Return three significant digits, with thousands separators: 0.0123, 1.23, 123, 12,300."""
    if abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{float(f'{value:.3g}'):g}"


def duration(value_s: float) -> str:
    """Return a time in a suitable unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value_s) >= scale:
            return f"{number(value_s / scale)} {unit}"
    return f"{number(value_s / 1e-9)} ns"


def us(value_us: float) -> str:
    """Return a time that is given in microseconds."""
    return duration(value_us / 1e6)


def ms(value_ms: float) -> str:
    """Return a time that is given in milliseconds."""
    return duration(value_ms / 1e3)


def megabytes(n_bytes: float) -> str:
    """Return a size in MB of 1,000,000 bytes."""
    return f"{n_bytes / 1e6:.1f} MB"


def size_text(n_bytes: int) -> str:
    """Return a size in a suitable unit, of which the next has 1,024."""
    for unit, shift in (("MB", 20), ("KB", 10)):
        if n_bytes >> shift:
            return f"{n_bytes >> shift} {unit}"
    return f"{n_bytes} B"


def ratio(value: float) -> str:
    """Return a ratio."""
    return f"{number(value)} x" if value >= 10 else f"{value:.2f} x"
