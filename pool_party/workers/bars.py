"""`pool_party.progress`: a task notes how far a loop is where the parent reads it (native/python/bars.c)."""

from pool_party import _native
from pool_party.workers import loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any


def progress[T](iterable: "Iterable[T]", desc: str = "", *, total: int | None = None) -> "Iterable[T]":
    """Iterate over the same items. In a task, the call's `progress=` also shows how far this loop is. Does not block.

    Without `progress=` nothing is shown, and the items are iterated over as they are. Outside tasks, a bar of tqdm is
    shown on a terminal and in a notebook.

    Args:
        iterable: The items.
        desc: What the bar is called: the first 64 bytes of it. "": the name of the worker.
        total: The number of items. None: the length of `iterable`, if it has one.

    Returns:
        An iterable. A bar is open while it is iterated over.

    Raises:
        Exception: By the iteration: what iterating over `iterable` raises.

    Guarantees:
        No result waits for a bar. The bars of a task are closed when it ends, and when its worker is killed. Four of
        them can be open at a time; further loops are not shown, and neither are those in threads that a task starts.
    """
    is_shown = _native.shows_bars()
    if is_shown is None and not loop.is_remote:
        from pool_party.observe import progress as displays

        return displays.bar_over(iterable, desc, total)
    return _Counted(iterable, desc, total) if is_shown else iterable


class _Counted[T]:
    """Counts the items that a loop is through with."""

    def __init__(self, iterable: "Iterable[T]", desc: str, total: int | None) -> None:
        self._iterable = iterable
        self._text = str(desc).encode(errors="replace")
        self._total = _length_of(iterable) if total is None else total

    def __iter__(self) -> "Iterator[T]":
        number = _native.open_bar(self._total, self._text)
        count = _native.count_bar
        try:
            for n, item in enumerate(self._iterable, 1):
                yield item
                count(number, n)
        finally:
            _native.close_bar(number)


def _length_of(iterable: "Any") -> int:
    """Return the length of an iterable, or -1 if it has none."""
    try:
        return len(iterable)
    except TypeError:
        return -1
