"""Pictures of figures: panels of bars, of curves, and of histograms, as small SVG files.

matplotlib is imported for the first picture; without it there are no pictures.
"""

import importlib.util
import io
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NO_POOL = "no pool"  # prefix of the names of bounds
OURS, OTHERS, BOUND = "#2166ac", "#b0b0b0", "#b2182b"
_FAMILIES = {"thread": "#1b7837", "process": "#2166ac", "interp": "#762a83"}
_OTHER_COLOURS = ("#e08214", "#8c8c8c", "#c51b7d", "#4d9221", "#525252", "#80cdc1", "#a6761d")
_FONTS = "DejaVu Sans, Verdana, sans-serif"  # of nearly the same widths
_STYLE = {
    "svg.fonttype": "none",  # keeps text as text, which makes files five times smaller
    "svg.hashsalt": "pool_party",  # the same figures make the same file
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure with its name, and how it is written."""

    label: str
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A curve with its name; `style` distinguishes ways of the same pool. The legend has one entry per label."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: str = "-"


@dataclass(frozen=True, slots=True)
class Panel:
    """A diagram: bars, curves or steps over edges, with the bound as a dashed line in each."""

    title: str
    bars: Sequence[Bar] = ()
    lines: Sequence[Line] = ()
    edges: Sequence[float] = ()  # of histogram steps: a line has one value fewer
    bound: float | None = None
    bound_label: str = ""
    xlabel: str = ""
    ylabel: str = ""
    is_log_x: bool = False
    is_log_y: bool = False
    xticks: Sequence[float] = ()
    xtick_labels: Sequence[str] = ()


def can_draw() -> bool:
    """Return whether matplotlib is there."""
    return importlib.util.find_spec("matplotlib") is not None


def is_ours(label: str) -> bool:
    """Return whether a subject is this library."""
    return label.startswith("pool_party")


def _colours(panels: Sequence[Panel]) -> dict[str, str]:
    """Return a colour for every curve: ours by their kind, bounds their own, others the remaining ones."""
    colours: dict[str, str] = {}
    left = itertools.cycle(_OTHER_COLOURS)
    for line in itertools.chain.from_iterable(panel.lines for panel in panels):
        if line.label in colours:
            continue
        if line.label.startswith(NO_POOL):
            colours[line.label] = BOUND
        elif is_ours(line.label):
            colours[line.label] = next((c for kind, c in _FAMILIES.items() if kind in line.label), OURS)
        else:
            colours[line.label] = next(left)
    return colours


def _draw_bars(axes: Any, panel: Panel) -> None:
    places = range(len(panel.bars))
    values = [0.0 if math.isnan(bar.value) else bar.value for bar in panel.bars]
    axes.barh(places, values, color=[OURS if is_ours(bar.label) else OTHERS for bar in panel.bars], height=0.75)
    axes.set_yticks(places, [bar.label for bar in panel.bars])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    if panel.is_log_x and any(value > 0 for value in values):
        axes.set_xscale("log")
    left = axes.get_xlim()[0]
    for place, value, bar in zip(places, values, panel.bars, strict=True):
        axes.annotate(bar.text, (max(value, left), place), (3, 0), textcoords="offset points", va="center", fontsize=7)
    axes.margins(x=0.25)
    if panel.bound is not None:
        axes.axvline(panel.bound, color=BOUND, linestyle="--", linewidth=1)
        axes.set_xlabel(panel.bound_label, color=BOUND, fontsize=7)


def _draw_lines(axes: Any, panel: Panel, colours: dict[str, str]) -> None:
    from matplotlib.ticker import LogLocator

    axes.set_xlabel(panel.xlabel)
    for line in panel.lines:
        style = {"color": colours[line.label], "linestyle": line.style, "label": line.label}
        style |= {"linewidth": 1.6 if is_ours(line.label) else 1.0}
        if panel.edges:
            axes.stairs(line.ys, panel.edges, **style)
        else:
            axes.plot(line.xs, line.ys, marker="o", markersize=2.5, **style)
    if panel.bound is not None:
        axes.axhline(panel.bound, color=BOUND, linestyle=":", linewidth=1.2, label=panel.bound_label)
    if panel.is_log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    if panel.is_log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
    elif not panel.edges:
        axes.set_ylim(bottom=0)
    if panel.xticks:
        axes.set_xticks(panel.xticks, panel.xtick_labels or [f"{tick:g}" for tick in panel.xticks])


def _draw(axes: Any, panel: Panel, colours: dict[str, str]) -> None:
    axes.set_title(panel.title, loc="left")
    axes.set_ylabel(panel.ylabel)
    if panel.bars:
        _draw_bars(axes, panel)
    else:
        _draw_lines(axes, panel, colours)
    axes.minorticks_off()


def _hide_repeated_labels(grid: Any, panels: Sequence[Panel], columns: int) -> None:
    """Hide the names of bars if the leftmost panel of the row has the same ones."""
    for number, panel in enumerate(panels):
        leftmost = panels[number - number % columns]
        if number % columns and [bar.label for bar in panel.bars] == [bar.label for bar in leftmost.bars]:
            grid[number // columns][number % columns].set_yticklabels([])


def _add_legend(figure: Any, all_axes: Sequence[Any], columns: int, height_in: float) -> None:
    """Put one legend for the curves of all panels below the panels."""
    handles: dict[str, Any] = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    n_rows = math.ceil(len(handles) / columns)
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=columns, frameon=False, fontsize=7.5)
    figure.tight_layout(rect=(0, (0.1 + 0.17 * n_rows) / height_in, 1, 1))


def _shrink(svg: str) -> str:
    """Return a picture of half the size: one decimal, the font named once, no comments, indentation or unused names."""
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d)\d+", r"\1", tag[0]), svg)
    svg = re.sub(r' id="[a-zA-Z.0-9]+_\d+"', "", svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r' transform="rotate\(-0[^"]*"', "", svg)
    svg = svg.replace('<style type="text/css">', f'<style type="text/css">text{{font-family: {_FONTS}}}', 1)
    return "\n".join(filter(None, map(str.strip, svg.splitlines()))) + "\n"


def draw(path: Path, panels: Sequence[Panel], columns: int, size_in: tuple[float, float]) -> Path:
    """Draw panels in rows of `columns`, each of `size_in`; curves share one legend."""
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    has_bars = bool(panels[0].bars)
    width_in, height_in = size_in[0] * columns, size_in[1] * rows + (0 if has_bars else 0.6)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width_in, height_in))
        grid = figure.subplots(rows, columns, squeeze=False)
        all_axes = list(grid.flat)
        colours = _colours(panels)
        for axes, panel in zip(all_axes, panels, strict=False):
            _draw(axes, panel, colours)
        for axes in all_axes[len(panels) :]:
            axes.set_axis_off()
        if has_bars:
            _hide_repeated_labels(grid, panels, columns)
            figure.tight_layout()
        else:
            _add_legend(figure, all_axes, max(2, int(width_in / 2.6)), height_in)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    path.write_text(_shrink(text.getvalue()))
    return path


type Picture = Callable[[Path], Path]


def picture(panels: Sequence[Panel], columns: int, size_in: tuple[float, float]) -> Picture | None:
    """Return how to draw panels; None if they are empty."""
    shown = [panel for panel in panels if panel.bars or panel.lines]
    return (lambda path: draw(path, shown, columns, size_in)) if shown else None
