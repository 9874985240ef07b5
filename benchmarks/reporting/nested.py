"""The parts of the report about nested parallelism: cells, and scaling with the number of workers."""

import math
from collections.abc import Sequence

from tables import folded, table

from reporting.drawing import Bar, Line, Panel, is_ours, picture
from reporting.found import Found, Json
from reporting.parts import KINDS, Part

_CELLS = ("balanced-little", "balanced-much", "unbalanced-little", "unbalanced-much")
_WAYS = {
    "default": "standard library",
    "one-thread": "one BLAS thread",
    "one-worker": "one worker, all BLAS threads",
    "joblib": "joblib",
    "none": "pool_party, no policy",
}


def _way(way: str, kind: str) -> str:
    """Return the name of a way; in interpreters, ours without a policy replaces the standard library."""
    if (way, kind) == ("default", "interp"):
        return "ours without a policy"
    return _WAYS.get(way, f"pool_party, {way}")


def _cells_table(rows: Sequence[Json], kind: str) -> str:
    lines: dict[str, dict[str, str]] = {}
    bounds: dict[str, str] = {}
    for row in rows:
        cells = lines.setdefault(_way(row["way"], row["kind"]), {})
        if "median_s" in row:
            cells[row["cell"]] = f"{row['median_s']:.2f} s ({row['ratio']:.2f})"
            bounds[row["cell"]] = f"{row['best_per_stage_s']:.2f} s"
        else:
            cells[row["cell"]] = _cut(row)
    lines["best fixed way of each stage"] = bounds
    body = [
        [f"**{name}**" if is_ours(name) else name, *(cells.get(c, "-") for c in _CELLS)]
        for name, cells in lines.items()
    ]
    reasons = {
        f"- {_way(row['way'], row['kind'])}: {row['failure']}" for row in rows if row.get("failure", ">")[0] != ">"
    }
    return "\n\n".join(filter(None, (table([kind, *_CELLS], body), "\n".join(sorted(reasons)))))


def _cut(row: Json) -> str:
    """Return the limit that a way exceeded, or a dash if it was not measured."""
    failure: str = row["failure"]
    return failure if failure.startswith(">") else "-"


def _cell_panel(rows: Sequence[Json], kind: str, cell: str) -> Panel:
    chosen = [row for row in rows if row["cell"] == cell and "median_s" in row]
    bars = [
        Bar(
            _way(row["way"], row["kind"]),
            row.get("median_s", math.nan),
            f"{row['median_s']:.2f} s" if "median_s" in row else _cut(row),
        )
        for row in rows
        if row["cell"] == cell
    ]
    if not chosen:
        bars = []
    bound = next((row["best_per_stage_s"] for row in chosen if not math.isnan(row["best_per_stage_s"])), None)
    return Panel(f"{kind}: {cell}", bars=bars, bound=bound, bound_label="best fixed way per stage")


def cells(found: Found) -> Part:
    """Seconds of every way in the four cells of nested parallelism."""
    results: Sequence[Json] = found.benchmarks["cells"]["results"]
    numbers = sorted({row["n_workers"] for row in results})
    texts = ["Seconds, and the ratio to the best of the fixed ways, those that are not a policy of pool_party."]
    for n_workers in numbers:
        for kind in KINDS:
            if rows := [row for row in results if (row["kind"], row["n_workers"]) == (kind, n_workers)]:
                texts.append(_cells_table(rows, f"{kind}, {n_workers} workers"))
    fewest = [row for row in results if row["n_workers"] == min(numbers, default=0)]
    panels = [
        _cell_panel([row for row in fewest if row["kind"] == kind], kind, cell) for kind in KINDS for cell in _CELLS
    ]
    height_in = 0.7 + 0.18 * max((len(panel.bars) for panel in panels), default=0)
    return Part(folded("Tables", "\n\n".join(texts)), picture(panels, 4, (3.4, height_in)))


def _scaling_panel(points: Sequence[Json], bounds: Sequence[Json], kind: str, cell: str) -> Panel:
    chosen = [p for p in points if (p["kind"], p["cell"]) == (kind, cell) and "median_s" in p]
    lines = []
    for way in dict.fromkeys(point["way"] for point in chosen):
        times_s = {point["n_workers"]: point["median_s"] for point in chosen if point["way"] == way}
        numbers = sorted(times_s)
        lines.append(Line(_way(way, kind), numbers, [times_s[n] for n in numbers]))
    bound = next((b["bound_s"] for b in bounds if (b["kind"], b["cell"]) == (kind, cell)), None)
    ticks = sorted({point["n_workers"] for point in points})
    label = "one worker, one thread, divided by the CPUs"
    return Panel(
        f"{kind}: {cell}",
        lines=lines,
        bound=bound,
        bound_label=label,
        xlabel="workers",
        ylabel="s",
        xticks=ticks,
        is_log_y=True,
    )


def scaling(found: Found) -> Part:
    """Seconds by the number of workers."""
    figures = found.benchmarks["scaling"]
    points, bounds = figures["points"], figures.get("bounds", [])
    numbers = sorted({point["n_workers"] for point in points})
    texts = []
    for kind in KINDS:
        rows: dict[tuple[str, str], dict[int, str]] = {}
        for point in points:
            if point["kind"] != kind:
                continue
            text = f"{point['median_s']:.2f}" if "median_s" in point else point["failure"]
            shown = text if "median_s" in point or text.startswith(">") else "-"
            rows.setdefault((point["cell"], _way(point["way"], kind)), {})[point["n_workers"]] = shown
        body = [[f"{cell}, {way}", *(texts_of.get(n, "-") for n in numbers)] for (cell, way), texts_of in rows.items()]
        if body:
            texts.append(table([f"{kind}, seconds by workers", *map(str, numbers)], sorted(body)))
    panels = [_scaling_panel(points, bounds, kind, cell) for kind in KINDS for cell in _CELLS]
    return Part(folded("Tables", "\n\n".join(texts)), picture(panels, 4, (2.7, 2.0)))
