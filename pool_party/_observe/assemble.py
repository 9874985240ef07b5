"""Turns what workers recorded into spans, by pure functions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pool_party import _native
from pool_party._observe import delays
from pool_party._observe.events import PREEMPTED, TASK, WAIT, WAKE_UP, Budget, Span

_FAILURES = {
    _native.STATUS_FAILED: "raised",
    _native.STATUS_UNENCODABLE: "result does not pickle",
    _native.STATUS_BROKEN_INIT: "initializer failed",
}


class Present(NamedTuple):
    """What a worker was doing when recording stopped: since when, and on which task."""

    at_ns: int
    state: int
    since_ns: int
    call: int
    task: int
    is_dead: bool = False


@dataclass(eq=False)
class Life:
    """One worker from start to end: its events (native/channel/trace.c), readings of its run delay, its last state."""

    worker: int
    pid: int
    name: str
    events: list[tuple[int, ...]] = field(default_factory=list)
    looks: list[delays.Look] = field(default_factory=list)
    last: Present | None = None


def _bits(tags: int, start: int, end: int) -> int:
    return tags >> start & ((1 << end - start) - 1)


def _kind_in(tags: int) -> int:
    return tags >> _native.TAGS_KIND_AT


def _status_in(tags: int) -> int:
    return _bits(tags, _native.TAGS_STATUS_AT, _native.TAGS_KIND_AT)


def _n_threads_in(tags: int) -> int:
    return _bits(tags, _native.TAGS_THREADS_AT, _native.TAGS_STATUS_AT)


def _task_in(tags: int) -> int:
    return _bits(tags, 0, _native.TAGS_THREADS_AT)


class _Row:
    """The spans of one worker's life, in order."""

    def __init__(self, life: Life, names: Mapping[int, str], start_ns: int) -> None:
        self._life = life
        self._names = names
        self._start_ns = start_ns  # the start of the trace
        self._looks = list(life.looks)
        self._waking: dict[int, int] = {}  # end of a wait -> how long its wake-up took, in ns
        self._wait: Span | None = None  # the newest wait, until a task follows
        self._last_task = (0, 0)
        self._last_end_ns = start_ns
        self._gaps: list[tuple[int, int]] = []  # (start, end) between tasks without a wait
        self.tasks: list[Span] = []
        self.others: list[Span] = []

    def read(self) -> "_Row":
        for begin, end, third, call, tags, delay in self._life.events:
            kind = _kind_in(tags)
            if delay:
                self._looks.append(delays.Look(end, delay))
            if end < self._start_ns or kind == _native.EVENT_BUDGET:
                continue
            if kind == _native.EVENT_WAIT:
                self._add_wait(begin, end, {"asleep_us": third / 1000})
            else:
                status = _status_in(tags)
                self._add_task(begin, end, call, _task_in(tags), third, {"status": _FAILURES[status]} if status else {})
        if self._life.last is not None:
            self._add_last(self._life.last)
        return self

    def _cut(self, begin: int) -> int:
        """Return the begin of a span, moved behind the previous span."""
        begin = max(begin, self._last_end_ns)
        if begin - self._last_end_ns >= delays.LEAST_NS and (self.tasks or self.others):
            self._gaps.append((self._last_end_ns, begin))
        return begin

    def _add_wait(self, begin: int, end: int, args: dict[str, Any]) -> None:
        self._wait = Span(WAIT, self._life.worker, self._cut(begin), end, "", args)
        self.others.append(self._wait)
        self._last_end_ns = end

    def _add_task(self, begin: int, end: int, call: int, index: int, put_ns: int, args: dict[str, Any]) -> None:
        if begin < self._start_ns:
            args["began_before"] = True
        args["call"], args["task"] = call, index
        begin = self._cut(begin)
        if self._start_ns <= put_ns <= begin:
            args["queued_us"] = (begin - put_ns) / 1000
            self._note_wake_up(begin, put_ns, args)
        self._wait = None
        name = self._names.get(call, "task")
        self.tasks.append(Span(TASK, self._life.worker, begin, end, name, args))
        self._last_task, self._last_end_ns = (call, index), end

    def _note_wake_up(self, begin: int, put_ns: int, args: dict[str, Any]) -> None:
        wait = self._wait
        if wait is None or put_ns >= wait.end_ns:
            return
        since = max(put_ns, wait.start_ns)
        args["wake_up_us"] = (begin - since) / 1000
        self._waking[wait.end_ns] = wait.end_ns - since
        self.others.append(Span(WAKE_UP, wait.worker, since, wait.end_ns))

    def _add_last(self, last: Present) -> None:
        """Add what was in progress, unless its end was recorded in the meantime."""
        if last.at_ns <= max(self._last_end_ns, last.since_ns):
            return
        if last.state == _native.PRESENT_SLEEPS:
            self._add_wait(last.since_ns, last.at_ns, {"unfinished": True})
        elif last.state == _native.PRESENT_TASK and self._last_task != (last.call, last.task):
            args = {"status": "worker lost"} if last.is_dead else {"unfinished": True}
            self._add_task(last.since_ns, last.at_ns, last.call, last.task, 0, args)

    def spans(self) -> Iterator[Span]:
        """Yield all spans, including those of preemption."""
        grown = (
            delay._replace(delay_ns=delay.delay_ns - self._waking.get(delay.end_ns, 0))
            for delay in delays.between(self._looks)
        )
        bounds = [(task.start_ns, task.end_ns) for task in self.tasks]
        lost_ns = [0] * len(bounds)
        for n, start, end in delays.place(grown, self._gaps, bounds):
            if n is None:
                yield Span(PREEMPTED, self._life.worker, start, end, "", {"between_tasks": True})
            else:
                lost_ns[n] += end - start
                yield Span(PREEMPTED, self._life.worker, start, end)
        for task, lost in zip(self.tasks, lost_ns, strict=True):
            yield task._replace(args={**task.args, "preempted_us": lost / 1000}) if lost else task
        yield from self.others


def spans_of(lives: Iterable[Life], names: Mapping[int, str], start_ns: int) -> list[Span]:
    """Return the spans of some workers, in order. names: the calls' names, by number."""
    spans = [span for life in lives for span in _Row(life, names, start_ns).read().spans()]
    spans.sort(key=lambda span: (span.start_ns, -span.end_ns))
    return spans


def shared_budgets(lives: Iterable[Life], start_ns: int) -> Iterator[tuple[int, int]]:
    """Yield when the number of threads that a process's workers share changed, and to what."""
    found = sorted(
        (event[0], _n_threads_in(event[4]))
        for life in lives
        for event in life.events
        if _kind_in(event[4]) == _native.EVENT_BUDGET and event[0] >= start_ns
    )
    last = 0
    for at_ns, n_threads in found:
        if n_threads != last:
            last = n_threads
            yield at_ns, n_threads


def budgets_of(lives: Sequence[Life], grants: Iterable[Budget], n_workers: int, start_ns: int) -> list[Budget]:
    """Return changes of budgets in order: those of single workers, and those that a process's workers share."""
    shared = [Budget(n, at_ns, k) for at_ns, k in shared_budgets(lives, start_ns) for n in range(n_workers)]
    return sorted([*grants, *shared], key=lambda budget: budget.at_ns)
