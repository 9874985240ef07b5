"""The protocol that each kind of worker implements, as the pool sees it."""

from __future__ import annotations

import sys

from pool_party import _native

TYPE_CHECKING = False  # worker processes import this module, so it does not import typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from pool_party._budget.gate import Entry
    from pool_party._budget.plan import Plan
    from pool_party._cluster.broker import Broker
    from pool_party._config import PoolConfig
    from pool_party._native import Interpreter
    from pool_party._observe.relay import Relay
    from pool_party._wire.definitions import Receivers
else:
    Protocol = object


class Setup:
    """What all workers of a pool start with.

    config: the pool's arguments, checked. plan: the plan of thread budgets; None leaves libraries as they are. entry:
    what the plan's policy has worker processes do at their start, besides. begun: interpreters that were made early,
    until a worker takes them. relay: what handles what workers log and print; None: nothing does. broker: what runs
    tasks on other machines; None: workers are on this one. by_value: workers have nothing of the program's `__main__`;
    see `codec.dumps_current`. omits_main: processes do not run the program's main module. They get what they need of it
    as interpreters do, or by value.
    """

    def __init__(
        self,
        config: PoolConfig,
        plan: Plan | None = None,
        begun: dict[int, Interpreter] | None = None,
        relay: Relay | None = None,
        broker: Broker | None = None,
        by_value: bool = False,
        omits_main: bool = False,
    ) -> None:
        self.config = config
        self.plan = plan
        self.entry: Entry | None = None  # set by the worker set, before the first worker starts
        self.begun = begun
        self.relay = relay
        self.broker = broker
        self.by_value = by_value
        self.omits_main = omits_main
        self.receivers: Receivers | None = None  # set by the engine before that; None: workers share our objects

    @property
    def are_forked(self) -> bool:
        """Whether workers are to be children of this process by `fork`."""
        context = self.config.context
        return context is not None and context.get_start_method() == "fork"

    @property
    def memory_limit(self) -> int:
        """The bytes that a worker process may have; 0: any number."""
        return int(self.config.worker_memory_limit or 0)

    def relay_terms(self, n: int) -> tuple[Any, ...] | None:
        """Return how the next worker in this slot relays what it logs and prints, or None if it does not."""
        if self.relay is None:
            return None
        from pool_party._workers import relaying

        return relaying.terms(self.relay, n)


def has_interpreters() -> bool:
    """Return whether interpreters are alive. A fork is to follow, so those that are ending are waited for."""
    if _native.n_interpreters():
        from pool_party._workers.interp.starting import wait_before_fork

        wait_before_fork()
    return _native.n_interpreters() > 0


def start_method(context: Any) -> str | None:
    """Return how processes of a `multiprocessing` context are started, or None without a context.

    While interpreters are alive, a child forked from this process would die in CPython's own clean-up after the fork
    (CPython issue 139759). A fork server replaces fork then.
    """
    method: str | None = context and context.get_start_method()
    return "forkserver" if method == "fork" and has_interpreters() else method


def names_of_main(*names: str) -> dict[str, str]:
    """Return those of these globals of the main module that are texts, for workers that do not run it."""
    found = {name: getattr(sys.modules["__main__"], name, None) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, str)}


class WorkerHandle(Protocol):
    """A worker in worker slot `n` of the channel, which its pool has opened. It runs from `start` on."""

    n: int
    name: str
    was_ready: bool  # whether its initializer has run; written by the pool

    def __init__(self, channel: _native.Channel, n: int, setup: Setup) -> None: ...

    def start(self) -> None:
        """Start the worker.

        If an exception interrupts this, the worker still ends by itself once the channel tells it to stop, or by
        `terminate`.
        """
        ...

    def enrol(self) -> None:
        """Prepare to notice the worker's end.

        Called after `start`, in a thread that no signal handler interrupts. Idempotent.
        """
        ...

    @property
    def pid(self) -> int | None: ...

    @property
    def exitcode(self) -> int | None: ...

    @property
    def sentinel(self) -> int | None:
        """A descriptor that becomes readable when the worker dies.

        None after `release`, or if the channel reports the worker's end instead.
        """

    @property
    def link(self) -> _native.Link | None:
        """How a process gets shared memory; None if the worker is in this process."""

    @property
    def is_watched(self) -> bool:
        """Whether the sentinel is open, and still the worker's."""

    def reopen(self) -> None:
        """Make a new sentinel if somebody has closed it. Raises: OSError, to be tried again."""
        ...

    def is_alive(self) -> bool: ...

    def interrupt(self) -> bool:
        """Raises an exception in the Python code of its task, if it has one. As `terminate` otherwise.

        For a pool that was stopped: its workers end after their task.
        """
        ...

    def terminate(self) -> bool:
        """Ask the worker to stop, in the middle of a task if possible.

        Never blocks. If it returns False, ask again later.
        """
        ...

    def kill(self) -> bool:
        """Stop the worker by force where that is possible. Otherwise like `terminate`."""
        ...

    def kill_if(self, holds: Callable[[], bool], number: int, patience_s: float | None) -> bool:
        """Stop a process for a moment, and send it a signal if `holds()` meanwhile. Other workers are left alone.

        Blocks for that time, and returns False if the process has not stopped after `patience_s` seconds. None: no
        limit.
        """
        ...

    def interrupt_task(self, begun_ns: int) -> bool:
        """Raise SystemExit in the Python code of the timed task that began then. Processes are left alone.

        Return False to be called again a little later.
        """
        ...

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the worker's end, at most `timeout` seconds. Return whether it has ended."""
        ...

    def release(self) -> None:
        """Close everything that this process holds for a worker that has ended.

        It does nothing before the worker's end, or when called again. `pid`, `name` and `exitcode` stay readable, and
        all other methods may still be called.
        """
        ...
