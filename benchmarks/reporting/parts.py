"""The part of the report that each benchmark has: its tables, and its panels to draw."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from reporting.drawing import Bar, Line, Panel, Picture, is_ours, picture
from reporting.found import Found, Json, failures, measured
from reporting.markdown import duration, folded, number, table

KINDS = ("thread", "process", "interp")


@dataclass(frozen=True, slots=True)
class Part:
    """What a benchmark adds to the page: text, and a picture under a name of its own if there is anything to draw."""

    text: str
    picture: Picture | None = None


def failure_list(section: Json) -> str:
    """Return the subjects that were not measured as a list; the empty string if all were."""
    return "\n".join(f"- not measured: {subject}: {reason}" for subject, reason in failures(section))


def _bound_of(section: Json, key: str) -> tuple[float | None, str]:
    for subject, sums in measured(section):
        if sums.get("is_bound"):
            return sums["summary"].get(key), subject
    return None, ""


def bar_panel(
    section: Json, key: str, title: str, write: Callable[[float], str], *, scale: float = 1.0, is_log: bool = False
) -> Panel:
    """Return a figure of every subject of a section as bars, with the bound as a line."""
    bound, label = _bound_of(section, key)
    values = {subject: sums["summary"].get(key) for subject, sums in measured(section) if not sums.get("is_bound")}
    bars = [
        Bar(subject, math.nan, "-") if value is None else Bar(subject, value * scale, write(value))
        for subject, value in values.items()
    ]
    if all(math.isnan(bar.value) for bar in bars):
        bars = []
    shown = None if bound is None else bound * scale
    return Panel(
        title, bars=bars, bound=shown, bound_label=f"{label}: {write(bound)}" if bound else "", is_log_x=is_log
    )


# ---- dispatch ----


def _us(value: float) -> str:
    return duration(value / 1e6)


_DISPATCH: dict[str, tuple[str, dict[str, tuple[str, Callable[[float], str]]]]] = {
    "throughput": (
        "`map` of tasks that do nothing, one task a chunk: tasks per second; higher is better",
        {"median": ("median", number), "best": ("best", number)},
    ),
    "round-trip": (
        "One call and its answer; lower is better",
        {
            "median": ("median", _us),
            "p99": ("p99", _us),
            "idle_median": ("after 2 ms without a task", _us),
            "idle_p99": ("p99", _us),
        },
    ),
    "start": (
        "From opening a pool to its first result; lower is better",
        {"median": ("median", duration), "again": ("once more", duration), "import": ("import", duration)},
    ),
    "idle": (
        "A pool without tasks; lower is better",
        {
            "cpu_percent": ("CPU, % of a core", lambda value: f"{value:.3f}"),
            "wake_ups_per_s": ("wake-ups per s", lambda value: f"{value:.1f}"),
        },
    ),
    "hostage": (
        "1,000 tasks, one of which takes 1 s; lower is better",
        {
            "median": ("last of the others", duration),
            "n_hostages": ("held up over 0.5 s", lambda value: f"{value:.0f}"),
        },
    ),
}


def summary_table(section: Json, columns: dict[str, tuple[str, Callable[[float], str]]]) -> str:
    """Return the summaries of a section as a table, with a row for each subject."""
    rows = []
    for subject, sums in measured(section):
        cells = [
            write(value) if (value := sums["summary"].get(key)) is not None else "-"
            for key, (_, write) in columns.items()
        ]
        rows.append([f"**{subject}**" if is_ours(subject) else subject, *cells])
    return table(["", *(heading for heading, _ in columns.values())], rows)


def dispatch(found: Found) -> Part:
    """Tasks per second, round trips, start, idleness, hostages."""
    texts = []
    for name, (title, columns) in _DISPATCH.items():
        if section := found.section("dispatch", name):
            texts.append(
                "\n\n".join(filter(None, (f"{title}.", summary_table(section, columns), failure_list(section))))
            )
    panels = [
        bar_panel(
            found.section("dispatch", "throughput"), "median", "tasks per second (more is better)", number, is_log=True
        ),
        bar_panel(found.section("dispatch", "round-trip"), "median", "round trip, us", _us, is_log=True),
        bar_panel(
            found.section("dispatch", "start"), "median", "open to first result, ms", duration, scale=1e3, is_log=True
        ),
        bar_panel(found.section("dispatch", "idle"), "cpu_percent", "CPU of an idle pool, % of a core", number),
    ]
    return Part(folded("Tables", "\n\n".join(texts)), picture(panels, 2, (5.2, 2.9)))


# ---- modes ----


def modes(found: Found) -> Part:
    """The time of every workload in every mode."""
    sections: dict[str, Json] = found.benchmarks["modes"]["sections"]
    subjects = list(dict.fromkeys(subject for section in sections.values() for subject, _ in measured(section)))
    rows = []
    for subject in subjects:
        cells = []
        for section in sections.values():
            summary = section.get(subject, {}).get("summary")
            cells.append(
                f"{duration(summary['median'])} ({summary.get('speed_up', math.nan):.2f} x)" if summary else "-"
            )
        rows.append([f"**{subject}**" if is_ours(subject) else subject, *cells])
    notes = [f"{workload}\n\n{text}" for workload, section in sections.items() if (text := failure_list(section))]
    text = "Times of a map, and speed-up over `sequential`.\n\n" + table(["", *sections], rows)
    panels = [bar_panel(section, "median", f"{name}, ms", duration, scale=1e3) for name, section in sections.items()]
    return Part(folded("Table", "\n\n".join((text, *notes))), picture(panels, 3, (3.9, 2.5)))


# ---- cells and scaling ----

_CELLS = ("balanced-little", "balanced-much", "unbalanced-little", "unbalanced-much")
_WAYS = {
    "default": "standard library",
    "one-thread": "one BLAS thread",
    "one-worker": "one worker, all BLAS threads",
    "joblib": "joblib",
    "none": "pool_party, no policy",
}


def _way(way: str) -> str:
    return _WAYS.get(way, f"pool_party, {way}")


def _cells_table(rows: Sequence[Json], kind: str) -> str:
    lines: dict[str, dict[str, str]] = {}
    bounds: dict[str, str] = {}
    for row in rows:
        cells = lines.setdefault(_way(row["way"]), {})
        if "median_s" in row:
            cells[row["cell"]] = f"{row['median_s']:.2f} s ({row['ratio']:.2f})"
            bounds[row["cell"]] = f"{row['best_per_stage_s']:.2f} s"
        else:
            cells[row["cell"]] = row["failure"] if row["failure"].startswith(">") else "-"
    lines["best fixed way of each stage"] = bounds
    body = [
        [f"**{name}**" if is_ours(name) else name, *(cells.get(c, "-") for c in _CELLS)]
        for name, cells in lines.items()
    ]
    reasons = {f"- {_way(row['way'])}: {row['failure']}" for row in rows if row.get("failure", ">")[0] != ">"}
    return "\n\n".join(filter(None, (table([kind, *_CELLS], body), "\n".join(sorted(reasons)))))


def _cell_panel(rows: Sequence[Json], kind: str, cell: str) -> Panel:
    chosen = [row for row in rows if row["cell"] == cell and "median_s" in row]
    bars = [
        Bar(_way(row["way"]), row.get("median_s", math.nan), f"{row['median_s']:.2f} s" if "median_s" in row else "-")
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
    return Part(folded("Tables", "\n\n".join(texts)), picture(panels, 4, (3.4, 1.6)))


def _scaling_panel(points: Sequence[Json], bounds: Sequence[Json], kind: str, cell: str) -> Panel:
    chosen = [p for p in points if (p["kind"], p["cell"]) == (kind, cell) and "median_s" in p]
    lines = []
    for way in dict.fromkeys(point["way"] for point in chosen):
        times_s = {point["n_workers"]: point["median_s"] for point in chosen if point["way"] == way}
        numbers = sorted(times_s)
        lines.append(Line(_way(way), numbers, [times_s[n] for n in numbers]))
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
            rows.setdefault((point["cell"], _way(point["way"])), {})[point["n_workers"]] = shown
        body = [[f"{cell}, {way}", *(texts_of.get(n, "-") for n in numbers)] for (cell, way), texts_of in rows.items()]
        if body:
            texts.append(table([f"{kind}, seconds by workers", *map(str, numbers)], sorted(body)))
    panels = [_scaling_panel(points, bounds, kind, cell) for kind in KINDS for cell in _CELLS]
    return Part(folded("Tables", "\n\n".join(texts)), picture(panels, 4, (2.7, 2.0)))


# ---- overhead ----


def _medians(found: Iterable[Json], order: str, key: str) -> float:
    values = [figures[order][key] for figures in found if order in figures]
    return statistics.median(values) if values else math.nan


def _family(method: str) -> str:
    if "process" in method or method == "Pool":
        return "process"
    return "interp" if "interp" in method else "thread"


def _management_panel(section: Json, kind: str, key: str, ylabel: str) -> Panel:
    lines = []
    for method, found in section.items():
        if not isinstance(found, list) or _family(method) != kind:
            continue
        orders = list(found[0])
        ys = [_whole(found, order) if key == "whole" else _medians(found, order, key) for order in orders]
        lines.append(Line(_method(method), [float(order) for order in orders], ys, is_dashed="affinity" in method))
    bound = None if key == "pmo_us" else 1.0
    return Panel(
        f"{kind}: {ylabel}",
        lines=lines,
        bound=bound,
        bound_label="a share alone" if bound else "",
        xlabel="order",
        is_log_x=True,
        is_log_y=key == "pmo_us",
        xticks=[float(order) for order in next((list(f[0]) for f in section.values() if isinstance(f, list)), [])],
    )


def _method(method: str) -> str:
    return method.replace("affinity, master last", "master last")


def _whole(found: Iterable[Json], order: str) -> float:
    """Return the time of the whole divided by that of one share alone, its bound."""
    values = [figures[order]["full_us"] / figures[order]["serial_share_us"] for figures in found]
    return statistics.median(values)


def _management_text(section: Json) -> list[str]:
    methods = {method: found for method, found in section.items() if isinstance(found, list)}
    if not methods:
        return []
    orders = list(next(iter(methods.values()))[0])
    texts = []
    for title, cell in (
        ("PMO (us) by order", lambda found, order: f"{_medians(found, order, 'pmo_us'):.0f}"),
        ("PCE by order", lambda found, order: f"{_medians(found, order, 'pce'):.2f}"),
        ("the whole, divided by a share alone", lambda found, order: f"{_whole(found, order):.2f}"),
    ):
        rows = [[method, *(cell(found, order) for order in orders)] for method, found in methods.items()]
        texts.append(table([title, *orders], rows))
    return texts


def _budget_text(section: Json) -> list[str]:
    rows = []
    for subject, found in section.items():
        if isinstance(found, list):
            medians = [statistics.median(figures[key] for figures in found) for key in ("apply_ns", "map_ns")]
            rows.append([subject, *(duration(value / 1e9) for value in medians)])
    return [table(["tasks that do nothing, by kind and policy", "`apply`", "`map`, per task"], rows)] if rows else []


def overhead(found: Found) -> Part:
    """PMO and PCE by problem size and technique; what budgets cost."""
    management, budget = (found.section("overhead", name) for name in ("management", "budget"))
    texts = [*_management_text(management), *_budget_text(budget)]
    texts += filter(None, map(failure_list, (management, budget)))
    measures = (("pmo_us", "PMO (us)"), ("pce", "PCE"), ("whole", "whole / share alone"))
    panels = [_management_panel(management, kind, key, label) for key, label in measures for kind in KINDS]
    intro = (
        "PMO: the time of the whole less that of its longest share (the bound is 0); PCE: that of the average share, "
        "divided by that of a share alone (ATLAS: Castaldo and Whaley). Dashed: with affinity."
    )
    return Part("\n\n".join((intro, folded("Tables", "\n\n".join(texts)))), picture(panels, 3, (3.5, 2.2)))


# ---- wake-ups and memory ----


def _is_kind(subject: str, kind: str) -> bool:
    families = {
        "thread": ("pool_party thread", "ThreadPool", "ThreadPoolExecutor"),
        "interp": ("pool_party interp", "InterpreterPoolExecutor"),
        "process": ("pool_party process", "Pool", "ProcessPoolExecutor", "loky"),
    }
    name = subject.removesuffix(", affinity")
    return name in families[kind]


def wake_up(found: Found) -> Part:
    """How long workers take from the call to the first line of a task."""
    section, edges = found.section("wake-up", "wake-up"), found.benchmarks["wake-up"].get("edges_us", ())
    rows = []
    for subject, sums in measured(section):
        times = [_us(sums["summary"][key]) for key in ("median_us", "p90_us", "p99_us")]
        workers = ", ".join(f"{worker['median_us']:.0f}" for worker in sums["workers"])
        rows.append([f"**{subject}**" if is_ours(subject) else subject, *times, workers])
    text = table(["", "median", "p90", "p99", "median of each worker, us"], rows)
    panels = [_wake_up_panel(section, edges, kind) for kind in KINDS]
    body = "\n\n".join(filter(None, (text, failure_list(section))))
    return Part(folded("Table", body), picture(panels, 3, (3.5, 2.6)))


def _wake_up_panel(section: Json, edges: Sequence[float], kind: str) -> Panel:
    lines = []
    for subject, sums in measured(section):
        if _is_kind(subject, kind) or sums.get("is_bound"):
            total = sum(sums["counts"]) or 1
            shares = [100 * count / total for count in sums["counts"]]
            lines.append(Line(subject, (), shares, is_dashed="affinity" in subject))
    return Panel(
        kind, lines=lines, edges=edges, xlabel="us until the task begins", ylabel="% of wake-ups", is_log_x=True
    )


def _mb(value: float) -> str:
    return f"{value / 1e6:.1f} MB"


def memory(found: Found) -> Part:
    """PSS of idle workers."""
    section = found.section("memory", "memory")
    columns = {
        "idle_bytes_per_worker": ("a further idle worker", _mb),
        "numpy_bytes_per_worker": ("with NumPy", _mb),
        "pool_bytes": ("an idle pool of two", _mb),
    }
    panels = [bar_panel(section, key, f"{heading}, MB", write, scale=1e-6) for key, (heading, write) in columns.items()]
    body = "\n\n".join(filter(None, (summary_table(section, columns), failure_list(section))))
    return Part(folded("Table", body), picture(panels, 3, (3.9, 2.8)))
