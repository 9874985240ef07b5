"""Preemption: assigns the time that a thread had no CPU, as the kernel counts it, to parts of its tasks.

The second number of /proc/<pid>/task/<tid>/schedstat is the thread's run delay: for how long it was runnable without a
CPU so far. Two readings tell how much it grew, but not when. The growth is assigned first to long gaps between two
tasks without a wait, and the rest to the ends of tasks.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

LEAST_NS = 20_000  # ns; smaller growth is ignored, since most of it is caused by the readings


class Look(NamedTuple):
    """A reading of a thread's run delay."""

    at_ns: int
    delay_ns: int


class Delay(NamedTuple):
    """How much the run delay grew between two moments."""

    start_ns: int
    end_ns: int
    delay_ns: int


def read_delay(pid: int, tid: int) -> int | None:
    """Read a thread's run delay in ns. None: no such thread, or the kernel does not count it."""
    try:
        with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return None


def between(looks: Iterable[Look]) -> Iterator[Delay]:
    """Yield how much it grew between readings of one thread, given in any order."""
    before: Look | None = None
    for look in sorted(looks):
        if before is not None:
            grown = min(look.delay_ns - before.delay_ns, look.at_ns - before.at_ns)
            if grown >= LEAST_NS:
                yield Delay(before.at_ns, look.at_ns, grown)
        before = look


def _take(delay: Delay, left_ns: int, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield parts, at most left_ns in total, at the ends of those spans that overlap with a delay."""
    n = bisect_right(spans, delay.end_ns, key=itemgetter(0)) - 1
    while left_ns > 0 and n >= 0 and spans[n][1] > delay.start_ns:
        start, end = max(spans[n][0], delay.start_ns), min(spans[n][1], delay.end_ns)
        if (part_ns := min(left_ns, end - start)) > 0:
            yield n, end - part_ns, end
            left_ns -= part_ns
        n -= 1


def place(
    delays: Iterable[Delay], gaps: Sequence[tuple[int, int]], tasks: Sequence[tuple[int, int]]
) -> Iterator[tuple[int | None, int, int]]:
    """Yield the parts of gaps and tasks that had no CPU, as (number of the task or None, start, end).

    Gaps and tasks are sorted pairs (start, end).

    The parts do not overlap, do not leave their gap or task, and add up to no more than the delays. Gaps come first,
    because between two tasks a worker only sends a result.
    """
    for delay in delays:
        left_ns = delay.delay_ns
        for _, start, end in _take(delay, left_ns, gaps):
            yield None, start, end
            left_ns -= end - start
        yield from _take(delay, left_ns, tasks)
