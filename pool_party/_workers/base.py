"""The protocol that each kind of worker implements, as the pool sees it."""

from __future__ import annotations

from pool_party import _native

TYPE_CHECKING = False  # worker processes import this module, so it does not import typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from pool_party._native import Gate, Interpreter
    from pool_party.budget.plan import Plan
    from pool_party.observe.relay import Relay
    from pool_party.wire.definitions import Receivers
    from pool_party.workers.cluster.broker import Broker
else:
    Protocol = object


class Setup:
    """What all workers of a pool start with.

    max_tasks: the number of tasks after which a worker is replaced; 0 for never. context: a multiprocessing context,
    for processes.
    plan: the plan of thread budgets; None leaves libraries as they are. gate: the gate for libraries' parallel regions.
    extensions: packages whose extension modules interpreters load as private copies.
    preload: modules to import before the initializer. begun: interpreters that were made early, until a worker takes
    them. relay: what handles what workers log and print; None: nothing does. names_records: threads name themselves on
    what they log. memory_limit: the bytes that a worker process may have; 0: any number. broker: what runs tasks on
    other machines, which know the rest; None: workers are on this one. reuse: interpreters are kept for the next pool.
    """

    def __init__(
        self,
        initializer: Callable[..., object] | None,
        initargs: tuple[Any, ...],
        max_tasks: int,
        context: Any = None,
        plan: Plan | None = None,
        extensions: tuple[str, ...] = (),
        preload: tuple[str, ...] = (),
        begun: dict[int, Interpreter] | None = None,
        relay: Relay | None = None,
        names_records: bool = False,
        memory_limit: int = 0,
        broker: Broker | None = None,
        reuse: bool = False,
    ) -> None:
        self.initializer = initializer
        self.initargs = initargs
        self.max_tasks = max_tasks
        self.context = context
        self.plan = plan
        self.gate: Gate | None = None  # set by the worker set, before the first worker starts
        self.extensions = extensions
        self.preload = preload
        self.begun = begun
        self.relay = relay
        self.names_records = names_records
        self.memory_limit = memory_limit
        self.broker = broker
        self.reuse = reuse
        self.receivers: Receivers | None = None  # set by the engine before that; None: workers share our objects

    def relay_terms(self, n: int) -> tuple[Any, ...] | None:
        """Return how the next worker in this slot relays what it logs and prints, or None if it does not."""
        if self.relay is None:
            return None
        from pool_party.workers import relaying

        return relaying.terms(self.relay, n)


def has_interpreters() -> bool:
    """Return whether pools of interpreters are open. A fork is to follow, so interpreters without a pool end."""
    if _native.n_interpreters():
        from pool_party.workers.interp.starting import end_before_fork

        end_before_fork()
    return _native.n_interpreters() > 0


def start_method(context: Any) -> str | None:
    """Return how processes of a `multiprocessing` context are started, or None without a context.

    While interpreters are alive, a child forked from this process would die in CPython's own clean-up after the fork
    (CPython issue 139759). A fork server replaces fork then.
    """
    method: str | None = context and context.get_start_method()
    return "forkserver" if method == "fork" and has_interpreters() else method


class Worker(Protocol):
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
