"""Draws the picture of the document and of README.md from the benchmarks' own figures: none is written by hand.

The picture has a background of its own, light or dark as the reader's system asks for.
"""

from collections.abc import Iterable
from typing import NamedTuple

from goals import Found

# Pixels; labels stand left of the bars, values right of them. It is narrow, so that a phone need not shrink it much.
WIDTH, MARGIN, LABELS, VALUES = 480, 16, 214, 64
ROW, BAR, GAP = 24, 14, 34

STYLE = """
  text { font: 14px "DejaVu Sans", Verdana, sans-serif; fill: #24292f }
  .title { font-weight: bold }
  .card { fill: #ffffff; stroke: #d0d7de }
  .ours { fill: #2166ac } .others { fill: #b3bac2 }
  .us { font-weight: bold }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .card { fill: #161b22; stroke: #30363d }
    .ours { fill: #4a9be8 } .others { fill: #59616b }
  }
"""


class Bar(NamedTuple):
    """A row of the picture."""

    label: str
    value: float
    text: str
    is_ours: bool


def read_round_trips(found: Found) -> list[Bar]:
    """Median times of `apply(noop)`, the quickest first."""
    pools = found.get("dispatch", {}).get("sections", {}).get("round-trip", {})
    left_out = ("joblib", "Pool, fork", "pool_party process, fork")
    medians = {
        name: pool["summary"]["median"]
        for name, pool in pools.items()
        if "summary" in pool and name not in left_out and not name.startswith("no pool")
    }
    return [
        Bar(name.replace("pool_party ", "pool_party, "), us, f"{us:.0f} us", name.startswith("pool_party"))
        for name, us in sorted(medians.items(), key=lambda item: item[1])
    ]


WAYS = {
    "default": "Pool as it is",
    "joblib": "joblib, loky",
    "one-worker": "one worker, all BLAS threads",
    "one-thread": "Pool, one BLAS thread",
    "dynamic": 'pool_party, "dynamic"',
}


def read_uneven_tasks(found: Found) -> list[Bar]:
    """Seconds for one task, then a few, then many, which compute eigenvalues in worker processes; the least first."""
    measured = found.get("cells", {}).get("results", [])
    fewest = min((entry["n_workers"] for entry in measured), default=0)
    seconds = {
        entry["way"]: entry["median_s"]
        for entry in measured
        if (entry["kind"], entry["cell"], entry["n_workers"]) == ("process", "unbalanced-little", fewest)
        and entry["way"] in WAYS
        and "median_s" in entry
    }
    return [
        Bar(WAYS[way], taken, f"{taken:.2f} s", way == "dynamic")
        for way, taken in sorted(seconds.items(), key=lambda item: item[1])
    ]


def draw_panel(title: str, bars: list[Bar], top: int) -> Iterable[str]:
    """A heading and a row for each bar, from this height on."""
    yield f'<text class="title" x="{MARGIN}" y="{top}">{title}</text>'
    scale = (WIDTH - 2 * MARGIN - LABELS - VALUES) / max(bar.value for bar in bars)
    for row, bar in enumerate(bars):
        y = top + 12 + row * ROW
        x, width = MARGIN + LABELS, max(2.0, bar.value * scale)
        bold = ' class="us"' if bar.is_ours else ""
        yield f'<text{bold} x="{x - 10}" y="{y + BAR - 2}" text-anchor="end">{bar.label}</text>'
        colour = "ours" if bar.is_ours else "others"
        yield f'<rect class="{colour}" x="{x}" y="{y}" width="{width:.1f}" height="{BAR}"/>'
        yield f'<text{bold} x="{x + width + 8:.1f}" y="{y + BAR - 2}">{bar.text}</text>'


def draw(found: Found) -> str:
    """The picture, as SVG; the empty string unless there are figures for both of its halves."""
    panels = {
        "A call and its answer: apply(noop), median": read_round_trips(found),
        "NumPy in uneven tasks: one, then a few, then many": read_uneven_tasks(found),
    }
    if not all(panels.values()):
        return ""
    parts, top = [], MARGIN + 14
    for title, bars in panels.items():
        parts += draw_panel(title, bars, top)
        top += len(bars) * ROW + GAP + 14
    height = top - GAP - 14 + MARGIN
    card = f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>'
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n".join([head, f"<style>{STYLE}</style>", card, *parts, "</svg>", ""])
