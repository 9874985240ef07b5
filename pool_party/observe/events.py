"""What a trace consists of, whoever recorded it. Times are CLOCK_MONOTONIC's, in ns: one clock for all processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

TASK = "task"  # a worker has a task: it decodes the argument, calls the function, encodes the result
WAIT = "wait"  # it has none: it looks for one, and sleeps
WAKE_UP = "wake-up"  # the end of a wait: from the moment that a task was handed out to that of its begin
PREEMPTED = "preempted"  # its thread could run but had no CPU, in a task or between two
KINDS = (TASK, WAIT, WAKE_UP, PREEMPTED)

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Span(NamedTuple):
    """Something that took time in one worker's place. Spans of a place do not overlap, unless one contains the other.

    Arguments of a task: call, task (its number in the call), queued_us (handed out, and not begun), wake_up_us (as far
    as its worker was waiting for it), preempted_us; status, if it failed; began_before, unfinished: the trace's begin
    or end cut it off. Of a wait: asleep_us. Of what was preempted between two tasks: between_tasks.
    """

    kind: str
    worker: int
    start_ns: int
    end_ns: int
    name: str = ""
    args: Mapping[str, Any] = _NOTHING

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


class Mark(NamedTuple):
    """Something that happened to one worker (None: to the pool) at one moment."""

    worker: int | None
    at_ns: int
    name: str
    args: Mapping[str, Any] = _NOTHING


class Budget(NamedTuple):
    """How many threads the libraries in a worker may use from now on."""

    worker: int
    at_ns: int
    n_threads: int


@dataclass
class Trace:
    """All that is known of some time of a pool's life. Spans are in order of their begin, a containing one first.

    about: the pool's kind, policy and the like; n_dropped: events that were recorded and had to be forgotten.
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
        """The spans of one kind."""
        return [span for span in self.spans if span.kind == kind]
