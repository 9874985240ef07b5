"""What became of the pools that a program asked for, counted for the report at its end."""

import threading
from collections import Counter
from typing import NamedTuple


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


_lock = threading.RLock()  # reentrant, since a signal handler may open a pool
_counts: Counter[Replaced | LeftAlone] = Counter()


def note(event: Replaced | LeftAlone) -> None:
    """Count one pool. Any thread may call it."""
    with _lock:
        _counts[event] += 1


def counts() -> dict[Replaced | LeftAlone, int]:
    """Return how often each was seen in this process, in the order of their first time. Any thread may call it."""
    with _lock:
        return dict(_counts)
