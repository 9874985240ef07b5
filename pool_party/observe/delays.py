"""Preemption: from what the kernel counts for a thread to the parts of its tasks that had no CPU.

The second number of /proc/<pid>/task/<tid>/schedstat is the thread's run delay: for how long, in all, it could run and
had no CPU. Of two looks at it the difference is known, not when in between it grew. It is placed where the worker was
between two tasks for long without waiting, and what is left at the end of the tasks.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

LEAST_NS = 20_000  # what is less between two looks is of no interest, and most of it is the looks' own


class Look(NamedTuple):
    """A thread's run delay so far, and when it was so much."""

    at_ns: int
    delay_ns: int


class Delay(NamedTuple):
    """How much of it came between two moments."""

    start_ns: int
    end_ns: int
    delay_ns: int


def read_delay(pid: int, tid: int) -> int | None:
    """A thread's run delay in ns; None if there is no such thread, or the kernel does not say."""
    try:
        with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return None


def between(looks: Iterable[Look]) -> Iterator[Delay]:
    """What came between looks at one thread, whatever their order."""
    before: Look | None = None
    for look in sorted(looks):
        if before is not None:
            grown = min(look.delay_ns - before.delay_ns, look.at_ns - before.at_ns)
            if grown >= LEAST_NS:
                yield Delay(before.at_ns, look.at_ns, grown)
        before = look


def _take(delay: Delay, left_ns: int, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Parts at the ends of those spans that overlap with a delay's time, of left_ns together at most."""
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
    """The parts of gaps and tasks, as sorted (start, end), that had no CPU: (number of the task or None, start, end).

    They neither overlap nor leave their gap or task, and make up no more than the delays. Gaps come first: between two
    tasks a worker only sends a result.
    """
    for delay in delays:
        left_ns = delay.delay_ns
        for _, start, end in _take(delay, left_ns, gaps):
            yield None, start, end
            left_ns -= end - start
        yield from _take(delay, left_ns, tasks)
