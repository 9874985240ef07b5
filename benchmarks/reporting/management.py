"""The parts of the report about the cost of managing parallelism: overhead, and waking workers."""

import math
import statistics
from collections.abc import Iterable, Sequence

from tables import duration, folded, table

from reporting.drawing import Bar, Line, Panel, is_ours, picture
from reporting.found import Found, Json, measured
from reporting.parts import KINDS, Part, failure_list, us


def _medians(found: Iterable[Json], order: str, key: str) -> float:
    values = [figures[order][key] for figures in found if order in figures]
    return statistics.median(values) if values else math.nan


def _family(method: str) -> str:
    if "process" in method or method == "Pool":
        return "process"
    return "interp" if "interp" in method else "thread"


def _style_of(subject: str) -> str:
    if "master last" in subject:
        return "-."
    return "--" if "affinity" in subject else "-"


def _management_panel(section: Json, kind: str, key: str, ylabel: str) -> Panel:
    lines = []
    for method, found in section.items():
        if not isinstance(found, list) or _family(method) != kind:
            continue
        orders = list(found[0])
        ys = [_whole(found, order) if key == "whole" else _medians(found, order, key) for order in orders]
        lines.append(Line(_method(method), [float(order) for order in orders], ys, style=_style_of(method)))
    bound = None if key == "pmo_us" else 1.0
    return Panel(
        f"{kind}: {ylabel}",
        lines=lines,
        bound=bound,
        bound_label="a share alone" if bound else "",
        xlabel="order",
        is_log_x=True,
        is_log_y=key != "pce",
        xticks=[float(order) for order in next((list(f[0]) for f in section.values() if isinstance(f, list)), [])],
    )


def _method(method: str) -> str:
    return method.replace("affinity, master last", "master last")


def _whole(found: Iterable[Json], order: str) -> float:
    """Return the time of the whole divided by that of a single share, its bound."""
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
        "divided by that of a share alone (ATLAS: Castaldo and Whaley). Dashed: with affinity; dots and "
        "dashes: with the caller as last worker, too."
    )
    return Part("\n\n".join((intro, folded("Tables", "\n\n".join(texts)))), picture(panels, 3, (3.5, 2.2)))


def _is_kind(subject: str, kind: str) -> bool:
    families = {
        "thread": ("pool_party thread", "ThreadPool", "ThreadPoolExecutor"),
        "interp": ("pool_party interp", "InterpreterPoolExecutor"),
        "process": ("pool_party process", "Pool", "ProcessPoolExecutor", "loky"),
    }
    name = subject.removesuffix(", affinity")
    return name in families[kind]


def wake_up(found: Found) -> Part:
    """The latency from the call to the first line of a task in each worker."""
    section, edges = found.section("wake-up", "wake-up"), found.benchmarks["wake-up"].get("edges_us", ())
    rows = []
    for subject, sums in measured(section):
        times = [us(sums["summary"][key]) for key in ("median_us", "p90_us", "p99_us")]
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
            lines.append(Line(subject, (), shares, style=_style_of(subject)))
    return Panel(
        kind, lines=lines, edges=edges, xlabel="us until the task begins", ylabel="% of wake-ups", is_log_x=True
    )


# ---- traces ----


def tracing(found: Found) -> Part:
    """Times of empty tasks with a trace and without."""
    rows, bars = [], []
    for kind, rounds in found.benchmarks["tracing"]["kinds"].items():
        for way in rounds[0]:
            map_ns, call_us = (
                statistics.median(figures[way][key] for figures in rounds) for key in ("map_ns", "call_us")
            )
            rows.append([f"{kind}, {way}", f"{map_ns:.0f} ns", f"{call_us:.2f} us"])
            bars.append(
                Bar(f"pool_party {kind}, {way}" if way == "a trace" else f"{kind}, {way}", map_ns, f"{map_ns:.0f} ns")
            )
    text = table(["", "`map`, per task", "one call"], rows)
    return Part(folded("Table", text), picture([Panel("map, ns per task", bars=bars)], 1, (5.2, 2.2)))
