"""Awaiting calls in asyncio, and cancelling them when the task that awaits them is cancelled.

No thread waits for a call that is awaited, and nothing polls: the thread of callbacks tells the event loop that the
call is done. If many calls are done while the loop is busy, one wake-up serves them all.

This module is imported when it is first used, because asyncio is slow to import.
"""

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pool_party import _native
from pool_party._core.options import check_on_cancel
from pool_party._ground.threads import start_detached

if TYPE_CHECKING:
    from pool_party._core.results import Call
    from pool_party._ground.choices import OnCancel

type Deed = Callable[[], object]


# ---- telling a loop ----


class _Wakeups:
    """What an event loop has to do because calls are done. Any thread may call `tell`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._due: deque[Deed] = deque()
        self._is_woken = False  # `_catch_up` will run and look at `_due`

    def tell(self, deed: Deed) -> None:
        """Have the loop call `deed` soon. A closed loop calls nothing, and nobody awaits anything in it."""
        self._due.append(deed)  # before the check: `_catch_up` clears the flag first, so it finds this or we see that
        if not self._is_woken:
            self._is_woken = True
            loop = self._loop()
            try:
                if loop is not None:
                    loop.call_soon_threadsafe(self._catch_up)
            except RuntimeError:
                self._due.clear()
                self._is_woken = False

    def _catch_up(self) -> None:
        self._is_woken = False
        with suppress(IndexError):  # this ends: only calls that this loop awaits are told here
            while True:
                self._due.popleft()()


# Only a loop's own thread uses its entry. It lasts while something awaits a call, because the deeds refer to the loop.
_wakeups: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Wakeups]]" = weakref.WeakKeyDictionary()


def _wakeups_of(loop: asyncio.AbstractEventLoop) -> _Wakeups:
    reference = _wakeups.get(loop)
    found = None if reference is None else reference()
    if found is None:
        found = _Wakeups(loop)
        _wakeups[loop] = weakref.ref(found)
    return found


def when_done(call: "Call", deed: Deed) -> Deed:
    """Have the running loop call `deed` once a call is done. Return the argument for `Call.discard_awaiter`.

    If the calling thread runs a callback of that very call, the outcome is there: `deed` is called at once.
    """
    loop = asyncio.get_running_loop()
    tell = partial(_wakeups_of(loop).tell, deed)
    if not call.engine.begin_wait(call):
        deed()
    elif not call.add_awaiter(tell):
        _do_when_done(call, deed, loop)
    return tell


def _do_when_done(call: "Call", deed: Deed, loop: asyncio.AbstractEventLoop) -> None:
    """Call `deed` once a call is done whose outcome is decided.

    Another thread may still be in the C function that makes the call done, which takes a moment.
    """
    if call.done:
        deed()
    else:
        loop.call_soon(_do_when_done, call, deed, loop)


def release(waiter: "asyncio.Future[None]") -> None:
    """End the wait for an asyncio future, which may have been cancelled."""
    if not waiter.done():
        waiter.set_result(None)


async def _wait(call: "Call") -> None:
    waiter = asyncio.get_running_loop().create_future()
    tell = when_done(call, partial(release, waiter))
    try:
        await waiter
    finally:
        call.discard_awaiter(tell)


async def _wait_for_first(calls: "list[Call]") -> None:
    """Wait for the first of the calls that are not done. There may be none any more."""
    for call in calls:
        if not call.done:
            await _wait(call)
            return


# ---- awaiting ----


async def outcome(call: "Call", on_cancel: "OnCancel | None") -> Any:
    """Return a call's value once it is there, or raise its exception. Cancelling the last awaiter cancels the call."""
    on_cancel = on_cancel or call.on_cancel
    check_on_cancel(on_cancel, call.engine.kind)
    if not call.done:
        try:
            await _wait(call)
        except asyncio.CancelledError:
            if not call.awaiters:
                await give_up([call], on_cancel)
            raise
    try:
        return value_of(call)
    finally:
        del call  # as in `value_of`


def value_of(call: "Call") -> Any:
    """Return the value of a call that is done, or raise its exception: asyncio's CancelledError if it was cancelled."""
    if call.status == _native.STATUS_OK:
        return call.value
    if call.status == _native.STATUS_CANCELLED:
        raise asyncio.CancelledError
    if call.returns_error:
        return call.error()
    try:
        raise call.error()
    finally:
        del call  # breaks the reference cycle of exception, traceback and this frame


async def give_up(calls: "list[Call]", on_cancel: str) -> None:
    """Withdraw the tasks of calls that no worker has begun. `on_cancel` says what happens to the others.

    Either none of the calls is a map, or all are. A cancellation meanwhile takes effect afterwards.
    """
    left = [call for call in calls if not call.done and (not call.engine.cancel(call) or call.has_parts)]
    if not left or on_cancel == "abandon":
        return
    if on_cancel == "wait" and not left[0].has_parts:
        await until(lambda: all(call.done for call in left), lambda: _wait_for_first(left))
    else:
        await in_thread(partial(_end, left, on_cancel == "kill"), is_patient=True)


def _end(calls: "list[Call]", kills: bool) -> None:
    for call in calls:
        call.engine.end(call, kills)


async def until(is_so: Callable[[], bool], wait: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Await `wait()` until a condition holds. A cancellation meanwhile takes effect afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not is_so():
        try:
            await wait()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


# ---- functions that block ----


async def in_thread[T](function: Callable[[], T], *, is_patient: bool = False) -> T:
    """Call a function that blocks in a thread of its own, since the loop's executor may have no idle thread.

    If the awaiting task is cancelled, the function goes on in its thread. With `is_patient` the cancellation waits for
    its end. The loop's thread does not wait until the new thread has begun either, since threads that hold the GIL can
    delay that by several milliseconds each.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    values: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            values.append(function())
        except BaseException as error:
            errors.append(error)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(release, ended)

    start_detached(threading.Thread(target=run, name="pool_party-asyncio"))
    if is_patient:
        await until(ended.done, lambda: asyncio.wait([ended]))
    else:
        await ended
    if errors:
        raise errors.pop()
    return values[0]


class Opening[T]:
    """A pool that is to be opened: `await` it, or use it in `async with`, which ends as the pool's own does.

    Args:
        make: Opens the pool. It blocks.
        undo: Ends a pool that was opened for a task that has been cancelled meanwhile. It blocks.
    """

    def __init__(self, make: Callable[[], T], undo: Callable[[T], object]) -> None:
        self._make = make
        self._undo = undo
        self._pool: Any = None

    async def _open(self) -> T:
        opened: list[T] = []
        try:
            await in_thread(lambda: opened.append(self._make()), is_patient=True)
        except asyncio.CancelledError:
            for pool in opened:
                await in_thread(partial(self._undo, pool), is_patient=True)
            raise
        return opened[0]

    def __await__(self) -> Generator[object, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._pool = await self._open()
        pool: T = await self._pool.__aenter__()
        return pool

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._pool.__aexit__(kind, error, traceback)
