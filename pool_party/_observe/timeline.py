"""Pictures of traces: a row for each worker, green while it computes, yellow while it has no CPU, blue while it waits.

What is shorter than a pixel column is shown by its share: a column that is green up to a third was computing for a
third of its time. SVG output needs no other package; PNG needs matplotlib.
"""

import html
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from pool_party._ground.errors import PoolPartyError
from pool_party._observe.events import PREEMPTED, TASK, WAIT, Span, Trace
from pool_party._observe.metrics import Summary, busy_ns, summarize

COLOURS = {TASK: "#3a9d4c", PREEMPTED: "#f2c12e", WAIT: "#5b8fd9"}
LABELS = {TASK: "in a task", PREEMPTED: "preempted", WAIT: "waiting"}
STACK = (TASK, PREEMPTED, WAIT)  # from the bottom of a row

WIDTH, LEFT, RIGHT = 1200, 90, 70  # in pixels: of the bars, and of the margins beside them
TOP, ROW, BAR, BOTTOM = 62, 30, 22, 40
MOST_TICKS = 10
INK, GREY = "#222222", "#cccccc"


class Rectangle(NamedTuple):
    """A filled rectangle; y grows downwards."""

    x: float
    y: float
    width: float
    height: float
    colour: str


class Text(NamedTuple):
    """A line of text; anchor: "start", "middle" or "end"."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    size: int = 12


@dataclass
class Picture:
    """What is drawn, independent of the format."""

    width: int
    height: int
    rectangles: list[Rectangle] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)


type Column = tuple[float, float, float]  # shares of the column's time, in the order of STACK


def _add(shares: list[float], span: Span, start_ns: int, column_ns: float, sign: int = 1) -> None:
    """Add to each column the share of it that a span covers. sign -1: subtracts it."""
    begin = max(0.0, (span.start_ns - start_ns) / column_ns)
    end = min(float(len(shares)), (span.end_ns - start_ns) / column_ns)
    for n in range(int(begin), min(len(shares), int(end) + 1)):
        if (part := min(end, n + 1) - max(begin, n)) > 0:
            shares[n] += sign * part


def columns(trace: Trace, n_columns: int, start_ns: int, end_ns: int) -> list[list[Column]]:
    """Return, for each worker, what it did in each of n_columns equal parts of the time."""
    column_ns = max(1, end_ns - start_ns) / n_columns
    shares = {kind: [[0.0] * n_columns for _ in range(trace.n_workers)] for kind in STACK}
    for span in trace.spans:
        if span.kind not in shares or span.worker >= trace.n_workers:
            continue
        _add(shares[span.kind][span.worker], span, start_ns, column_ns)
        if span.kind == PREEMPTED and "between_tasks" not in span.args:
            _add(shares[TASK][span.worker], span, start_ns, column_ns, -1)
    return [
        [
            (_clean(task), _clean(preempted), _clean(waits))
            for task, preempted, waits in zip(*(shares[kind][n] for kind in STACK), strict=True)
        ]
        for n in range(trace.n_workers)
    ]


def _clean(share: float) -> float:
    """Remove the rounding noise of many additions, so that equal columns compare equal."""
    return min(1.0, max(0.0, round(share, 3)))


def _bars(row: list[Column], y: float) -> Iterator[Rectangle]:
    x = 0
    for shares, same in groupby(row):
        n = len(list(same))
        bottom = y + BAR
        for kind, share in zip(STACK, shares, strict=True):
            if share > 0:
                bottom -= share * BAR
                yield Rectangle(LEFT + x, round(bottom, 2), n, round(share * BAR, 2), COLOURS[kind])
        x += n


def _step_ns(span_ns: float) -> int:
    """Return a round distance between ticks."""
    step = 1
    while span_ns / step > MOST_TICKS:
        for factor in (2, 5, 10):
            if span_ns / (step * factor) <= MOST_TICKS:
                return step * factor
        step *= 10
    return step


def _format_ns(ns: float, step_ns: int) -> str:
    unit, size = next(
        (unit, size) for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 1000), ("ns", 1)) if step_ns >= size
    )
    return f"{ns / size:g} {unit}"


def _axis(start_ns: int, end_ns: int, n_rows: int) -> Iterator[Rectangle | Text]:
    span_ns = max(1, end_ns - start_ns)
    bottom = TOP + ROW * n_rows
    step = _step_ns(span_ns)
    for ns in range(0, span_ns + 1, step):
        x = LEFT + ns / span_ns * WIDTH
        yield Rectangle(round(x, 2), TOP - 4, 1, bottom - TOP + 8, GREY)
        yield Text(round(x, 2), bottom + 18, _format_ns(ns, step), "middle")


def _legend() -> Iterator[Rectangle | Text]:
    x = LEFT
    for kind in STACK:
        yield Rectangle(x, 36, 12, 12, COLOURS[kind])
        yield Text(x + 17, 47, LABELS[kind])
        x += 110


def _title(trace: Trace, figures: Summary) -> str:
    dropped = f", {trace.n_dropped:,} older events dropped" if trace.n_dropped else ""
    return (
        f"{trace.n_workers} x {trace.about.get('kind', 'worker')}: {figures.n_tasks:,} tasks in "
        f"{figures.parallel_time_s:.3g} s, utilisation {figures.utilisation:.0%}, "
        f"preempted {figures.preempted:.0%}{dropped}"
    )


def shown_ns(trace: Trace) -> tuple[int, int]:
    """Return the time that a picture shows: all of it, or the recorded rest if events were dropped."""
    if trace.n_dropped and trace.spans:
        return trace.spans[0].start_ns, trace.end_ns
    return trace.start_ns, trace.end_ns


def draw(trace: Trace) -> Picture:
    """Draw a trace."""
    picture = Picture(LEFT + WIDTH + RIGHT, TOP + ROW * trace.n_workers + BOTTOM)
    start_ns, end_ns = shown_ns(trace)
    busy, span_ns = busy_ns(trace.spans), max(1, end_ns - start_ns)
    items: list[Rectangle | Text] = [Text(LEFT, 22, _title(trace, summarize(trace)), size=15), *_legend()]
    items += _axis(start_ns, end_ns, trace.n_workers)
    for n, row in enumerate(columns(trace, WIDTH, start_ns, end_ns)):
        y = TOP + ROW * n
        items.append(Text(LEFT - 8, y + 16, f"worker {n + 1}", "end"))
        items.extend(_bars(row, y))
        items.append(Text(LEFT + WIDTH + 8, y + 16, f"{busy.get(n, 0) / span_ns:.0%}"))
    for item in items:
        (picture.texts if isinstance(item, Text) else picture.rectangles).append(item)  # type: ignore[arg-type]
    return picture


def to_svg(picture: Picture) -> str:
    """Return a picture as the text of an SVG file."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{picture.width}" height="{picture.height}" '
        f'viewBox="0 0 {picture.width} {picture.height}" font-family="sans-serif" fill="{INK}">'
    )
    lines = [head, '<rect width="100%" height="100%" fill="white"/>']
    for r in picture.rectangles:
        lines.append(f'<rect x="{r.x}" y="{r.y}" width="{r.width}" height="{r.height}" fill="{r.colour}"/>')
    for t in picture.texts:
        text = html.escape(t.text)
        lines.append(f'<text x="{t.x}" y="{t.y}" font-size="{t.size}" text-anchor="{t.anchor}">{text}</text>')
    return "\n".join([*lines, "</svg>\n"])


