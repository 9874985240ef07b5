"""Tasks whose outcomes one thread hands to callbacks as they arrive, without a call object for each of them.

joblib submits the next batch in the callback of an earlier one. Here the thread that takes results from the pool runs
these callbacks itself. In a pool's own calls another thread would, which had to be woken for each.
"""

import itertools
import threading
from collections.abc import Callable
from typing import Any

from pool_party import _native
from pool_party._core.engine import Engine
from pool_party._core.options import Options
from pool_party._core.outcomes import error_of
from pool_party._core.results import call_back
from pool_party._core.streams import StreamCall
from pool_party._ground.threads import start_thread
from pool_party._pool import ComposablePool

type Callback = Callable[[Any], object]

NO_WINDOW = 1 << 62  # tasks that may be under way


class FedPool:
    """A pool that runs one function. Any thread may use it, callbacks too."""

    def __init__(self, pool: ComposablePool, function: Callable[[Any], Any], options: Options | None = None) -> None:
        self.pool = pool
        self._engine = pool._engine
        self._function = function
        self._call = StreamCall(self._engine, 0, 1, ordered=False, window=NO_WINDOW)
        self._numbers = itertools.count()
        self._callbacks: dict[int, Callback] = {}  # task -> what is to be called with its outcome
        self._engine.submit_feed(self._call, function, options)
        # The thread does not refer to the pool, which therefore ends if it becomes garbage.
        args = self._engine, self._call, self._callbacks
        start_thread(threading.Thread(target=_run_callbacks, args=args, name="pool_party-feed"))

    @property
    def is_running(self) -> bool:
        """Whether tasks can be submitted."""
        return self._engine.is_running

    def submit(self, value: Any, callback: Callback) -> None:
        """Run `function(value)` in a worker, and then call `callback` with its result, or with its exception.

        Raises: PoolClosed and the like.
        """
        n = next(self._numbers)
        self._callbacks[n] = callback
        try:
            self._engine.submit_to_feed(self._call, self._function, n, value)
        except BaseException:
            self._callbacks.pop(n, None)
            raise

    def close(self) -> None:
        """Have the workers end once all outcomes have arrived. Does not block."""
        if self._engine.is_running:
            self._engine.end_feed(self._call, next(self._numbers))
        self.pool.close()

    def terminate(self) -> None:
        """End the workers now, whatever runs in them. Blocks as `ComposablePool.terminate` does."""
        self.pool.terminate()


def _run_callbacks(engine: Engine, call: StreamCall, callbacks: dict[int, Callback]) -> None:
    """Run the callbacks of outcomes until no more will come."""
    while (outcome := engine.next(call, None)) is not None:
        status, value, n = outcome
        out = value if status == _native.STATUS_OK else error_of(status, value)
        due = [callbacks.pop(n, None)] if n >= 0 else _take_all(callbacks)  # all: the pool has ended
        while due:
            call_back(due.pop(0), out)
        del outcome, value, out, due  # they may be large, and the next outcome may take long


def _take_all(callbacks: dict[int, Callback]) -> list[Callback | None]:
    taken: list[Callback | None] = []
    while callbacks:
        taken.append(callbacks.popitem()[1])
    return taken
