"""Calls in asyncio: awaiting their outcomes, and what becomes of them when their awaiter is cancelled.

No thread waits for a call that is awaited, and nothing polls: the thread of callbacks tells the loop that it is done. A
loop that is told of many calls while it is busy with something else wakes up once for all of them.

It is imported when it is first used, since asyncio is slow to import.
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
from pool_party._core.threads import start_thread

if TYPE_CHECKING:
    from pool_party._core.results import Call

ON_CANCEL = ("abandon", "wait", "kill")

type Deed = Callable[[], object]


def check_on_cancel(on_cancel: str, kind: str) -> None:
    """Raises: ValueError: it is none of the ways to give up a task, or not one for workers of this kind."""
    if on_cancel not in ON_CANCEL:
        raise ValueError(f'on_cancel must be "abandon", "wait" or "kill", not {on_cancel!r}')
    if on_cancel == "kill" and kind != "process":
        raise ValueError(f'on_cancel="kill" is for kind="process": no worker of kind={kind!r} can be killed')


# ---- telling a loop ----


class _Wakeups:
    """What a loop has to do since calls are done. `tell` is for any thread; the loop calls `_catch_up`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._due: deque[Deed] = deque()
        self._is_roused = False  # `_catch_up` is going to look at `_due`

    def tell(self, deed: Deed) -> None:
        """Has the loop do something soon. A loop that is closed does nothing any more, and nobody awaits in it."""
        self._due.append(deed)  # first: either `_catch_up` still finds it, or `_is_roused` is seen to be false
        if not self._is_roused:
            self._is_roused = True
            loop = self._loop()
            try:
                if loop is not None:
                    loop.call_soon_threadsafe(self._catch_up)
            except RuntimeError:
                self._due.clear()
                self._is_roused = False

    def _catch_up(self) -> None:
        self._is_roused = False  # first: what is told from now on rouses anew
        for _ in range(len(self._due)):
            self._due.popleft()()


# Each is used by its loop's thread only, and lives as long as somebody awaits a call: its deeds refer to the loop.
_wakeups: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Wakeups]]" = weakref.WeakKeyDictionary()


def _wakeups_of(loop: asyncio.AbstractEventLoop) -> _Wakeups:
    reference = _wakeups.get(loop)
    found = None if reference is None else reference()
    if found is None:
        found = _Wakeups(loop)
        _wakeups[loop] = weakref.ref(found)
    return found


def when_done(call: "Call", deed: Deed) -> Deed:
    """Has the running loop call `deed` once a call is done. Returns what `Call.discard_awaiter` takes."""
    loop = asyncio.get_running_loop()
    tell = partial(_wakeups_of(loop).tell, deed)
    if not call.add_awaiter(tell):
        _do_when_done(call, deed, loop)
    return tell


def _do_when_done(call: "Call", deed: Deed, loop: asyncio.AbstractEventLoop) -> None:
    """Its outcome is decided; another thread may still be in the C function that makes it done: then a little later."""
    if call.done:
        deed()
    else:
        loop.call_soon(_do_when_done, call, deed, loop)


def release(waiter: "asyncio.Future[None]") -> None:
    """Ends the wait for a future of asyncio's, which may have been cancelled."""
    if not waiter.done():
        waiter.set_result(None)


async def _wait(call: "Call") -> None:
    """Waits until a call is done. Raises: PoolPartyError in a forked child."""
    call.engine.check_not_in_vain(call)
    while not call.done:
        waiter = asyncio.get_running_loop().create_future()
        tell = when_done(call, partial(release, waiter))
        try:
            await waiter
        finally:
            call.discard_awaiter(tell)


# ---- awaiting ----


async def outcome(call: "Call", on_cancel: str) -> Any:
    """A call's value, once it is there, or what it raised. Cancelling the last awaiter gives the call up."""
    check_on_cancel(on_cancel, call.engine.kind)
    if not call.done:
        try:
            await _wait(call)
        except asyncio.CancelledError:
            if not call.awaiters:
                await give_up([call], on_cancel)
            raise
    return value_of(call)


def value_of(call: "Call") -> Any:
    """The value of a call that is done, or what it raised: as a future of asyncio's, if it was cancelled."""
    if call.status == _native.STATUS_OK:
        return call.value
    if call.status == _native.STATUS_CANCELLED:
        raise asyncio.CancelledError
    try:
        raise call.error()
    finally:
        del call  # no cycle of the exception, its traceback and this frame


async def give_up(calls: "list[Call]", on_cancel: str) -> None:
    """Withdraws what no worker has begun of calls that nobody awaits any more; `on_cancel` says what of the rest.

    The calls are all single ones, or all maps. Another cancellation does not stop it, and is raised afterwards.
    """
    left = [call for call in calls if not call.done and (not call.engine.cancel(call) or call.has_parts)]
    if not left or on_cancel == "abandon":
        return
    if on_cancel == "wait" and not left[0].has_parts:
        await until(lambda: all(call.done for call in left), lambda: _wait(next(c for c in left if not c.done)))
    else:
        await in_thread(partial(_end, left, on_cancel == "kill"), is_patient=True)


def _end(calls: "list[Call]", kills: bool) -> None:
    for call in calls:
        call.engine.end(call, kills)


async def until(is_so: Callable[[], bool], wait: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Awaits `wait()` until something is so. A cancellation does not stop it, and is raised afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not is_so():
        try:
            await wait()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


# ---- what blocks ----


async def in_thread[T](function: Callable[[], T], *, is_patient: bool = False) -> T:
    """Calls a function that blocks, in a thread of its own: the executor of a loop may have no thread to spare.

    If the awaiter is cancelled the function goes on by itself. is_patient: it is awaited nevertheless.
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
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(release, ended)

    start_thread(threading.Thread(target=run, name="pool_party-asyncio"))
    if is_patient:
        await until(ended.done, lambda: asyncio.wait([ended]))
    else:
        await ended
    for error in errors:
        raise error
    return values[0]


class Opening[T]:
    """A pool that is being opened: `await` it, or use it in `async with`, which ends as that of the pool does.

    make: opens the pool, which blocks. undo: ends it at once, which blocks, too, for one that nobody is there to take.
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

    def __await__(self) -> Generator[Any, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._pool = await self._open()
        pool: T = await self._pool.__aenter__()
        return pool

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._pool.__aexit__(kind, error, traceback)
