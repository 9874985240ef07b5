"""Calls whose progress is shown. A thread of each such call counts its outcomes from time to time.

So tasks and results cost no more than without. The user's code begins and ends in the thread that makes the call and
takes its results, and runs in the other one in between.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

from pool_party._core.inputs import length_of
from pool_party._ground.threads import start_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
    from typing import Any

    from pool_party._core.engine import Engine
    from pool_party._core.futures import PoolFuture
    from pool_party._core.results import AsyncResult
    from pool_party._core.streams import StreamCall
    from pool_party._observe.progress import Progress, Watch

REST = 10  # the thread sleeps at least this many times as long as its last round took, so that it takes little of a CPU


class Follower:
    """Shows the progress of one call until `finish` or `stop`. Any thread may call these."""

    def __init__(self, watch: Watch, total: int | None, count: Callable[[], int], is_over: Callable[[], bool]) -> None:
        """count: returns how many items are done. is_over: returns whether that number will not change any more."""
        self._watch = watch
        self._count = count
        self._is_over = is_over
        self._stopped = threading.Event()
        self._ends = threading.Lock()  # taken once, by the first thread that ends this
        self._is_dropped = False
        watch.show(0, total)
        self._thread = threading.Thread(target=self._run, name="pool_party-progress")
        try:
            start_thread(self._thread)
        except RuntimeError:
            pass  # no thread can start now: the first and the final number are shown

    def _run(self) -> None:
        pause_s = self._watch.interval_s
        is_over = False
        while not self._stopped.wait(pause_s) and not is_over:
            began = monotonic()
            is_over = self._is_over()  # asked before, so that the last count is final
            self._watch.show(self._count())
            pause_s = max(self._watch.interval_s, REST * (monotonic() - began))
        if self._is_dropped:
            self._watch.finish(self._count(), is_complete=False)

    def finish(self, is_complete: bool = True) -> None:
        """Show the final number of items, and close what was opened for this call. Waits for the user's code.

        is_complete: this number is the total, if that was not known before.
        """
        if self._ends.acquire(blocking=False):
            self._stopped.set()
            if self._thread.ident is not None and self._thread is not threading.current_thread():
                self._thread.join()
            self._watch.finish(self._count(), is_complete)

    def stop(self) -> None:
        """Do what `finish` does a little later, in the other thread, since nobody wants the results. Does not block."""
        if self._ends.acquire(blocking=False):
            self._is_dropped = True
            self._stopped.set()


def open_watch(progress: Progress) -> Watch | None:
    """Return a watch for the argument `progress` of a call, or None. Raises: TypeError and ValueError."""
    if progress is None or progress is False:
        return None
    from pool_party._observe import progress as displays

    return displays.open_watch(progress)


def count_calls(iterables: tuple[Iterable[Any], ...]) -> int | None:
    """Return the length of `zip(*iterables)`, or None if one of them has no length."""
    lengths = [length_of(iterable) for iterable in iterables]
    known = [length for length in lengths if length is not None]
    return min(known, default=0) if len(known) == len(lengths) else None


def get[R](result: AsyncResult[R], watch: Watch | None = None) -> R:
    """Return the value of a call to which nobody else has a handle. The final count is shown before.

    If anything but the outcome ends this wait, such as Ctrl-C, its tasks that have not begun are withdrawn.
    """
    try:
        if watch is not None:
            _wait_and_show(result, watch)
        return result.get()
    except BaseException:
        if not result.settled and not result.engine.is_inherited:
            result.cancel_as(None)
        raise
    finally:
        del result  # breaks the reference cycle of exception, traceback and this frame


def _wait_and_show(result: AsyncResult[Any], watch: Watch) -> None:
    follower = Follower(watch, result.n_items, lambda: result.n_done, lambda: result.done)
    try:
        result.wait()
    finally:
        follower.finish(is_complete=False)


def follow_stream(call: StreamCall, total: int | None, watch: Watch | None) -> Follower | None:
    if watch is None:
        return None
    return Follower(watch, total, lambda: call.n_done, lambda: call.done)


class FollowedFutures:
    """The futures of a `map` that are left, each for a chunk of items."""

    def __init__(
        self, watch: Watch, total: int | None, futures: deque[PoolFuture[Any]], chunk: int, engine: Engine
    ) -> None:
        self.n_taken = 0  # the items whose results have been taken
        self._futures = futures
        self._chunk = chunk
        self._n_workers = engine.n_workers
        self._follower = Follower(watch, total, self._count, lambda: not engine.is_running)

    def _count(self) -> int:
        """Count the items that are done. The last chunk counts as if it were full, unless the total is known.

        Workers begin the futures in this order, so at most one for each worker is not done and precedes one that is.
        """
        n_done = n_others = 0
        for future in self._snapshot():
            if future.done():
                n_done += 1
            elif (n_others := n_others + 1) > self._n_workers:
                break
        return self.n_taken + n_done * self._chunk

    def _snapshot(self) -> deque[PoolFuture[Any]]:
        while True:
            try:
                return self._futures.copy()
            except RuntimeError:  # another thread has changed it meanwhile, as it can without a GIL
                continue

    def stop_with(self, results: Iterator[Any]) -> None:
        """Stop if the iterator over the results becomes garbage, even if it was never used."""
        self._results = weakref.ref(results, lambda _: self._follower.stop())

    def stop(self) -> None:
        """Show no more: the iterator was closed."""
        self._follower.stop()

    def finish(self, is_complete: bool) -> None:
        """Show the final count; see `Follower.finish`."""
        self._follower.finish(is_complete)
