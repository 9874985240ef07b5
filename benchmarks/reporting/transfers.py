"""The parts of the report about data: transfers by size, and packing; and what is asked of them.

Both are sections whose subjects' summaries have a time in seconds for each size in bytes: {"524288": 0.0012, ...}.
"""

from collections.abc import Iterator

from reporting.drawing import Line, Panel, picture
from reporting.found import Found, Json, measured
from reporting.generic import generic
from reporting.goals import Goal, judge
from reporting.markdown import duration
from reporting.parts import Part
from reporting.science import array_times_s

_HALF_MB, _64_MB = 1 << 19, 1 << 26


def _by_size(sums: Json) -> dict[int, float]:
    return {int(size): time_s for size, time_s in sorted(sums["summary"].items(), key=lambda item: int(item[0]))}


def _panel(title: str, section: Json) -> Panel:
    lines = []
    for subject, sums in measured(section):
        times_s = _by_size(sums)
        lines.append(Line(subject, list(times_s), list(times_s.values())))
    return Panel(title, lines=lines, xlabel="bytes", ylabel="s", is_log_x=True, is_log_y=True)


def _part(name: str, found: Found) -> Part:
    sections: dict[str, Json] = found.benchmarks[name]["sections"]
    panels = [_panel(title, section) for title, section in sections.items()]
    return Part(generic(name, found).text, picture(panels, 3, (3.9, 2.8)))


def transfer(found: Found) -> Part:
    """Return transfers by size."""
    return _part("transfer", found)


def packing(found: Found) -> Part:
    """Return packing by size."""
    return _part("packing", found)


def _time_s(found: Found, section: str, subject: str, size: int) -> float | None:
    return found.figure("transfer", section, subject, str(size))


def _array_s(found: Found, subject: str) -> float | None:
    """Return how long 64 MB take as an array: as transfer.py has measured it, or else science.py."""
    time_s = _time_s(found, "ndarray", subject, _64_MB)
    return array_times_s(found).get(subject) if time_s is None else time_s


def transfer_goals(found: Found) -> Iterator[Goal]:
    """Yield the rows of the design about values there and back."""
    for kind, least, peer in (("process", 10, "Pool"), ("interp", 5, "InterpreterPoolExecutor")):
        pair = tuple(_time_s(found, "bytes", name, _HALF_MB) for name in (f"pool_party {kind}", peer))
        yield _faster(f"0.5 MB of `bytes` there and back, {kind}", least, (pair[0], pair[1]), peer)
    peers = ("Pool", "loky")
    times = {peer: time_s for peer in peers if (time_s := _array_s(found, peer)) is not None}
    best = min(times, key=lambda peer: times[peer], default=peers[0])
    for kind in ("process", "interp"):
        pair = (_array_s(found, f"pool_party {kind}"), times.get(best))
        yield _faster(f"64 MB ndarray there and back, {kind}", 10, pair, best)


def _faster(what: str, least: float, pair: tuple[float | None, float | None], peer: str) -> Goal:
    goal = f"<= 1/{least:g} x {peer}"
    return judge(what, goal, pair, peer, duration, lambda quotient: quotient <= 1 / least)


def packing_goals(found: Found) -> Iterator[Goal]:
    """Yield what is asked of packing: faster where cores are idle, never slower where they are not."""
    yield Goal("packing in parallel, 64 MB, 2 idle cores", ">= 1.6 x serial")
    yield Goal("packing in parallel where it cannot win", ">= 0.98 x serial")
