"""What a trace consists of. Times are CLOCK_MONOTONIC's, in ns, which is one clock for all processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

TASK = "task"  # a worker has a task: it decodes the argument, calls the function and encodes the result
WAIT = "wait"  # a worker has no task: it looks for one, or sleeps
WAKE_UP = "wake-up"  # the end of a wait: from the moment that a task was put until the worker begins it
PREEMPTED = "preempted"  # the worker's thread was runnable but had no CPU, in a task or between two
KINDS = (TASK, WAIT, WAKE_UP, PREEMPTED)

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Span(NamedTuple):
    """Something that took time in one worker slot. Spans of a slot do not overlap, unless one contains the other.

    Arguments of a task: call; task (its number in the call); queued_us (put and not yet begun); wake_up_us (the part of
    that in which its worker was waiting); preempted_us; status, if it failed; began_before, unfinished: the trace's
    begin or end cut it off. Arguments of a wait: asleep_us. Arguments of a preemption between two tasks: between_tasks.
    """

    kind: str
    worker: int
    start_ns: int
    end_ns: int
    name: str = ""
    args: Mapping[str, Any] = _NOTHING

    @property
    def duration_ns(self) -> int:
        """Its duration in ns."""
        return self.end_ns - self.start_ns


class Mark(NamedTuple):
    """Something that happened to one worker at one moment. worker None: to the pool."""

    worker: int | None
    at_ns: int
    name: str
    args: Mapping[str, Any] = _NOTHING


class Budget(NamedTuple):
    """The number of threads that the libraries in a worker may use from this moment on."""

    worker: int
    at_ns: int
    n_threads: int


@dataclass
class Trace:
    """A part of a pool's life, as recorded. Spans are ordered by their begin, a containing span before those in it.

    about: the pool's kind, policy and the like. n_dropped: how many events were recorded but dropped.
    """

    start_ns: int
    end_ns: int
    n_workers: int
    spans: Sequence[Span] = ()
    marks: Sequence[Mark] = ()
    budgets: Sequence[Budget] = ()
    n_dropped: int = 0
    about: dict[str, Any] = field(default_factory=dict)

    def of(self, kind: str) -> list[Span]:
        """Return the spans of one kind."""
        return [span for span in self.spans if span.kind == kind]
