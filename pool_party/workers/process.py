"""Workers that are processes of a `multiprocessing` context."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import weakref
from multiprocessing import get_context, parent_process

from pool_party import _native
from pool_party.wire import codec
from pool_party.workers import loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pool_party.budget.terms import Terms
    from pool_party.wire.fd_handle import Handle
    from pool_party.workers.base import Setup


def _portable(initializer: Callable[..., object] | None, context: Any) -> Any:
    """The initializer as `Process` can send it: as it is under fork, else as our own pickle (bytes).

    Its arguments always go as they are: locks and queues may only be sent while a process is being started.
    """
    if initializer is None or context.get_start_method() == "fork":
        return initializer
    return codec.encode(initializer)


def _reseed() -> None:
    """Gives NumPy's global generator a state of its own, as `random` has in a forked child by its own doing.

    By a new generator and not by `seed`, which takes a lock that some thread of the parent may have held.
    """
    numpy_random = sys.modules.get("numpy.random")
    replace, current = (getattr(numpy_random, name, None) for name in ("set_bit_generator", "get_bit_generator"))
    if replace is not None and current is not None:
        with contextlib.suppress(Exception):  # a generator from elsewhere that cannot be made so
            replace(type(current())())


def main(
    handle: Handle,
    n: int,
    initializer: Any,
    initargs: tuple[Any, ...],
    max_tasks: int,
    terms: Terms | None,
    preload: tuple[str, ...],
    is_forked: bool,
) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    parent = parent_process()
    if parent is not None:
        _native.die_with(parent.sentinel)
    worker = _native.Worker.attach(handle.open(), n)
    if terms is not None:
        terms.enter(worker)

    if is_forked:
        _reseed()

    def initialize() -> None:
        function = initializer if callable(initializer) else codec.decode(initializer) if initializer else None
        if function is not None:
            function(*initargs)

    loop.run(worker, initialize, max_tasks, preload=preload)


def _usable(context: Any) -> Any:
    """The context, or forkserver in fork's place while interpreters are alive.

    A child that is forked then dies in CPython's own clean-up after the fork (CPython issue 139759).
    """
    if context.get_start_method() == "fork" and _native.n_interpreters():
        return get_context("forkserver")
    return context


def _forget_stdin() -> None:
    """Takes `__file__` from a `__main__` that was read from stdin, as Python did before 3.14.

    multiprocessing would look for a script of that name in the child, and die.
    """
    main = sys.modules["__main__"].__dict__
    if main.get("__file__") == "<stdin>":
        main.pop("__file__", None)


def _open_sentinel(process: Any) -> int:
    """A descriptor that is readable once the process is dead.

    That of `multiprocessing` is a pipe, which children that a task has forked may hold open. A fork server's is not:
    there the pipe's other end stays in the server, and the process is no child of ours.
    """
    if process._start_method != "forkserver" and hasattr(os, "pidfd_open"):
        try:
            return os.pidfd_open(process.pid)
        except OSError:
            pass  # an old kernel or an emulated one
    sentinel: int = process.sentinel
    return sentinel


class ProcessWorker:
    """A worker that is a process."""

    def __init__(self, channel: _native.Channel, n: int, setup: Setup) -> None:
        from pool_party.wire.fd_handle import Handle

        self.n = n
        self.was_ready = False
        self._reaping = threading.Lock()  # of two threads that reap a process at a time, one finds no exit code
        context = _usable(setup.context)
        _forget_stdin()
        self.process = context.Process(
            target=main,
            args=(
                Handle(channel.fd),
                n,
                _portable(setup.initializer, context),
                setup.initargs,
                setup.max_tasks,
                setup.plan and setup.plan.terms(n, setup.gate),
                setup.preload,
                context.get_start_method() != "spawn",  # a fork server forks, too
            ),
            daemon=False,  # it may have children; it dies with us by its own means
        )
        self.process.name = self.name = self.process.name.replace("Process", "PoolWorker")
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the worker ignores it
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self.sentinel = _open_sentinel(self.process)
        if self.sentinel != self.process.sentinel:
            weakref.finalize(self, os.close, self.sentinel).atexit = False

    @property
    def pid(self) -> int | None:
        pid: int | None = self.process.pid
        return pid

    @property
    def exitcode(self) -> int | None:
        with self._reaping:
            exitcode: int | None = self.process.exitcode
        return exitcode

    def is_alive(self) -> bool:
        with self._reaping:
            return bool(self.process.is_alive())

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()

    def join(self, timeout: float | None = None) -> bool:
        from multiprocessing import connection

        if not connection.wait([self.sentinel], timeout):
            return False
        with self._reaping:
            self.process.join()
        return True
