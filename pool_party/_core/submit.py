"""From arguments to tasks: encodes the arguments, and moves waiting tasks from the backlog into the channel.

The caller's arguments are encoded first. Then one step enters the call in the channel's table and its tasks in the
backlog, so an exception leaves either both there or neither. Any thread that finds tasks in the backlog and no other
thread putting them puts them (`Channel.feed`). No thread waits for another one's pickling.
"""

from __future__ import annotations

import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident

from pool_party import _native
from pool_party._core.functions import Functions, is_for_one, is_global
from pool_party._core.results import Call
from pool_party._core.threads import start_detached

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pool_party._core.streams import StreamCall
    from pool_party.wire.definitions import Receivers
    from pool_party.workers.cluster.broker import Broker


N_TRIES = 3  # attempts to put a task when the channel is full and no worker will notify us of new room


class _Map:
    """The tasks of a map that have not been put, from the call's cursor on. They are encoded as they are put."""

    __slots__ = ("function", "items", "job", "mode")

    def __init__(self, job: Call, items: list[Any], mode: int, function: Any) -> None:
        self.job = job
        self.items = items
        self.mode = mode
        self.function = function


class Submitter:
    """Makes tasks of calls. Thread-safe. The channel calls `put_waiting`, in one thread at a time."""

    def __init__(
        self,
        channel: _native.Channel,
        receivers: Receivers | None,
        backlog: deque[_native.Task | _Map],
        broker: Broker | None = None,
    ) -> None:
        """receivers: what the workers have of `__main__`; None if they share our objects, or are behind a broker."""
        self._channel = channel
        self._receivers = receivers
        self._by_reference = receivers is None
        self._broker = broker
        self._encodes = receivers is not None or broker is not None  # otherwise workers get the objects themselves
        self._backlog = backlog
        self._functions = Functions(channel)
        self._putting: tuple[_native.Task | _Map, ...] = ()  # entries being put; several if pickling one uses the pool
        self.must_retry = False  # asks the background thread to put the backlog again a little later
        self._entering: dict[int, Call] = {}  # thread ident -> the call that it is submitting
        channel.put_waiting = self.put_waiting
        channel.receivers = receivers

    def call(self, job: Call, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Submit one call of fn.

        False: the table takes no more calls. If pickling fails, that error is the call's outcome.
        """
        if not self._encodes:
            return self._enter(job, _native.Task(job, 0, fn, (args, kwargs)), 1)
        try:
            task = self._task(job, 0, fn, args, kwargs)
        except Exception as error:
            if _is_from_handler(error):
                raise
            self._channel.settle(job, _native.STATUS_RAISED, error)
            return True
        return self._enter(job, task, 1)

    def _enter(self, job: Call, entry: _native.Task | _Map, n_tasks: int) -> bool:
        """Enter a call in the table, and begin to put it.

        After an exception, tasks that were not put are withdrawn.
        """
        channel = self._channel
        if not channel.admit(job, entry, n_tasks):
            return False
        if self._encodes:
            self._entering[get_ident()] = job
        try:
            channel.feed()
        except BaseException as error:
            channel.settle(job, _native.STATUS_RAISED, error)
            raise
        finally:
            if self._encodes:
                self._entering.pop(get_ident(), None)
        return True

    def _task(self, job: Call, index: int, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _native.Task:
        if self._broker is not None:
            return _native.Task(job, index, *self._broker.pack(fn, args, kwargs))
        if self._by_reference:
            return _native.Task(job, index, fn, (args, kwargs))
        if is_global(fn):
            return _native.Task(job, index, fn, self._channel.encode((args, kwargs), job))
        return _native.Task(job, index, None, self._channel.encode((fn, args, kwargs), job))

    def map(self, job: Call, fn: Any, items: list[Any], star: bool) -> bool:
        """Submit a call of fn for each item, in tasks of job.chunk items. False: the table takes no more calls."""
        if not items:
            self._channel.settle(job, _native.STATUS_OK, [])
            return True
        if not self._by_reference and not is_global(fn) and is_for_one(fn):
            items = [(fn, item) for item in items]  # the function travels with each task, not once for all
            fn, star = _call_star if star else operator.call, True
        if job.chunk == 1:
            mode = _native.MODE_STAR if star else _native.MODE_ITEM
        else:
            mode = _native.MODE_STARCHUNK if star else _native.MODE_CHUNK
        return self._enter(job, _Map(job, items, mode, fn), -(-len(items) // job.chunk))

    def stream(self, job: StreamCall, fn: Any, source: Iterator[Any]) -> bool:
        """Submit a call of fn for each item of an iterator, which a separate thread reads a window ahead."""
        thread = threading.Thread(target=self._read_stream, args=(job, fn, source), name="pool_party-imap")
        try:
            start_detached(thread)  # it reads nothing before the call is admitted
            return self._channel.admit(job, None, 0)
        finally:
            if job.id == 0:
                job.abandon()

    def _read_stream(self, job: StreamCall, fn: Any, source: Iterator[Any]) -> None:
        n_tasks = 0
        while job.reserve():
            items, error = _read(source, job.chunk)
            if items and error is None:  # otherwise the incomplete chunk is dropped, as in multiprocessing.Pool
                self._put_stream_task(job, fn, n_tasks, items)
                n_tasks += 1
            if error is not None:  # it comes after the outcomes of all items before it
                self._channel.end_input(job, n_tasks, error)
                return
            if len(items) < job.chunk:
                job.n_missing = -len(items) % job.chunk
                break
            del items  # release them before waiting for room
        if job.id:
            self._channel.end_input(job, n_tasks)

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
        self._channel.feed()

    def add_again(self, job: Call, index: int) -> None:
        """Add a task of an admitted call that has failed. Its function and arguments are encoded once more.

        If that fails, the error is its outcome.
        """
        try:
            assert job.care is not None and job.care.again is not None
            task = self._task(job, index, *job.care.again(index))
        except BaseException as error:
            self._channel.deliver(job, index, _native.STATUS_RAISED, error)
            return
        self._channel.enqueue_again(task)
        self._channel.feed()

    def _put_stream_task(self, job: StreamCall, fn: Any, index: int, items: list[Any]) -> None:
        if job.care is not None:
            job.care.keep(index, items)
        try:
            if job.chunk == 1:
                task = self._task(job, index, fn, (items[0],), {})
            else:
                task = self._task(job, index, _call_each, (fn, items), {})
        except BaseException as error:
            self._channel.deliver(job, index, _native.STATUS_RAISED, error)
            return
        self._channel.enqueue(task)
        self._channel.feed()

    # ---- putting, by one thread at a time ----

    def put_waiting(self, is_nested: bool, until_ns: int) -> bool:
        """Move the backlog into the channel while there is room. After an exception it can be called again.

        is_nested: this thread is already putting, and pickling made it use the pool. It then skips the entries that its
        outer frames are putting. If an exception leaves entries in `_putting`, the outer frame overwrites them.

        until_ns: a time to stop, on the monotonic clock, or -1. With it, False tells that the time has passed or that
        the next task must be pickled, which may take long: another thread is to go on.
        """
        further_out = self._putting if is_nested else ()
        if self._channel.has_pins:
            self._channel.unpin()
        n_refused = 0
        is_put: bool | None = True
        try:
            while (entry := self._next_entry(further_out)) is not None:
                self._putting = (*further_out, entry)
                is_put = self._put(entry, until_ns)
                if is_put:
                    self._drop(entry)
                elif is_put is None or self._channel.is_starved:  # a worker that makes room will notify us
                    break
                elif (n_refused := n_refused + 1) > N_TRIES:  # a retained block is in the way; nothing tells its end
                    self.must_retry = True
                    self._channel.notify()
                    break
        except IndexError:
            pass  # the pool has ended meanwhile, in a signal handler or another thread, which cleared the backlog
        self._putting = further_out
        return is_put is not None

    def _next_entry(self, putting: tuple[_native.Task | _Map, ...]) -> _native.Task | _Map | None:
        """Return the oldest entry that no outer frame is putting."""
        if not self._backlog:
            return None
        if not putting:
            return self._backlog[0]
        entries = (self._backlog[i] for i in range(min(len(self._backlog), len(putting) + 1)))
        return next((entry for entry in entries if entry not in putting), None)

    def _drop(self, entry: _native.Task | _Map) -> None:
        if self._backlog[0] is entry:
            self._backlog.popleft()
        else:
            try:
                self._backlog.remove(entry)
            except ValueError:
                pass  # the pool has ended meanwhile and cleared the backlog

    def _put(self, entry: _native.Task | _Map, until_ns: int) -> bool | None:
        """Put the given entry. Return False if there is no room, and None if there is no time."""
        while not entry.job.settled:
            try:
                if until_ns >= 0 and self._must_publish(entry) and not self._functions.has(entry.function):
                    return None
                return self._put_map(entry, until_ns) if isinstance(entry, _Map) else self._put_task(entry, until_ns)
            except BaseException as error:
                if self._is_for_caller(error, entry.job):
                    raise
                self._refuse(entry, error)
                if not isinstance(entry, _Map):
                    return True
        return True

    def _must_publish(self, entry: _native.Task | _Map) -> bool:
        return not (self._by_reference or entry.function is None or isinstance(entry.function, _native.Published))

    def _put_task(self, task: _native.Task, until_ns: int) -> bool | None:
        if self._must_publish(task):
            published = task.job.function or self._functions.open(task.function)  # a stream has one for all tasks
            if published is None:
                return False
            task.job.function = task.function = published
        return self._channel.put(task, until_ns)

    def _put_map(self, entry: _Map, until_ns: int) -> bool | None:
        if self._must_publish(entry):
            published = self._functions.open(entry.function)
            if published is None:
                return False
            entry.job.function = entry.function = published
        return self._channel.put_many(entry.job, entry.items, entry.mode, entry.function, until_ns)

    def _is_for_caller(self, error: BaseException, job: _native.Job) -> bool:
        """Whether the thread that puts must raise this error, rather than the one that waits for the call.

        This is so for errors from signal handlers. It is also so for a BaseException that is no Exception, if the
        thread is submitting this very call.
        """
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            return True
        if isinstance(error, Exception):
            return _is_from_handler(error)
        return self._entering.get(get_ident()) is job

    def _refuse(self, entry: _native.Task | _Map, error: BaseException) -> None:
        """Make a pickling error the outcome of its task or, for a map's function, of the whole call."""
        if not isinstance(entry, _Map):
            self._channel.refuse(entry, error)
        elif not self._by_reference and not isinstance(entry.function, _native.Published):
            self._channel.settle(entry.job, _native.STATUS_RAISED, error)
        else:
            self._channel.skip(entry.job, error)

    def clear(self) -> None:
        """Forget what has not been put, after the end of the pool."""
        self._backlog.clear()
        self._functions.clear()
        if self._receivers is not None:
            self._receivers.forget()


def _is_from_handler(error: BaseException) -> bool:
    from pool_party.wire.interrupts import is_from_handler  # seldom needed

    return is_from_handler(error)


def _read(source: Iterator[Any], n: int) -> tuple[list[Any], BaseException | None]:
    """Read at most n items. Return them, with whatever the iterator raised other than its end."""
    items: list[Any] = []
    try:
        for _ in range(n):
            items.append(next(source))
    except StopIteration:
        pass
    except BaseException as error:
        return items, error
    return items, None


def _call_star(fn: Callable[..., Any], args: Iterable[Any]) -> Any:
    return fn(*args)


def _call_each(fn: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """Run a chunk of imap."""
    return [fn(item) for item in items]
