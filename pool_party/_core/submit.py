"""From arguments to what waits to be put: entries of the channel's backlog.

The arguments of a single call are encoded first. Then one step enters the call in the channel's table and its entry in
the backlog, so an exception leaves either both there or neither. Any thread that finds entries there, and no other
thread putting them, puts them (`native/python/putting.c`). No thread waits for another one's pickling.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from itertools import islice

from pool_party import _native
from pool_party._core.functions import Functions, is_for_one, is_global
from pool_party._core.inputs import limit_reading
from pool_party._ground.quoting import call_each, call_each_star, call_star
from pool_party._ground.threads import PoolThread, start_detached

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pool_party._cluster.broker import Broker
    from pool_party._core.results import Call
    from pool_party._core.streams import StreamCall
    from pool_party._wire.definitions import Receivers


class Submitter:
    """Makes entries of calls. Thread-safe. The channel calls `Functions.open`, in one thread at a time."""

    def __init__(
        self,
        channel: _native.Channel,
        receivers: Receivers | None,
        broker: Broker | None = None,
        look: Callable[[Any], object] | None = None,
    ) -> None:
        """receivers: what the workers have of `__main__`; None if they share our objects, or are behind a broker.

        look: see `Functions`.
        """
        self._channel = channel
        self._receivers = receivers
        self._by_reference = receivers is None
        self._broker = broker
        self._encodes = receivers is not None or broker is not None  # otherwise workers get the objects themselves
        self._look = look
        self._functions = Functions(channel, look)
        channel.open_function = self._functions.open
        channel.receivers = receivers

    def call(self, job: Call, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Submit one call of fn.

        False: the table takes no more calls. If pickling fails, that error is the call's outcome.
        """
        if not self._encodes:
            return self._channel.submit(_native.Entry(job, fn, (args, kwargs)))
        try:
            task = self._task(job, 0, fn, args, kwargs)
        except Exception as error:
            if _is_from_handler(error):
                raise
            self._channel.settle(job, _native.STATUS_RAISED, error)
            return True
        return self._channel.submit(task)

    def _task(self, job: Call, index: int, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _native.Entry:
        if self._broker is not None:
            return _native.Entry(job, *self._broker.pack(fn, args, kwargs), index)
        if self._by_reference:
            return _native.Entry(job, fn, (args, kwargs), index)
        if is_global(fn):
            return _native.Entry(job, fn, self._channel.encode((args, kwargs), job), index)
        job.called = fn
        if self._look is not None:
            self._look(fn)
        return _native.Entry(job, None, self._channel.encode((fn, args, kwargs), job), index)

    def map(self, job: Call, fn: Any, items: Any, star: bool) -> bool:
        """Submit a call of fn for each item, in tasks of job.chunk items. False: the table takes no more calls.

        items: what `inputs.take` has returned.
        """
        if job.n_items == 0:
            self._channel.settle(job, _native.STATUS_OK, [])
            return True
        if not self._by_reference and not is_global(fn) and is_for_one(fn):
            items = [(fn, item) for item in items]  # the function travels with each task, not once for all
            fn, star = call_star if star else operator.call, True
        if job.chunk == 1:
            mode = _native.MODE_STAR if star else _native.MODE_ITEM
        else:
            mode = _native.MODE_STARCHUNK if star else _native.MODE_CHUNK
        return self._channel.submit(_native.Entry(job, fn, items, 0, mode))

    def read(self, job: Call, fn: Any, source: Iterator[Any], star: bool) -> bool:
        """Submit a call of fn for each item of an iterator, which a separate thread reads while tasks run."""
        thread = PoolThread(
            lambda: self._read(job, fn, source, star), "pool_party-input", self._channel, _native.DUTY_INPUT
        )
        try:
            job.called = fn
            start_detached(thread)  # it reads nothing before the call is admitted
            return self._channel.admit(job)
        finally:
            if job.id == 0:
                job.abandon()

    def _read(self, job: Call, fn: Any, source: Iterator[Any], star: bool) -> None:
        n_tasks = n_missing = 0
        while job.reserve():
            try:
                items = list(islice(source, job.chunk))
            except BaseException as error:  # as in multiprocessing.Pool, the items of an incomplete chunk are dropped
                self._channel.end_input(job, n_tasks, 0, error)
                return
            if items:
                self._put_chunk(job, fn, n_tasks, items, star)
                n_tasks += 1
            if len(items) < job.chunk:
                n_missing = -len(items) % job.chunk
                break
            del items  # release them before waiting for room
        if job.id:
            job.n_missing = n_missing
            self._channel.end_input(job, n_tasks, n_missing)

    def add(self, job: StreamCall, fn: Any, index: int, value: Any) -> None:
        """Add a call of fn(value) to an admitted stream. A pickling error is the outcome of that task."""
        try:
            task = self._task(job, index, fn, (value,), {})
        except Exception as error:
            if _is_from_handler(error):
                raise
            self._channel.deliver(job, index, _native.STATUS_RAISED, error)
            return
        self._channel.enqueue(task)

    def add_again(self, job: Call, index: int) -> None:
        """Add a task of an admitted call that has failed. Its function and arguments are encoded once more.

        If that fails, the error is its outcome.
        """
        try:
            assert job.supervision is not None and job.supervision.again is not None
            task = self._task(job, index, *job.supervision.again(index))
        except BaseException as error:
            self._channel.deliver(job, index, _native.STATUS_RAISED, error)
            return
        self._channel.enqueue_again(task)

    def _put_chunk(self, job: Call, fn: Any, index: int, items: list[Any], star: bool) -> None:
        """Add a task of an input that is being read. It is encoded at once, since the input may change its items."""
        if job.supervision is not None:
            job.supervision.keep(index, items)
        try:
            if job.chunk == 1:
                task = self._task(job, index, fn, tuple(items[0]) if star else (items[0],), {})
            else:
                task = self._task(job, index, call_each_star if star else call_each, (fn, items), {})
            if job.large_bytes and not self._by_reference:
                payload = task.payload
                if type(payload) is not bytes or len(payload) > job.large_bytes or job.ahead != job.small_ahead:
                    limit_reading(job, payload)
        except BaseException as error:
            self._channel.deliver(job, index, _native.STATUS_RAISED, error)
            return
        self._channel.enqueue(task)

    def clear(self) -> None:
        """Forget what has not been put, after the end of the pool."""
        self._channel.clear_backlog()
        self._functions.clear()
        if self._receivers is not None:
            self._receivers.forget()


def _is_from_handler(error: BaseException) -> bool:
    from pool_party._wire.interrupts import is_from_handler  # seldom needed

    return is_from_handler(error)
