"""The part of the report about people who compute: sweeps of scikit-learn, pandas and SciPy, and a large array."""

import math
import statistics
from collections.abc import Callable

from reporting.drawing import Bar, Panel, is_ours, picture
from reporting.found import Found, Json
from reporting.markdown import duration, folded, table
from reporting.parts import Part

_SERIAL = "serial"


def array_times_s(found: Found) -> dict[str, float]:
    """Return how long an array of 64 MB takes to a worker and back, by pool."""
    figures: dict[str, Json] = found.section("science", "transfer").get("figures", {})
    return {way: times["median_s"] for way, times in figures.items()}


def _sweep_s(figures: Json) -> dict[str, float]:
    return {name: statistics.median(rounds) for name, rounds in figures["rounds_s"].items()}


def _bars(values: dict[str, float | None], write: Callable[[float], str], scale: float = 1.0) -> list[Bar]:
    return [
        Bar(way, math.nan, "-") if value is None else Bar(way, value * scale, write(value))
        for way, value in values.items()
    ]


def _mb(value: float) -> str:
    return f"{value / 1e6:.0f} MB"


def _sweep_table(sweeps: dict[str, Json]) -> str:
    workloads = list(next(iter(sweeps.values()))["rounds_s"])
    rows = []
    for way, figures in sweeps.items():
        times_s = _sweep_s(figures)
        cells = [duration(times_s[name]) for name in workloads]
        cells += [duration(figures[key]) if figures.get(key) else "-" for key in ("first_s", "all_s")]
        cells.append(_mb(figures["bytes_per_worker"]) if figures.get("bytes_per_worker") else "-")
        rows.append([f"**{way}**" if is_ours(way) else way, *cells])
    return table(["", *workloads, "first result", "all workers", "memory per worker"], rows)


def _failures(section: Json) -> list[str]:
    return [f"- not measured: {way}: {reason}" for way, reason in section.get("failures", {}).items()]


def science(found: Found) -> Part:
    """Sweeps and the transfer of an array by all ways."""
    section = found.section("science", "sweep")
    sweeps: dict[str, Json] = section.get("figures", {})
    arrays_s = array_times_s(found)
    n_workers = found.benchmarks["science"]["metadata"].get("n_workers", 1)
    texts = [_sweep_table(sweeps)] if sweeps else []
    if arrays_s:
        rows = [[f"**{way}**" if is_ours(way) else way, duration(time_s)] for way, time_s in arrays_s.items()]
        texts.append(table(["a large array there and back", "median"], rows))
    texts += _failures(section) + _failures(found.section("science", "transfer"))
    totals: dict[str, float | None] = {way: sum(_sweep_s(figures).values()) for way, figures in sweeps.items()}
    serial_s = totals.get(_SERIAL)
    bound_s = None if serial_s is None else serial_s / n_workers
    memory = {way: figures.get("bytes_per_worker") for way, figures in sweeps.items()}
    panels = [
        Panel("all workloads, s", _bars(totals, duration), bound=bound_s, bound_label=f"serial / {n_workers}"),
        Panel("memory per worker, MB", _bars(memory, _mb, 1e-6)),
        Panel("a large array there and back, ms", _bars(dict(arrays_s), duration, 1e3), is_log_x=True),
    ]
    return Part(folded("Tables", "\n\n".join(texts)), picture(panels, 3, (3.9, 2.4)))
