"""`amap`: the results of a function for the items of an iterable, in asyncio, with a limit to what is under way."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from pool_party._core.awaiting import give_up, release, until, value_of, when_done

if TYPE_CHECKING:
    from pool_party._core.results import Call


class _Window:
    """The calls that were begun and whose results have not been consumed: at most `limit`. For one loop's thread."""

    def __init__(self, submit: "Callable[[Any], Call]", limit: int, is_ordered: bool) -> None:
        self._submit = submit
        self._limit = limit
        self._is_ordered = is_ordered
        self.calls: set[Call] = set()
        self._queue: deque[Call] = deque()  # in order of the input; if that does not matter, those that are done
        self._has_ended = False  # the input
        self._error: BaseException | None = None  # by which the input ended, or that a call could not be begun
        self._consumer: asyncio.Future[None] | None = None  # who waits for news
        self._reader: asyncio.Future[None] | None = None  # who waits for room

    # ---- the input ----

    def fill(self, source: Any) -> None:
        """Begins as many calls as there is room for, with the items of an iterator."""
        while self._has_room() and not self._has_ended:
            try:
                self._begin(next(source))
            except StopIteration:
                self._has_ended = True
            except Exception as error:
                self._end_input(error)

    async def read(self, source: "AsyncIterable[Any]") -> None:
        """Begin a call with each item of an asynchronous iterable, as soon as there is room for it.

        This runs in a task of its own, which `note_read` is told the end of.
        """
        async for item in source:
            self._begin(item)
            while not self._has_room():
                self._reader = asyncio.get_running_loop().create_future()
                await self._reader

    def note_read(self, reading: "asyncio.Task[None]") -> None:
        """Note that the task of `read` has ended: its input has ended, was cancelled or has failed."""
        self._end_input(asyncio.CancelledError() if reading.cancelled() else reading.exception())

    def _has_room(self) -> bool:
        return len(self.calls) < self._limit

    def _begin(self, item: Any) -> None:
        call = self._submit(item)
        self.calls.add(call)
        if self._is_ordered:
            self._queue.append(call)
        when_done(call, partial(self._note_done, call))

    def _end_input(self, error: BaseException | None) -> None:
        self._error = error
        self._has_ended = True
        self._tell_consumer()

    # ---- the results ----

    def _note_done(self, call: "Call") -> None:
        if not self._is_ordered:
            self._queue.append(call)
        self._tell_consumer()

    def _tell_consumer(self) -> None:
        if self._consumer is not None:
            release(self._consumer)

    def take(self) -> "Call | None":
        """The next call, if it is done. There is room for another one then."""
        if not self._queue or not self._queue[0].done:
            return None
        call = self._queue.popleft()
        self.calls.discard(call)
        if self._reader is not None:
            release(self._reader)
        return call

    def is_over(self) -> bool:
        """Whether there are no more results. Raises: what the input raised, after the results before that."""
        if self.calls or not self._has_ended:
            return False
        if self._error is None:
            return True
        try:
            raise self._error
        finally:
            self._error = None  # breaks the reference cycle of exception, traceback and this object

    async def wait(self) -> None:
        """Waits until there may be something to take, or the end."""
        self._consumer = asyncio.get_running_loop().create_future()
        await self._consumer


async def results(
    submit: "Callable[[Any], Call]",
    source: "Iterator[Any] | AsyncIterable[Any]",
    limit: int,
    is_ordered: bool,
    on_cancel: str,
) -> AsyncIterator[Any]:
    """The values of `submit(x)` for each x, until one has failed. Its end gives up the calls that are left."""
    window = _Window(submit, limit, is_ordered)
    if isinstance(source, AsyncIterable):
        items: Iterator[Any] = iter(())
        reading = asyncio.ensure_future(window.read(source))
        reading.add_done_callback(window.note_read)
    else:
        items, reading = source, None
    try:
        while True:
            if reading is None:
                window.fill(items)
            if (call := window.take()) is not None:
                if reading is None:
                    window.fill(items)  # workers compute while the result is being used
                yield value_of(call)
            elif window.is_over():
                return
            else:
                await window.wait()
    finally:
        try:
            if reading is not None:
                await _end(reading)
        finally:
            await give_up(list(window.calls), on_cancel)


async def _end(reading: "asyncio.Task[None]") -> None:
    """Ends the task that reads, which runs the input's own `finally` blocks, and awaits that."""
    reading.cancel()
    await until(reading.done, lambda: asyncio.wait([reading]))
