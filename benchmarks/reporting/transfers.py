"""The part of the report about transferring values to a task and back, and its goals.

The sections have the median time in microseconds of each subject by size in bytes:
{"median_us": {"Pool": {"524288": 1200.0, ...}, ...}, "failures": {...}}.
"""

from collections.abc import Iterable, Iterator

from tables import duration, folded, size_text, table

from reporting.drawing import NO_POOL, Line, Panel, is_ours, picture
from reporting.found import Found, Json
from reporting.goals import Goal, judge
from reporting.parts import Part, us
from reporting.science import array_time_s

_HALF_MB, _64_MB = 1 << 19, 1 << 26
_TICKS = (1, 1 << 5, 1 << 10, 1 << 15, 1 << 20, 1 << 23, 1 << 26, 1 << 28)
_BOUNDS = {
    "pipe": f"{NO_POOL}: a bare pipe",
    "memcpy": f"{NO_POOL}: memcpy",
    "memcpy, new objects": f"{NO_POOL}: memcpy, new objects",
}
_BOUND_STYLES = {"pipe": "--", "new objects": "-."}
_NOTE = (
    "Times of one call, there and back. The bound, memcpy: one copy there and one back, by one thread, into memory "
    "that is used again. `new objects`: the same into bytes objects that are made for it, as whoever returns a new "
    "object has to. Ours can be below these: large arrays arrive as views of the memory that they were sent in, and "
    "idle cores help to copy."
)


def _curves(section: Json) -> dict[str, dict[int, float]]:
    """Return times in microseconds by subject and size."""
    medians_us: dict[str, Json] = section.get("median_us", {})
    return {
        _BOUNDS.get(subject, subject): {int(size): time_us for size, time_us in by_size.items()}
        for subject, by_size in medians_us.items()
    }


def size_ticks(sizes: Iterable[int]) -> list[int]:
    """Return round sizes to mark on an axis that shows these."""
    known = list(sizes)
    return [tick for tick in _TICKS if min(known, default=0) <= tick <= max(known, default=0)]


def _style_of(subject: str) -> str:
    return next((style for end, style in _BOUND_STYLES.items() if subject.endswith(end)), "-")


def _panel(title: str, section: Json) -> Panel:
    lines = [
        Line(subject, list(by_size), list(by_size.values()), style=_style_of(subject))
        for subject, by_size in _curves(section).items()
    ]
    ticks = size_ticks(size for by_size in _curves(section).values() for size in by_size)
    labels = list(map(size_text, ticks))
    return Panel(title, lines=lines, ylabel="us", is_log_x=True, is_log_y=True, xticks=ticks, xtick_labels=labels)


def _section_text(title: str, section: Json) -> str:
    curves = _curves(section)
    sizes = sorted({size for by_size in curves.values() for size in by_size})
    rows = [
        [
            f"**{subject}**" if is_ours(subject) else subject,
            *(us(by_size[size]) if size in by_size else "-" for size in sizes),
        ]
        for subject, by_size in curves.items()
    ]
    failures = [f"- not measured: {subject}: {reason}" for subject, reason in section.get("failures", {}).items()]
    return "\n\n".join((table([title, *map(size_text, sizes)], rows), *failures))


def transfer(found: Found) -> Part:
    """Times there and back by size."""
    sections: dict[str, Json] = found.benchmarks["transfer"]["sections"]
    text = "\n\n".join(_section_text(title, section) for title, section in sections.items())
    panels = [_panel(title, section) for title, section in sections.items()]
    return Part(f"{_NOTE}\n\n{folded('Tables', text)}", picture(panels, 2, (4.6, 2.8)))


def _time_s(found: Found, section: str, subject: str, size: int) -> float | None:
    medians_us: dict[str, Json] = found.section("transfer", section).get("median_us", {})
    time_us = medians_us.get(subject, {}).get(str(size))
    return None if time_us is None else time_us / 1e6


def _array_s(found: Found, subject: str) -> float | None:
    """Return the time of an array of 64 MB as transfer.py has measured it, otherwise as science.py has."""
    time_s = _time_s(found, "ndarray", subject, _64_MB)
    return array_time_s(found, subject) if time_s is None else time_s


def transfer_goals(found: Found) -> Iterator[Goal]:
    """Yield the design's rows about values there and back."""
    for kind, least, peer in (("process", 10, "Pool"), ("interp", 5, "InterpreterPoolExecutor")):
        pair = tuple(_time_s(found, "bytes", name, _HALF_MB) for name in (f"pool_party {kind}", peer))
        yield _faster(f"0.5 MB of `bytes` there and back, {kind}", least, (pair[0], pair[1]), peer)
    peers = ("Pool", "loky")
    times = {peer: time_s for peer in peers if (time_s := _array_s(found, peer)) is not None}
    best = min(times, key=lambda peer: times[peer], default=peers[0])
    for kind in ("process", "interp"):
        pair = (_array_s(found, f"pool_party {kind}"), times.get(best))
        yield _faster(f"64 MB ndarray there and back, {kind}", 10, pair, "the faster of Pool and loky", best)


def _faster(what: str, least: float, pair: tuple[float | None, float | None], whom: str, peer: str = "") -> Goal:
    goal = f"<= 1/{least:g} x {whom}"
    return judge(what, goal, pair, peer or whom, duration, lambda quotient: quotient <= 1 / least)
