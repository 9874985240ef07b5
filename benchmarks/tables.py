"""Markdown tables and number formats. The programs use them for their own output, too."""

from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], is_text: bool = False) -> str:
    """Return a table whose first column is flush left, and whose others are flush right unless they are text."""
    rule = ["---", *["---" if is_text else "---:"] * (len(headings) - 1)]
    lines = [[_escape(cell) for cell in row] for row in (headings, *rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], rule, *lines[1:]))


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def folded(title: str, text: str) -> str:
    """Return text that is shown once its title is clicked."""
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def number(value: float) -> str:
    """Return three significant digits, with thousands separators: 0.0123, 1.23, 123, 12,300."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{float(f'{value:.3g}'):g}"


def duration(value_s: float) -> str:
    """Return a time in a suitable unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value_s) >= scale:
            return f"{number(value_s / scale)} {unit}"
    return f"{number(value_s / 1e-9)} ns"


def size_text(n_bytes: int) -> str:
    """Return a size in a suitable unit."""
    for unit, shift in (("MB", 20), ("KB", 10)):
        if n_bytes >> shift:
            return f"{n_bytes >> shift} {unit}"
    return f"{n_bytes} B"


def ratio(value: float) -> str:
    """Return a ratio."""
    return f"{number(value)} x" if value >= 10 else f"{value:.2f} x"
