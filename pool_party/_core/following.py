"""Calls whose progress is shown: the thread that waits for results wakes up from time to time, and shows it."""

from collections.abc import Iterable, Sized
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections import deque
    from concurrent.futures import Future

    from pool_party._core.results import MapResult
    from pool_party._core.streams import StreamCall, Take
    from pool_party.observe.progress import Progress, Watch


def open_watch(progress: "Progress") -> "Watch | None":
    """Return a watch for the argument `progress` of a call, or None. Raises: TypeError and ValueError."""
    if progress is None or progress is False:
        return None
    from pool_party.observe import progress as displays

    return displays.open_watch(progress)


def count_calls(iterables: tuple[Iterable[Any], ...]) -> int | None:
    """Return the length of `zip(*iterables)`, or None if one of them has no length."""
    lengths = [len(xs) if isinstance(xs, Sized) else -1 for xs in iterables]
    shortest = min(lengths, default=0)
    return None if shortest < 0 else shortest


def get(result: "MapResult", watch: "Watch | None") -> list[Any]:
    """Return the values of a map. The last count is shown before."""
    if watch is not None:
        try:
            watch.start(result.n_items)
            while not result.done:
                result.wait(watch.left_s(None))
                watch.note(result.n_done)
            watch.note(result.n_done)
        finally:
            watch.end()
    values: list[Any] = result.get()
    return values


def watched(take: "Take", call: "StreamCall", total: int | None, watch: "Watch | None") -> "Take":
    """Return `take`, or what does the same and shows progress."""
    if watch is None:
        return take
    watch.start(total)
    return partial(_take, take, watch)


def _take(take: "Take", watch: "Watch", call: "StreamCall", timeout: float | None) -> Any:
    """Take the next outcome. Nothing is shown between taking and returning it, since that might raise."""
    if watch.is_due():
        watch.note(call.n_done)
    deadline = None if timeout is None else monotonic() + timeout
    outcome = take(call, watch.interval_s if timeout is None else min(timeout, watch.interval_s))
    while outcome is False and (deadline is None or monotonic() < deadline):
        watch.note(call.n_done)
        outcome = take(call, watch.left_s(deadline))
    if outcome is None:
        watch.finish(call.n_done)
    return outcome


class WatchedFutures:
    """The futures of a `map` that are left, each for a chunk of items. One thread at a time uses it."""

    def __init__(
        self, watch: "Watch", futures: "deque[Future[Any]]", chunk: int, n_workers: int, total: int | None
    ) -> None:
        self._watch = watch
        self._futures = futures
        self._chunk = chunk
        self._n_workers = n_workers
        self._n_taken = 0
        watch.start(total)

    def wait(self, deadline: float | None) -> None:
        """Wait for the first one until the deadline."""
        watch, call = self._watch, self._futures[0]._call  # type: ignore[attr-defined]
        if watch.is_due():
            watch.note(self._count())
        while not call.wait(watch.left_s(deadline)) and (deadline is None or monotonic() < deadline):
            watch.note(self._count())

    def note_taken(self, n_items: int) -> None:
        """Note that the first future's results were taken, and that it is not among the others any more."""
        self._n_taken += n_items

    def finish(self) -> None:
        """Show the final count: all results were taken."""
        self._watch.finish(self._n_taken)

    def end(self) -> None:
        """Show no more."""
        self._watch.end()

    def _count(self) -> int:
        """Count the items that are done. The last chunk counts as if it were full, unless the total is known.

        Workers begin the futures in this order, so at most one for each worker is not done and precedes one that is.
        """
        n_done = n_others = 0
        for future in self._futures:
            if future.done():
                n_done += 1
            elif (n_others := n_others + 1) > self._n_workers:
                break
        return self._n_taken + n_done * self._chunk
