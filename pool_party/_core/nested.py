"""Calls of the default executor inside its own tasks, which run in the worker that makes them.

A worker that only waited for such calls would be lost to all tasks, and if every worker waited, none would be left to
run them. Here the worker runs them itself. Idle workers may help with a `map`; nobody waits for one that has not begun.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from time import monotonic
from typing import TYPE_CHECKING, Any

from pool_party._ground.errors import PoolClosed

if TYPE_CHECKING:
    from pool_party._observe.progress import Watch

type Submit = Callable[[Callable[[], None]], Future[None]]


def run(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
    """Call the function, and return a future that is done.

    KeyboardInterrupt and SystemExit leave this task, since the pool's end raises them to interrupt tasks.
    """
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    try:
        future.set_result(fn(*args, **kwargs))
    except Exception as error:
        future.set_exception(error)
    return future


def run_lazily(fn: Callable[..., Any], calls: Iterable[tuple[Any, ...]], deadline: float | None) -> Iterator[Any]:
    """Yield the results, each of which is computed when it is asked for."""
    for args in calls:
        if deadline is not None and monotonic() >= deadline:
            raise TimeoutError
        yield fn(*args)


class NestedMap:
    """A `map` whose calls are taken one by one, in order, by the thread that waits for them and by those that help."""

    def __init__(
        self, fn: Callable[..., Any], calls: list[tuple[Any, ...]], deadline: float | None, watch: "Watch | None"
    ) -> None:
        self._fn = fn
        self._left = deque(enumerate(calls))
        self._n_calls = len(calls)
        self._deadline = deadline
        self._watch = watch
        self._shows_at = 0.0  # on the monotonic clock
        self._outcomes: dict[int, tuple[bool, Any]] = {}  # call -> whether it returned, and its value or exception

    def run(self, submit: Submit, n_helpers: int) -> Iterator[Any]:
        """Run all calls, with at most this many helpers. Return an iterator over the results."""
        helpers: list[Future[None]] = []
        try:
            self._show(self._watch)
            helpers += _submit_helpers(submit, self._help, min(n_helpers, self._n_calls - 1))
            self._help(self._watch)
            for helper in helpers:
                if not helper.cancel():
                    helper.result()  # it runs calls of ours, and so waits for no worker that waits for this one
        finally:
            self._left.clear()
            for helper in helpers:
                helper.cancel()
            if self._watch is not None:
                self._watch.finish(len(self._outcomes), is_complete=False)
        return self._results()

    def _help(self, watch: "Watch | None" = None) -> None:
        """Run calls until all are taken. Those after a failure need not run, as nobody will see their results."""
        while self._left and (self._deadline is None or monotonic() < self._deadline):
            try:
                n, args = self._left.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                self._outcomes[n] = True, self._fn(*args)
            except Exception as error:
                self._outcomes[n] = False, error
                self._left.clear()
            del args
            if monotonic() >= self._shows_at:
                self._show(watch)

    def _show(self, watch: "Watch | None") -> None:
        if watch is not None:
            watch.show(len(self._outcomes), self._n_calls)
            self._shows_at = monotonic() + watch.interval_s

    def _results(self) -> Iterator[Any]:
        for n in range(self._n_calls):
            if n not in self._outcomes:
                raise TimeoutError
            has_returned, value = self._outcomes.pop(n)
            if not has_returned:
                try:
                    raise value
                finally:
                    del value  # breaks the reference cycle of exception, traceback and this frame
            yield value
            del value


def _submit_helpers(submit: Submit, help_out: Callable[[], None], n: int) -> Iterator[Future[None]]:
    try:
        for _ in range(n):
            yield submit(help_out)
    except PoolClosed:  # the program is ending, and finishes what was submitted before
        return
