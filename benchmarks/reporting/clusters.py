"""The part of the report about pools on many machines, which are simulated.

The sections are named after the workers of a node. The summary of each subject has "n_nodes", "task_ms", the rate that
was reached, and the bound of that rate.
"""

from collections.abc import Iterator

from tables import duration, folded, number, ratio

from reporting.drawing import NO_POOL, Line, Panel, picture
from reporting.found import Found, Json, measured
from reporting.parts import Part, failure_list, summary_table, us

_NOTE = (
    "The nodes are simulated, and the pool is real: what its program pays for them, without the transport. The bound "
    "is the lowest of three rates: that of the workers, that of the tasks which a pool has under way at most, and that "
    "of one node whose tasks take no time. `of ideal` leaves out the second one. CPU time is that of the program, "
    "without the simulation's own, which has a column of its own."
)


def _ms(value: float) -> str:
    return duration(value / 1e3)


COLUMNS = {
    "tasks_per_s": ("tasks per second", number),
    "share": ("of ideal", ratio),
    "share_of_bound": ("of the bound", ratio),
    "us_per_task": ("CPU time of a task", us),
    "dispatcher_us": ("dispatcher", us),
    "receiver_us": ("receiver", us),
    "caller_us": ("caller", us),
    "nodes_us": ("simulation", us),
    "call_ms": ("one call", _ms),
    "call_beside_ms": ("beside a full load", _ms),
    "open_ms": ("open", _ms),
    "join_ms": ("join later", _ms),
    "close_ms": ("close", _ms),
}


def _points(section: Json, key: str) -> Iterator[tuple[float, dict[int, float]]]:
    """Yield a figure by the number of nodes, for each duration of tasks."""
    summaries = [sums["summary"] for _, sums in measured(section)]
    for task_ms in sorted({found["task_ms"] for found in summaries} - {0}):
        yield task_ms, {found["n_nodes"]: found[key] for found in summaries if found["task_ms"] == task_ms}


def _lines(section: Json, key: str) -> list[Line]:
    return [
        Line(f"tasks of {task_ms:g} ms", list(by_nodes), list(by_nodes.values()))
        for task_ms, by_nodes in _points(section, key)
    ]


def _panels(title: str, section: Json) -> Iterator[Panel]:
    bounds = [
        Line(f"{NO_POOL}: the bounds", list(by_nodes), list(by_nodes.values()), style=":")
        for _, by_nodes in _points(section, "bound_per_s")
    ]
    ticks = sorted({int(x) for line in bounds for x in line.xs})
    for heading, lines in (
        ("tasks per second", [*_lines(section, "tasks_per_s"), *bounds]),
        ("CPU time of a task, us", _lines(section, "us_per_task")),
    ):
        yield Panel(f"{heading}, {title}", lines=lines, xlabel="nodes", is_log_x=True, is_log_y=True, xticks=ticks)


def cluster_size(found: Found) -> Part:
    """Rates, CPU times and latencies by the number of nodes."""
    sections: dict[str, Json] = found.benchmarks["cluster-size"]["sections"]
    texts = [
        "\n\n".join(filter(None, (f"{title}.", summary_table(section, COLUMNS), failure_list(section))))
        for title, section in sections.items()
    ]
    panels = [panel for title, section in sections.items() for panel in _panels(title, section)]
    return Part(f"{_NOTE}\n\n{folded('Tables', '\n\n'.join(texts))}", picture(panels, 2, (4.2, 2.6)))
