"""The protocol that each kind of worker implements, as the pool sees it."""

from __future__ import annotations

from pool_party import _native

TYPE_CHECKING = False  # worker processes import this: no typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from pool_party._native import Gate, Interpreter
    from pool_party.budget.plan import Plan
    from pool_party.wire.definitions import Receivers
else:
    Protocol = object


class Setup:
    """What all workers of a pool are started with.

    max_tasks: tasks after which a worker is replaced; 0: never. context: a multiprocessing context, for processes.
    plan: of thread budgets; None: libraries are left as they are. gate: that libraries' parallel regions pass.
    extensions: packages with private copies of extension modules, for interpreters.
    preload: modules to import before the initializer. begun: the first interpreters, each until its worker takes it.
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
        self.receivers: Receivers | None = None  # set by the engine, likewise; None: workers share our objects


def start_method(context: Any) -> str | None:
    """How processes of a `multiprocessing` context are started; None without a context.

    A child that is forked while interpreters are alive dies in CPython's own clean-up after the fork (CPython issue
    139759): a fork server stands in for fork then.
    """
    method: str | None = context and context.get_start_method()
    return "forkserver" if method == "fork" and _native.n_interpreters() else method


class Worker(Protocol):
    """A worker, in place `n` of the channel, which its pool has opened. It runs from `start` on."""

    n: int
    name: str
    was_ready: bool  # its initializer has run; written by the pool

    def __init__(self, channel: _native.Channel, n: int, setup: Setup) -> None: ...

    def start(self) -> None:
        """Makes it run. If that is broken off it ends by itself once the channel says so, or with `terminate`."""
        ...

    def enrol(self) -> None:
        """After `start`, in a thread that no signal handler interrupts: opens what tells of its end. Idempotent."""
        ...

    @property
    def pid(self) -> int | None: ...

    @property
    def exitcode(self) -> int | None: ...

    @property
    def sentinel(self) -> int | None:
        """A descriptor that is readable once the worker is dead; None after `release`, or if the channel tells that."""

    def is_alive(self) -> bool: ...

    def terminate(self) -> bool:
        """Asks it to stop, in the middle of a task if that is possible. Never blocks. False: ask again later."""
        ...

    def kill(self) -> bool:
        """Stops it if that is possible; as `terminate`."""
        ...

    def kill_if(self, holds: Callable[[], bool]) -> None:
        """Kills it if `holds()` while it stands still; only for processes. Blocks for a moment."""
        ...

    def join(self, timeout: float | None = None) -> bool:
        """Waits for its end, at most `timeout` seconds; whether it has ended."""
        ...

    def release(self) -> None:
        """After its end: closes at once all that this process holds of it.

        Further calls do nothing, nor does one before its end. `pid`, `name` and `exitcode` stay readable, and every
        other method may still be called.
        """
        ...
