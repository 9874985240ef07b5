"""The parts of the report for dispatch, modes and memory: their tables, and their panels to draw."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tables import duration, folded, number, table

from reporting.drawing import Bar, Panel, Picture, is_ours, picture
from reporting.found import Found, Json, failures, measured

KINDS = ("thread", "process", "interp")


@dataclass(frozen=True, slots=True)
class Part:
    """What a benchmark adds to the page: text, and a named picture if there is anything to draw."""

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


def us(value: float) -> str:
    """Return a time given in microseconds."""
    return duration(value / 1e6)


_DISPATCH: dict[str, tuple[str, dict[str, tuple[str, Callable[[float], str]]]]] = {
    "throughput": (
        "`map` of tasks that do nothing, one task a chunk: tasks per second; higher is better",
        {"median": ("median", number), "best": ("best", number)},
    ),
    "round-trip": (
        "One call and its answer; lower is better",
        {
            "median": ("median", us),
            "p99": ("p99", us),
            "idle_median": ("after 2 ms without a task", us),
            "idle_p99": ("p99", us),
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
        bar_panel(found.section("dispatch", "round-trip"), "median", "round trip, us", us, is_log=True),
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


# ---- memory ----


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
