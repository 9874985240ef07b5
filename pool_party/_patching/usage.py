"""What became of the pools that a program asked for, counted for the report at its end."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from pool_party import _native


class Replaced(NamedTuple):
    """A pool of ours that a program opened under another name."""

    part: str  # of the table of patches
    name: str  # what the program called, such as "multiprocessing.Pool"
    kind: str  # of the workers that it got
    caller: str  # the module that called it
    n_workers: int


class LeftAlone(NamedTuple):
    """A pool that the program got as it was."""

    part: str
    name: str
    caller: str
    reason: str  # a full sentence


_lock = _native.Guard()  # reentrant, since a signal handler may open a pool
_counts: Counter[Replaced | LeftAlone] = Counter()
on_note: list[Callable[[], object]] = []  # called after each pool that was counted


def note(event: Replaced | LeftAlone) -> None:
    """Count one pool. Any thread may call it."""
    with _lock:
        _counts[event] += 1
    for listener in on_note:
        listener()


def forget() -> None:
    """Begin anew, in a child that was forked. Another thread of the parent may have held the lock."""
    global _lock
    _lock = _native.Guard()
    _counts.clear()


def counts() -> dict[Replaced | LeftAlone, int]:
    """Return how often each was seen in this process, in the order of their first time. Any thread may call it."""
    with _lock:
        return dict(_counts)
