"""Workers that are processes of a `multiprocessing` context."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
import threading
import time
import weakref
from multiprocessing import get_context, parent_process

from pool_party import _native
from pool_party.wire import beside, codec, definitions
from pool_party.workers import loop
from pool_party.workers.base import start_method

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pool_party.budget.terms import Terms
    from pool_party.wire.definitions import Receivers
    from pool_party.wire.fd_handle import Handle
    from pool_party.workers.base import Setup


_LONGEST_S = 1e6  # of one wait: poll takes milliseconds as a C int
_STOP_PAUSE_S = 0.0002  # between looks whether a process has stopped, which takes some 0.05 ms; guess
_SERVER_TELLS_S = 1.0  # guess: how long a fork server may take to tell a dead child's exit code; it takes some 0.1 ms


def _portable(initializer: Callable[..., object] | None, method: str | None, receivers: Receivers | None) -> Any:
    """The initializer as `Process` can send it: as it is under fork, else as our own pickle (bytes).

    Its arguments always go as they are: locks and queues may only be sent while a process is being started.
    """
    if initializer is None or method == "fork":
        return initializer
    return codec.with_names(codec.encode(initializer, receivers))


class _Arguments:
    """The initializer's arguments as `Process` sends them, but for shared memory: that goes by name, not as a copy."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.args = args

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import ForkingPickler

        shared: list[memoryview | bytes] = []
        file = io.BytesIO()
        ForkingPickler(file, 5, True, beside.collector(shared)).dump(self.args)
        return _arguments, (codec.with_names((file.getvalue(), shared)),)


def _arguments(payload: codec.Payload) -> _Arguments:
    return _Arguments(codec.decode(payload))


def _reseed() -> None:
    """Gives NumPy's global generator a state of its own, as `random` has in a forked child by its own doing.

    By a new generator and not by `seed`, which takes a lock that some thread of the parent may have held.
    """
    numpy_random = sys.modules.get("numpy.random")
    replace, current = (getattr(numpy_random, name, None) for name in ("set_bit_generator", "get_bit_generator"))
    if replace is not None and current is not None:
        with contextlib.suppress(Exception):  # a generator from elsewhere that cannot be made so
            replace(type(current())())


class _Shield:
    """The first argument of a worker's `main`: once it is unpickled, Ctrl-C raises nothing in the worker any more.

    A fork server's children begin with SIGINT unblocked. Until this is unpickled, KeyboardInterrupt ends them silently;
    in `Process._bootstrap`, which comes next, it would print a traceback.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _leave_interrupts_to_the_parent, ()


def _ignore_interrupt(number: int, frame: object) -> None:
    """The worker's handler of SIGINT: Ctrl-C is for the parent, which ends its workers."""


def _leave_interrupts_to_the_parent() -> None:
    """Ignores SIGINT by a handler and not by SIG_IGN, which programs that tasks start would inherit through `exec`.

    Interrupted system calls go on where the kernel can restart them, as Python itself does with its own. Where the
    program ignores SIGINT, as under nohup, so do its workers.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _ignore_interrupt)
        signal.siginterrupt(signal.SIGINT, False)


def _take_interrupts() -> None:
    """In a child that a task has forked: Ctrl-C is for it, too, unless the task had a handler of its own."""
    if signal.getsignal(signal.SIGINT) is _ignore_interrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main(
    shield: _Shield,
    handle: Handle,
    n: int,
    initializer: Any,
    initargs: _Arguments,
    max_tasks: int,
    terms: Terms | None,
    preload: tuple[str, ...],
    is_forked: bool,
) -> None:
    """The life of a worker process; `shield` has done its part before."""
    _leave_interrupts_to_the_parent()
    os.register_at_fork(after_in_child=_take_interrupts)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    parent = parent_process()
    if parent is not None:
        _native.die_with(parent.sentinel)
    definitions.enter_worker()
    worker = _native.Worker.attach(handle.open(), n)
    if terms is not None:
        terms.enter(worker)

    if is_forked:
        _reseed()

    def initialize() -> None:
        if initializer is None:
            return
        if callable(initializer):
            definitions.note_own(initializer)
        function = initializer if callable(initializer) else codec.decode(initializer)
        function(*initargs.args)

    loop.run(worker, initialize, max_tasks, preload=preload)


def _forget_stdin() -> None:
    """Takes `__file__` from a `__main__` that was read from stdin, as Python did before 3.14.

    multiprocessing would look for a script of that name in the child, and die.
    """
    main = sys.modules["__main__"].__dict__
    if main.get("__file__") == "<stdin>":
        main.pop("__file__", None)


def _start(process: Any, method: str | None) -> None:
    """Starts a process with SIGINT blocked, until it ignores that.

    What the fork server and the resource tracker are started with they keep, and pass on to processes that are none of
    ours. So whoever is still missing starts before, with the caller's own mask. As everywhere with `multiprocessing`,
    Ctrl-C therefore ends a fork server, with a traceback, that is still importing what it needs (some 0.1 s).
    """
    if method in ("forkserver", "spawn"):
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()
    if method == "forkserver":
        from multiprocessing import forkserver

        forkserver.ensure_running()
    # A forked worker would run the program's own handler of SIGTERM if the pool ended before it has put that aside.
    blocked = {signal.SIGINT, signal.SIGTERM} if method == "fork" else {signal.SIGINT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_readable(fd: int, timeout: float | None = 0) -> bool:
    """Whether a descriptor becomes readable within this many seconds; None: waits for ever."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout is None else min(timeout, _LONGEST_S) * 1000))


