"""Arguments on their way to tasks: encoding them, and moving what waits into the channel.

A call is entered in the channel's table together with what it wants put, in one step, and after the caller's arguments
were encoded: an exception leaves either both there or none. What waits is in the backlog. Whoever finds that there is
something to put, and nobody at it, puts it (`Channel.feed`); no thread waits for another one's pickling.
"""

import contextlib
import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from typing import TYPE_CHECKING, Any

from pool_party import _native
from pool_party._core.functions import Functions, is_for_one, is_global
from pool_party._core.results import Call
from pool_party._core.threads import start_detached
from pool_party.wire.definitions import Receivers

if TYPE_CHECKING:
    from pool_party._core.streams import StreamCall


N_TRIES = 3  # at putting a task, where there is no room and no worker will notify us of any


class _Map:
    """The tasks of a map from the call's cursor on, encoded as they are put."""

    __slots__ = ("function", "items", "job", "mode")

    def __init__(self, job: Call, items: list[Any], mode: int, function: Any) -> None:
        self.job = job
        self.items = items
        self.mode = mode
        self.function = function


class Submitter:
    """Makes tasks of calls. Thread-safe; `put_waiting` is the channel's, which calls it in one thread at a time."""

    def __init__(
        self, channel: _native.Channel, receivers: Receivers | None, backlog: "deque[_native.Task | _Map]"
    ) -> None:
        """receivers: what the workers have of `__main__`; None if they share our objects."""
        self._channel = channel
        self._by_reference = receivers is None
        self._backlog = backlog
        self._functions = Functions(channel)
        self._putting: tuple[_native.Task | _Map, ...] = ()  # being put; several if pickling uses the pool
        self.must_retry = False  # the background thread is to put what waits a little later
        self._entering: dict[int, Call] = {}  # the call that each thread is submitting now, by its ident
        channel.put_waiting = self.put_waiting
        channel.receivers = receivers

    def call(self, job: Call, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """One call of fn; False if the table takes no more. What does not pickle is the call's outcome."""
        try:
            task = self._task(job, 0, fn, args, kwargs)
        except Exception as error:
            if _is_from_handler(error):
                raise
            self._channel.settle(job, _native.STATUS_RAISED, error)
            return True
        return self._enter(job, task, 1)

    def _enter(self, job: Call, entry: "_native.Task | _Map", n_tasks: int) -> bool:
        """Enters a call in the table, and begins to put it. An exception withdraws what has not been put."""
        if not self._channel.admit(job, entry, n_tasks):
            return False
        self._entering[get_ident()] = job
        try:
            self._channel.feed()
        except BaseException as error:
            self._channel.settle(job, _native.STATUS_RAISED, error)
            raise
        finally:
            self._entering.pop(get_ident(), None)
        return True

    def _task(self, job: Call, index: int, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _native.Task:
        if self._by_reference:
            return _native.Task(job, index, fn, (args, kwargs))
        if is_global(fn):
            return _native.Task(job, index, fn, self._channel.encode((args, kwargs), job))
        return _native.Task(job, index, None, self._channel.encode((fn, args, kwargs), job))

    def map(self, job: Call, fn: Any, items: list[Any], star: bool) -> bool:
        """A call of fn for each item, in tasks of job.chunk items; False if the table takes no more calls."""
        if not items:
            self._channel.settle(job, _native.STATUS_OK, [])
            return True
        if not self._by_reference and not is_global(fn) and is_for_one(fn):
            items = [(fn, item) for item in items]  # with each task, and not once for all
            fn, star = _call_star if star else operator.call, True
        if job.chunk == 1:
            mode = _native.MODE_STAR if star else _native.MODE_ITEM
        else:
            mode = _native.MODE_STARCHUNK if star else _native.MODE_CHUNK
        return self._enter(job, _Map(job, items, mode, fn), -(-len(items) // job.chunk))

    def stream(self, job: "StreamCall", fn: Any, source: Iterator[Any]) -> bool:
        """A call of fn for each item of an iterator, which a thread of its own reads a window ahead."""
        thread = threading.Thread(target=self._read_stream, args=(job, fn, source), name="pool_party-imap")
        try:
            start_detached(thread)  # it reads nothing before the call is admitted
            return self._channel.admit(job, None, 0)
        finally:
            if job.id == 0:
                job.abandon()

    def _read_stream(self, job: "StreamCall", fn: Any, source: Iterator[Any]) -> None:
        n_tasks = 0
        while job.reserve():
            items, error = _read(source, job.chunk)
            if items and error is None:  # else what was read of the chunk is dropped, as in multiprocessing.Pool
                self._put_stream_task(job, fn, n_tasks, items)
                n_tasks += 1
            if error is not None:  # the generator's own error is the outcome of its place
                self._channel.deliver(job, n_tasks, _native.STATUS_RAISED, error)
                n_tasks += 1
            if error is not None or len(items) < job.chunk:
                break
            del items  # not to be kept until there is room for more
        if job.id:
            self._channel.end_input(job, n_tasks)

    def _put_stream_task(self, job: "StreamCall", fn: Any, index: int, items: list[Any]) -> None:
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

    def put_waiting(self, is_nested: bool) -> None:
        """Moves the backlog into the channel while there is room. After an exception it can be called again.

        is_nested: amid pickling this thread uses the pool, and leaves out what its frames further out are putting. What
        an exception leaves in `_putting` is overwritten by the frame that goes on.
        """
        further_out = self._putting if is_nested else ()
        if self._channel.has_pins:
            self._channel.unpin()
        n_refused = 0
        try:
            while (entry := self._next_entry(further_out)) is not None:
                self._putting = (*further_out, entry)
                if self._put(entry):
                    self._drop(entry)
                elif self._channel.is_starved:  # whoever makes room says so
                    break
                elif (n_refused := n_refused + 1) > N_TRIES:  # a value keeps its block: nobody tells when it goes
                    self.must_retry = True
                    self._channel.notify()
                    break
        except IndexError:
            pass  # the pool has ended meanwhile, in a signal handler or another thread, and forgotten what was left
        self._putting = further_out

    def _next_entry(self, putting: "tuple[_native.Task | _Map, ...]") -> "_native.Task | _Map | None":
        """The oldest entry that is not being put already."""
        if not self._backlog:
            return None
        if not putting:
            return self._backlog[0]
        entries = (self._backlog[i] for i in range(min(len(self._backlog), len(putting) + 1)))
        return next((entry for entry in entries if entry not in putting), None)

    def _drop(self, entry: "_native.Task | _Map") -> None:
        if self._backlog[0] is entry:
            self._backlog.popleft()
        else:
            with contextlib.suppress(ValueError):  # the pool has ended meanwhile
                self._backlog.remove(entry)

    def _put(self, entry: "_native.Task | _Map") -> bool:
        """Puts the oldest entry; False if there is no room."""
        while not entry.job.settled:
            try:
                return self._put_map(entry) if isinstance(entry, _Map) else self._put_task(entry)
            except BaseException as error:
                if self._is_for_caller(error, entry.job):
                    raise
                self._refuse(entry, error)
                if not isinstance(entry, _Map):
                    return True
        return True

    def _put_task(self, task: _native.Task) -> bool:
        function = task.function
        if not self._by_reference and function is not None and not isinstance(function, _native.Published):
            published = task.job.function or self._functions.open(function)  # a stream's is the same for all its tasks
            if published is None:
                return False
            task.job.function = task.function = published
        return self._channel.put(task)

    def _put_map(self, entry: _Map) -> bool:
        if not self._by_reference and not isinstance(entry.function, _native.Published):
            published = self._functions.open(entry.function)
            if published is None:
                return False
            entry.job.function = entry.function = published
        return self._channel.put_many(entry.job, entry.items, entry.mode, entry.function)

    def _is_for_caller(self, error: BaseException, job: _native.Job) -> bool:
        """Whether the thread that puts is to have it, and not who waits for the call.

        That is so for what signal handlers raise, and for what is no Exception while the thread submits this very call.
        """
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            return True
        if isinstance(error, Exception):
            return _is_from_handler(error)
        return self._entering.get(get_ident()) is job

    def _refuse(self, entry: "_native.Task | _Map", error: BaseException) -> None:
        """What does not pickle is the outcome of its task; a map's function, that of the call."""
        if not isinstance(entry, _Map):
            self._channel.refuse(entry, error)
        elif not self._by_reference and not isinstance(entry.function, _native.Published):
            self._channel.settle(entry.job, _native.STATUS_RAISED, error)
        else:
            self._channel.skip(entry.job, error)

    def clear(self) -> None:
        """The pool has ended: forgets what has not been put."""
        self._backlog.clear()
        self._functions.clear()


def _is_from_handler(error: BaseException) -> bool:
    from pool_party.wire.interrupts import is_from_handler  # seldom needed

    return is_from_handler(error)


def _read(source: Iterator[Any], n: int) -> tuple[list[Any], BaseException | None]:
    """At most n items, and what the iterator raised, but for its end."""
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
    """A chunk of imap."""
    return [fn(item) for item in items]
