"""The part of the report about packing arrays with the help of idle cores, and its goals."""

from collections.abc import Iterator

from tables import folded, size_text, table

from reporting.drawing import Line, Panel, picture
from reporting.found import Found, Json
from reporting.goals import Goal
from reporting.parts import Part
from reporting.transfers import size_ticks

_64_MB = 1 << 26
_SPEED_UP, _LOSS = 1.6, 0.98


def _loads(found: Found) -> dict[str, Json]:
    """Return figures by how busy the other cores are: {"n_busy": 0, "layouts": {LAYOUT: {SIZE: {"ratio": ...}}}}.

    "ratio" is serial to ours. Besides, there are "ratio_again", serial to itself, and "bound" if cores are idle.
    """
    loads: dict[str, Json] = found.benchmarks.get("packing", {}).get("loads", {})
    return loads


def _ratios(load: Json, key: str = "ratio") -> dict[str, dict[int, float]]:
    return {
        layout: {int(size): figures[key] for size, figures in by_size.items() if key in figures}
        for layout, by_size in load["layouts"].items()
    }


def _again(load: Json) -> list[float]:
    """Return the apparent speed-up of serial code over itself."""
    return [ratio for ratios in _ratios(load, "ratio_again").values() for ratio in ratios.values()]


def _lines(load: Json) -> list[Line]:
    ratios, bounds, again = (_ratios(load, key) for key in ("ratio", "bound", "ratio_again"))
    lines = [Line(layout, list(by_size), list(by_size.values())) for layout, by_size in ratios.items()]
    lines += [
        Line(layout, list(by_size), list(by_size.values()), style="--") for layout, by_size in bounds.items() if by_size
    ]
    for name, pick in (("lowest", min), ("highest", max)):
        if sizes := sorted({size for by_size in again.values() for size in by_size}):
            values = [pick(by_size[size] for by_size in again.values() if size in by_size) for size in sizes]
            lines.append(Line(f"serial again, {name}", sizes, values, style=":"))
    return lines


def _panel(title: str, load: Json, n_cpus: int) -> Panel:
    idle = max(1, n_cpus - load["n_busy"])
    ticks = size_ticks(size for ratios in _ratios(load).values() for size in ratios)
    return Panel(
        title,
        lines=_lines(load),
        bound=float(idle),
        bound_label="all idle cores, or serial",
        ylabel="x serial",
        is_log_x=True,
        xticks=ticks,
        xtick_labels=list(map(size_text, ticks)),
    )


def _text(title: str, load: Json) -> str:
    layouts: dict[str, Json] = load["layouts"]
    sizes = sorted({int(size) for by_size in layouts.values() for size in by_size})
    rows = []
    for layout, by_size in layouts.items():
        found = [by_size.get(str(size), {}) for size in sizes]
        rows.append([f"**{layout}**", *(f"{f['ours']:.3g} ms ({f['ratio']:.2f} x)" if f else "-" for f in found)])
        for name, key in (("serial again", "ratio_again"), ("bound: each core its share", "bound")):
            if any(key in f for f in found):
                rows.append([f"{layout}, {name}", *(f"{f[key]:.2f} x" if key in f else "-" for f in found)])
    return table([title, *map(size_text, sizes)], rows)


_INTRO = (
    "Times, and how many times as fast as the same code alone; higher is better. `serial again` is the same code as "
    "serial, measured as often and in turns with it: what the machine's noise makes of equals (dotted: the lowest and "
    "highest of all layouts). The bound, dashed: each core copies a share that it was given beforehand, and the time "
    "is that of the slowest share; what it lacks to the number of cores is due to the memory that they have in common."
)


def packing(found: Found) -> Part:
    """Speed-up over the same code in one thread, by layout, size and load."""
    loads, n_cpus = _loads(found), found.benchmarks["packing"]["metadata"].get("n_cpus_usable", 1)
    text = "\n\n".join(_text(title, load) for title, load in loads.items())
    panels = [_panel(title, load, n_cpus) for title, load in loads.items()]
    return Part(f"{_INTRO}\n\n{folded('Tables', text)}", picture(panels, 3, (3.5, 2.4)))


def packing_goals(found: Found) -> Iterator[Goal]:
    """Yield the goals of packing: faster if cores are idle, never slower if they are not."""
    what, goal = "packing 64 MB, other cores idle", f">= {_SPEED_UP} x serial"
    idle = {
        layout: ratios[_64_MB]
        for load in _loads(found).values()
        if not load["n_busy"]
        for layout, ratios in _ratios(load).items()
        if _64_MB in ratios
    }
    bounds = {
        layout: ratios[_64_MB]
        for load in _loads(found).values()
        for layout, ratios in _ratios(load, "bound").items()
        if _64_MB in ratios
    }
    text = ", ".join(
        f"{layout} {ratio:.2f} x" + (f" (bound {bounds[layout]:.2f} x)" if layout in bounds else "")
        for layout, ratio in idle.items()
    )
    yield Goal(what, goal, text, min(idle.values()) >= _SPEED_UP) if idle else Goal(what, goal)

    what, goal = "packing at every size and load", f">= {_LOSS} x serial"
    places = {
        f"{layout}, {size_text(size)}, {name}": ratio
        for name, load in _loads(found).items()
        for layout, ratios in _ratios(load).items()
        for size, ratio in ratios.items()
    }
    if not places:
        yield Goal(what, goal)
        return
    worst = min(places, key=lambda place: places[place])
    n_missed = sum(ratio < _LOSS for ratio in places.values())
    text = f"lowest {places[worst]:.2f} x ({worst}); {n_missed} of {len(places)} below"
    least = _LOSS
    if again := [ratio for load in _loads(found).values() for ratio in _again(load)]:
        least = min(_LOSS, *again)
        n_noisy = sum(ratio < _LOSS for ratio in again)
        text += f"; serial against itself: lowest {min(again):.2f} x, {n_noisy} of {len(again)} below"
    yield Goal(what, goal, text, places[worst] >= least)
