"""Text output: tables, and the sizes in them."""

from collections.abc import Sequence


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
