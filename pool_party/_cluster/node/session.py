"""A session: what a node does for one pool of another machine, with a pool of its own workers.

Whoever carries the messages calls `handle` with each that arrives, in order and in one thread, and gets those that are
to be sent by `tell`, from any thread. Messages are tuples; `_cluster/broker.py` is at the other end.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import CancelledError
from functools import partial
from queue import SimpleQueue

from pool_party import _native
from pool_party._cluster import distant
from pool_party._cluster.node import tasks
from pool_party._ground.broken import InitializerFailed, WorkerLost
from pool_party._ground.log import log_exception
from pool_party._workers import loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pool_party._cluster.distant import Frames, Terms
    from pool_party._core.results import AsyncResult


class _Entry:
    """A task that the other side has sent. One that is sent again, after it was withdrawn, is another."""

    __slots__ = ("is_stopped", "number", "result")

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_stopped = False  # its outcome is not wanted, but that it has ended is
        self.result: AsyncResult[Any] | None = None


class Session:
    """A pool on this machine that runs what another machine sends. Opening does not wait for its workers.

    Args:
        terms: What the pool is opened with; see `distant.Terms`.
        n_workers: The number of workers if the terms leave it open.
        tell: Sends a message; any thread may call it, and it does not block.

    Raises:
        ValueError, TypeError: The terms are wrong, or not possible here.
    """

    def __init__(self, terms: Terms, n_workers: int, tell: Callable[[tuple[Any, ...]], None]) -> None:
        self._tell = tell
        self._id = uuid.uuid4().hex
        self._functions: dict[int, bytes] = {}
        self._parts: dict[int, memoryview] = {}  # of shared memory
        self._changing = threading.Lock()  # guards the next two
        self._entries: dict[int, _Entry] = {}  # tasks without an outcome, in the order in which they came
        self._is_broken = False
        self._pool = _open_pool(terms, n_workers)
        self.n_workers = self._pool._processes
        self._may_fail = terms.initializer is not None or bool(terms.config.preload)

    # ---- messages ----

    def handle_all(self, inbox: SimpleQueue[tuple[Any, ...]]) -> None:
        """Handle messages until one asks for the end, and end the session."""
        drains = False
        try:
            self._watch_start()
            while (message := inbox.get())[0] != "end":
                try:
                    self.handle(message)
                except Exception:
                    log_exception("a node could not do what a program asked for")
                del message  # before the wait: it may be large
            _, drains = message
        finally:
            self.close(drains)

    def _watch_start(self) -> None:
        """Have it told if an initializer fails, even if no task comes."""
        if self._may_fail:
            try:
                self._pool.apply_async(int, error_callback=self._note_failure)
            except InitializerFailed as error:  # it has failed already
                self._break(error)

    def handle(self, message: tuple[Any, ...]) -> None:
        """Do what a message asks for."""
        what, *args = message
        verbs: dict[str, Callable[..., None]] = {
            "run": self._run,
            "forget": self._forget,
            "give_back": self._give_back,
            "withdraw": self._withdraw_all,
            "stop": self._stop,
        }
        verbs[what](*args)

    def _run(self, functions: dict[int, bytes], parts: dict[int, memoryview], batch: list[tuple[Any, ...]]) -> None:
        """Begin tasks: number, function's number or None, mode, seconds that it may run or None, encoded argument.

        functions, parts: more of them, by numbers, which the tasks of this message and later ones name.
        """
        self._functions.update(functions)
        self._parts.update(parts)
        for number, function, mode, timeout_s, frames in batch:
            try:
                self._begin(number, function, mode, timeout_s, frames)
            except InitializerFailed as error:
                self._break(error)
            except BaseException as error:
                self._end(_Entry(number), _native.STATUS_RAISED, distant.encode_whole(_as_exception(error)))

    def _begin(self, number: int, function: int | None, mode: int, timeout_s: float | None, frames: Frames) -> None:
        pool = self._pool if timeout_s is None else self._pool.options(timeout_s=timeout_s)
        encoded = None if function is None else self._functions[function]
        frames = [self._parts[frame] if isinstance(frame, int) else frame for frame in frames]
        args = (self._id, function or 0), encoded, mode, distant.as_buffers(frames)
        entry = _Entry(number)
        with self._changing:  # its outcome may come before it is entered
            self._entries[number] = entry
            entry.result = pool.apply_async(
                tasks.run, args, callback=partial(self._finish, entry), error_callback=partial(self._fail, entry)
            )

    def _forget(self, numbers: list[int]) -> None:
        """Drop functions and parts that no later message names."""
        for number in numbers:
            self._functions.pop(number, None)
            self._parts.pop(number, None)

    def _give_back(self, n: int) -> None:
        """Give back up to n tasks that no worker has begun, the newest first."""
        with self._changing:
            newest = list(self._entries)[::-1]
        numbers: list[int] = []
        for number in newest:
            if len(numbers) == n:
                break
            if self._withdraw(number):
                numbers.append(number)
        self._tell(("given_back", numbers))

    def _withdraw_all(self, numbers: list[int], is_asked: bool) -> None:
        """Withdraw these tasks, as far as no worker has begun them. is_asked: the other side has a use for that."""
        withdrawn = [number for number in numbers if self._withdraw(number)]
        self._tell(("withdrawn", withdrawn, [number for number in numbers if number not in withdrawn], is_asked))

    def _withdraw(self, number: int) -> bool:
        entry = self._entries.get(number)
        if entry is None or entry.result is None or not entry.result.cancel():
            return False
        with self._changing:
            del self._entries[number]
        return True

    def _stop(self, number: int) -> None:
        """End a task whose outcome nobody wants any more, if that is possible."""
        entry = self._entries.get(number)
        if entry is None or entry.result is None:
            return
        entry.is_stopped = True
        if not entry.result.cancel() and self._pool.kind == "process":
            entry.result.cancel(on_cancel="kill")

    # ---- outcomes; in the thread of the pool's callbacks ----

    def _finish(self, entry: _Entry, outcome: tuple[int, Any]) -> None:
        status, value = outcome
        self._end(entry, status, distant.as_buffers(value) if status == _native.STATUS_OK else value)

    def _fail(self, entry: _Entry, error: BaseException) -> None:
        if isinstance(error, InitializerFailed):
            self._break(error)
        elif not isinstance(error, CancelledError):
            self._end(entry, _native.STATUS_RAISED, distant.encode_whole(error))
        elif entry.is_stopped:  # otherwise it was withdrawn, and may have been sent again since
            self._end(entry, _native.STATUS_CANCELLED, None)

    def _note_failure(self, error: BaseException) -> None:
        if isinstance(error, InitializerFailed):
            self._break(error)

    def _break(self, error: InitializerFailed) -> None:
        with self._changing:
            is_first, self._is_broken = not self._is_broken, True
        if not is_first:
            return
        if isinstance(error.__cause__, WorkerLost):  # of this machine alone, as far as is known
            self._tell(("unusable", str(error)))
        else:
            self._tell(("broken", loop.describe(error.__cause__ or error, encode=distant.encode_whole)))

    def _end(self, entry: _Entry, status: int, value: Any) -> None:
        """Tell an outcome, and how many more tasks are left than there are workers."""
        with self._changing:
            self._entries.pop(entry.number, None)
            spare = len(self._entries) - self.n_workers
        self._tell(("outcome", entry.number, status, value, spare))

    # ---- the end ----

    def close(self, drains: bool = False) -> None:
        """End the pool. Blocks until its processes are dead. drains: what it runs comes to its end first."""
        try:
            if drains:
                self._pool.close()
            else:
                self._pool.terminate()
            self._pool.join()
        except BaseException:
            log_exception("the pool of a node could not be ended")


def _open_pool(terms: Terms, n_workers: int) -> Any:
    config = terms.config._replace(processes=terms.config.processes or n_workers)
    if terms.initializer is not None:
        config = config._replace(initializer=tasks.initialize, initargs=(distant.as_buffers(terms.initializer),))
    if config.kind == "process":  # the node's process has threads, which a fork would not survive
        config = config._replace(context="forkserver")
    return terms.open_pool(**config._asdict())


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(f"the node could not begin the task: {error!r}")
