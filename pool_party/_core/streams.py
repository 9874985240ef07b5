"""The iterators of `imap` and `imap_unordered`, and the calls behind them."""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from pool_party import _native
from pool_party._core.results import Call, timed_out
from pool_party._ground.records import R_co, tell_names

if TYPE_CHECKING:
    from pool_party._core.engine import Engine
    from pool_party._core.following import Follower


class StreamCall(Call):
    """An imap in progress.

    is_fed: whether its tasks are added one by one, and it is pending without one, too.
    limit_s: the seconds that nodes let each task run, if it is fed to a pool on other machines; None: any number.
    window: how many tasks may be read ahead of the consumer; 0 if the input has n_items items.
    """

    is_fed = False
    limit_s: float | None = None
    first = 0

    def __init__(self, engine: "Engine", n_items: int, chunk: int, ordered: bool, window: int = 0) -> None:
        super().__init__(engine, n_items, chunk, _native.JOB_STREAM, window)
        self.ordered = ordered

    @property
    def n_done(self) -> int:
        return super().n_done if self.n_items else self.n_delivered * self.chunk - self.n_missing


class IMapIterator(Iterator[R_co]):
    """An iterator over the results of `imap` and `imap_unordered`.

    Raises:
        Exception: In place of a result: whatever its task raised. The iteration can go on after it.

    Guarantees:
        Any thread may use it: each result goes to one of them. It reads its input no further ahead than `buffersize`
        says. Tasks that have not begun are cancelled once the iterator is garbage.
    """

    def __init__(self, engine: "Engine", call: StreamCall, owner: object, follower: "Follower | None" = None) -> None:
        """follower: shows the progress of the call."""
        self._engine = engine
        self._call = call
        self._follower = follower
        self._owner = owner
        self._items: deque[Any] = deque()  # the rest of the current chunk's results

    def __iter__(self) -> Self:
        return self

    def next(self, timeout: float | None = None) -> R_co:
        """Return the next result. Blocks until it is there.

        Args:
            timeout: The longest wait in seconds. None: no limit.

        Returns:
            What the function returned.

        Raises:
            StopIteration: There are no more results.
            multiprocessing.TimeoutError: There is no result after `timeout` seconds. It can be asked for again.
            RuntimeError: The task raised StopIteration, which is the cause.
            Exception: Whatever the task raised. The iteration can go on after it.
        """
        while True:
            if self._items:
                try:
                    return self._items.popleft()  # type: ignore[no-any-return]  # workers say nothing of types
                except IndexError:  # another thread has taken the rest of the chunk
                    pass
            outcome = self._engine.next(self._call, timeout)
            if outcome is None:
                self._owner = None
                if self._follower is not None:
                    self._follower.finish()
                raise StopIteration
            if outcome is False:
                raise timed_out()
            status, value, index = outcome
            supervision = self._call.supervision
            if supervision is not None:
                supervision.forget(index)
            if status != _native.STATUS_OK:
                error = self._call.error_from(index, status, value)
                if supervision is not None and supervision.options.errors == "return" and index >= 0:
                    return error  # type: ignore[return-value]  # as the caller has asked for
                try:
                    if isinstance(error, StopIteration):  # it would look like the end of the results, as in PEP 479
                        raise RuntimeError(f"a task raised {type(error).__name__}") from error
                    raise error
                finally:
                    del outcome, value, error  # breaks the reference cycle of exception, traceback and this frame
            if self._call.chunk == 1:
                return value  # type: ignore[no-any-return]
            self._items.extend(value)

    __next__ = next

    def __del__(self) -> None:
        call = self.__dict__.get("_call")
        if call is not None:
            call.abandon()
        follower = self.__dict__.get("_follower")
        if follower is not None:
            follower.stop()


tell_names(globals())