def _is_stopped(pid: int) -> bool:
    """Whether the thread that runs tasks executes nothing: it has stopped, or ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except OSError:
        return True
    return state in b"TtZX"


def _open_pidfd(process: Any) -> int | None:
    """A descriptor that becomes readable when the process ends, whose child it may be; None if there is none.

    The sentinel of `multiprocessing` tells less: it is a pipe, which children that a task has forked may hold open, and
    whose other end is in the fork server, if there is one, and goes with that. As long as the sentinel is not readable,
    nobody has waited for the process, so the pid is still its own: that is looked at after the pidfd was opened.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except (OSError, AttributeError):
        return None  # an old kernel or an emulated one; or the process has ended
    if _is_readable(process.sentinel):
        os.close(pidfd)
        return None
    return pidfd


def _exitcode_of_child(pidfd: int) -> int | None:
    """The exit code of a dead child that nobody has waited for, which it stays; else None."""
    try:
        info = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (OSError, AttributeError):
        return None
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


class ProcessWorker:
    """A worker that is a process.

    Any thread may call any method at any time, also after `release`. The locks are reentrant, as a signal handler may
    end the pool in the middle of a method.
    """

    def __init__(self, channel: _native.Channel, n: int, setup: Setup) -> None:
        from pool_party.wire.fd_handle import Handle

        self.n = n
        self.was_ready = False
        self._method = start_method(setup.context)
        context: Any = setup.context if self._method == setup.context.get_start_method() else get_context(self._method)
        _forget_stdin()
        self.process = context.Process(
            target=main,
            args=(
                _Shield(),
                Handle(channel.fd),
                n,
                _portable(setup.initializer, self._method, setup.receivers),
                _Arguments(setup.initargs),
                setup.max_tasks,
                setup.plan and setup.plan.terms(n, setup.gate),
                setup.preload,
                self._method != "spawn",  # a fork server forks, too
            ),
            daemon=False,  # it may have children; it dies with us by its own means
        )
        self.process.name = self.name = self.process.name.replace("Process", "PoolWorker")
        self.pid: int | None = None
        self.sentinel: int | None = None
        self._pidfd: int | None = None
        self._close_pidfd: Any = None
        self._exitcode: int | None = None
        self._is_reaped = self._is_released = False
        self._n_waiting = 0  # threads that wait for `sentinel`, which therefore stays open
        # No signal handler runs amid them: it may end the pool, whose background thread takes these locks, too.
        self._using = threading.RLock()  # guards the descriptors and the two lines above; held for moments
        self._reaping = threading.RLock()  # of two threads that reap a process at a time, one finds no exit code

    def start(self) -> None:
        _start(self.process, self._method)

    def enrol(self) -> None:
        if self.pid is not None or self.process.pid is None:  # done before, or its start was broken off
            return
        self.pid = self.process.pid
        self._pidfd = _open_pidfd(self.process)
        self.sentinel = self.process.sentinel if self._pidfd is None else self._pidfd
        if self._pidfd is not None:
            self._close_pidfd = weakref.finalize(self, os.close, self._pidfd)
            self._close_pidfd.atexit = False

    @property
    def exitcode(self) -> int | None:
        return self._exitcode if self.join(0) else None

    def is_alive(self) -> bool:
        return not self.join(0)

    def terminate(self) -> bool:
        _native.call_apart(lambda: self._send(signal.SIGTERM))
        return True

    def kill(self) -> bool:
        _native.call_apart(lambda: self._send(signal.SIGKILL))
        return True

    def kill_if(self, holds: Callable[[], bool]) -> None:
        """Kills it if `holds()` while it is stopped, amid whatever it does; else it goes on. Blocks for a moment."""
        if self.pid is None:
            return
        _native.call_apart(lambda: self._send(signal.SIGSTOP))
        try:
            while not _is_stopped(self.pid) and self.is_alive():  # once it has ended, another one may have its pid
                time.sleep(_STOP_PAUSE_S)
            if holds():
                self.kill()
        finally:
            _native.call_apart(lambda: self._send(signal.SIGCONT))

    def _send(self, number: signal.Signals) -> None:
        """Sends a signal to this process, never to another one that has its pid by now."""
        with self._using:
            if self._pidfd is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, number)
            elif not self._is_released and self.process.pid is not None:  # else its start was broken off
                end = {signal.SIGTERM: self.process.terminate, signal.SIGKILL: self.process.kill}.get(number)
                self.process._popen._send_signal(number) if end is None else end()

    def join(self, timeout: float | None = None) -> bool:
        sentinel = _native.call_apart(self._begin_waiting)
        try:
            if sentinel is not None:
                if not _is_readable(sentinel, timeout):
                    return False
                _native.call_apart(self._reap)
        finally:
            _native.call_apart(self._end_waiting)
        return True

    def _begin_waiting(self) -> int | None:
        with self._using:
            self._n_waiting += 1
            return self.sentinel

    def _end_waiting(self) -> None:
        with self._using:
            self._n_waiting -= 1
            self._close_if_unused()

    def _reap(self) -> None:
        """After its end: keeps the exit code, and has `multiprocessing` forget the process.

        That one knows the codes of a fork server's children, as far as the server still lives; it tells soon.
        """
        with self._reaping:
            if self._is_reaped:
                return
            code = None if self._pidfd is None else _exitcode_of_child(self._pidfd)
            self.process.join(None if code is not None else _SERVER_TELLS_S)
            self._exitcode = self.process.exitcode if code is None else code
            self._is_reaped = True

    def release(self) -> None:
        if self.join(0):
            with self._using:
                self._is_released = True
                self._close_if_unused()

    def _close_if_unused(self) -> None:
        if not self._is_released or self._n_waiting > 0 or self.sentinel is None:
            return
        self.sentinel = self._pidfd = None
        if self._close_pidfd is not None:
            self._close_pidfd()
        with contextlib.suppress(ValueError):  # somebody else has waited for it: `multiprocessing` takes it for alive
            self.process.close()
