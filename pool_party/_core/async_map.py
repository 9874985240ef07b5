"""`amap`: iterates in asyncio over the results of a function, with a limit on the number of calls under way."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from pool_party._core.awaiting import give_up, release, until, value_of, when_done

if TYPE_CHECKING:
    from pool_party._core.results import Call


class _Window:
    """The calls that were submitted and whose results have not been taken: at most `limit`. One thread uses it."""

    def __init__(self, submit: "Callable[[Any], Call]", limit: int, is_ordered: bool) -> None:
        self._submit = submit
        self._limit = limit
        self._is_ordered = is_ordered
        self.calls: set[Call] = set()
        self._queue: deque[Call] = deque()  # all calls in the order of the input; without order, those that are done
        self._taken: Call | None = None
        self._has_ended = False  # whether the input has ended
        self._error: BaseException | None = None  # what the input raised, or the submission of a call
        self._consumer: asyncio.Future[None] | None = None  # what `wait` awaits
        self._reader: asyncio.Future[None] | None = None  # what `read` awaits while there is no room

    # ---- the input ----

    def fill(self, source: Any) -> None:
        """Submit as many calls as there is room for, with the items of an iterator."""
        while self._has_room() and not self._has_ended:
            try:
                self._begin(next(source))
            except StopIteration:
                self._has_ended = True
            except Exception as error:
                self._end_input(error)

    async def read(self, source: "AsyncIterable[Any]") -> None:
        """Submit a call for each item of an asynchronous iterable. While there is no room, wait before the next item.

        This runs in an asyncio task of its own, and `note_read` is called at its end.
        """
        async for item in source:
            self._begin(item)
            while not self._has_room():
                self._reader = asyncio.get_running_loop().create_future()
                await self._reader

    def note_read(self, reading: "asyncio.Task[None]") -> None:
        """Note that the task of `read` has ended, because its input has ended, has failed or was cancelled."""
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

    def take(self) -> bool:
        """Take the next call if it is done, which makes room for another one. `value` then has its outcome."""
        if not self._queue or not self._queue[0].done:
            return False
        self._taken = self._queue.popleft()
        self.calls.discard(self._taken)
        if self._reader is not None:
            release(self._reader)
        return True

    def value(self) -> Any:
        """Return the value of the taken call, or raise its exception. Nothing refers to the call from then on."""
        call, self._taken = self._taken, None
        assert call is not None, "`take` returned True"
        try:
            return value_of(call)
        finally:
            del call  # as in `value_of`

    def is_over(self) -> bool:
        """Return whether there are no more results. Raise what the input raised, after the results before that."""
        if self.calls or not self._has_ended:
            return False
        if self._error is None:
            return True
        try:
            raise self._error
        finally:
            self._error = None  # breaks the reference cycle of exception, traceback and this object

    async def wait(self) -> None:
        """Wait until there may be a call to take, or the end."""
        self._consumer = asyncio.get_running_loop().create_future()
        await self._consumer


async def results(
    submit: "Callable[[Any], Call]",
    source: "Iterator[Any] | AsyncIterable[Any]",
    limit: int,
    is_ordered: bool,
    on_cancel: str,
) -> AsyncIterator[Any]:
    """Iterate over the values of `submit(x)` for each x, until one raises. The end gives up the calls that are left."""
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
            if window.take():
                if reading is None:
                    window.fill(items)  # so that workers compute while the consumer uses the result
                yield window.value()
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
    """Cancel the task that reads, and wait for its end. If it waits for its input, that is cancelled, too."""
    reading.cancel()
    await until(reading.done, lambda: asyncio.wait([reading]))
