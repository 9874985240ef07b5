"""Workers that are threads of this interpreter; arguments and results pass by reference."""

import os
import sys
import threading
from collections.abc import Callable

from pool_party import _native
from pool_party._budget import limiter
from pool_party._ground.threads import PoolThread, start_thread
from pool_party._workers import loop
from pool_party._workers.base import Setup

_hook: object = None


def _raise_again_after_destructors() -> None:
    """Install a sys.unraisablehook that calls the present one, except for an interrupt that hits a destructor."""
    global _hook
    if sys.unraisablehook is not _hook:
        _hook = sys.unraisablehook = _native.interrupt_hook(sys.unraisablehook)


class ThreadWorker:
    """A worker that is a thread of this interpreter.

    Its tasks never pass a gate. A region of another thread that waited there while holding the GIL would prevent the
    task from ending.
    """

    exitcode = None
    sentinel = None
    is_watched = True
    link = None

    def __init__(self, channel: _native.Channel, n: int, setup: Setup) -> None:
        self.n = n
        self.was_ready = False
        self.name = f"ThreadPoolWorker-{n + 1}"
        self.pid = os.getpid()
        self._channel = channel
        self._setup = setup
        self._thread = PoolThread(self._run, self.name, channel, _native.DUTY_TASKS)

    def start(self) -> None:
        start_thread(self._thread)

    def _run(self) -> None:
        worker = self._channel.worker(self.n)
        setup, config = self._setup, self._setup.config
        try:
            if setup.plan is not None:
                limiter.pin(setup.plan.mask(self.n), setup.plan.cpus)
                worker.refresh_with(limiter.refresh)
            loop.run(
                worker,
                lambda: None if config.initializer is None else config.initializer(*config.initargs),
                config.maxtasksperchild or 0,
                loop.keep,
                config.preload,
                self._name_records if config.log else None,
            )
        finally:
            try:
                limiter.unpin()
            finally:
                worker.exited()

    def _name_records(self, worker: _native.Worker) -> Callable[[], object]:
        from pool_party._workers import relaying

        return relaying.enter_thread(worker, self.name)

    def enrol(self) -> None:
        """Do nothing: a thread's end is reported by the channel."""

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def terminate(self) -> bool:
        """Raise SystemExit in the Python code of a task or an initializer. A C function that is running returns first.

        It does not do so while the thread reads a module's file, which the exception would leave open.
        """
        return self.interrupt_task(0)

    interrupt = kill = terminate

    def kill_if(self, holds: object, number: int, patience_s: float | None) -> bool:
        """Do nothing: only a process can be stopped or killed."""
        return True

    def interrupt_task(self, begun_ns: int) -> bool:
        """Raise SystemExit in the timed task that began then; 0: in whatever runs. False: try again a little later."""
        if self._thread.ident is None:
            return True
        _raise_again_after_destructors()
        return self._channel.interrupt(self.n, self._thread.ident, SystemExit, begun_ns)

    def join(self, timeout: float | None = None) -> bool:
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def reopen(self) -> None:
        """Do nothing: no descriptor belongs to it."""

    def release(self) -> None:
        """Do nothing: a thread leaves nothing open."""