def save_png(picture: Picture, path: str | os.PathLike[str]) -> None:
    """Write a picture as a PNG file. Raises: PoolPartyError without matplotlib."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle as Patch
    except ImportError as error:
        raise PoolPartyError(
            f"a PNG needs matplotlib ({error}); install it, or ask for an SVG, which needs nothing"
        ) from error
    dpi = 100
    figure = Figure((picture.width / dpi, picture.height / dpi), dpi)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, picture.width), ylim=(picture.height, 0))
    axes.set_axis_off()
    for r in picture.rectangles:
        axes.add_patch(Patch((r.x, r.y), r.width, r.height, facecolor=r.colour, linewidth=0, antialiased=False))
    places = {"start": "left", "middle": "center", "end": "right"}
    for t in picture.texts:
        axes.text(t.x, t.y, t.text, fontsize=t.size * 72 / dpi, color=INK, ha=places[t.anchor], va="baseline")
    figure.savefig(path, dpi=dpi)


def save(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write the picture of a trace. Raises: ValueError unless the suffix is .svg or .png; PoolPartyError, OSError."""
    path = Path(path)
    if path.suffix.lower() == ".svg":
        path.write_text(to_svg(draw(trace)), encoding="utf-8")
    elif path.suffix.lower() == ".png":
        save_png(draw(trace), path)
    else:
        raise ValueError(f"{path}: a picture is a .svg or a .png")


def describe(trace: Trace) -> str:
    """Describe the figures of a trace in words."""
    s = summarize(trace)
    rows = [
        ("tasks", f"{s.n_tasks:,}"),
        ("parallel time, first task handed out to last end", f"{s.parallel_time_s * 1e3:.3f} ms"),
        ("time in tasks of the worker with most", f"{s.longest_worker_s * 1e3:.3f} ms"),
        ("parallel management overhead, the difference", f"{s.management_overhead_s * 1e3:.3f} ms"),
        ("utilisation of all workers", f"{s.utilisation:.1%}"),
        ("longest worker to the mean", f"{s.imbalance:.2f}"),
        ("time in tasks without a CPU", f"{s.preempted:.1%}"),
        ("wake-up, median and 99 %", f"{s.wake_up_median_s * 1e6:.1f} us, {s.wake_up_p99_s * 1e6:.1f} us"),
    ]
    if trace.n_dropped:
        rows.append(("older events that were dropped", f"{trace.n_dropped:,}"))
    return "\n".join(f"{name:<50}{value:>24}" for name, value in rows)
