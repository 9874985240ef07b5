"""Workers that are processes of a `multiprocessing` context."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import select
import signal
import sys
import threading
import time
from multiprocessing import get_context, parent_process
from multiprocessing import process as processes

from pool_party import _native
from pool_party.wire import beside, codec, definitions
from pool_party.workers import loop, process_helpers
from pool_party.workers.base import start_method

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from pool_party.budget.terms import Terms
    from pool_party.wire.definitions import Receivers
    from pool_party.wire.fd_handle import Handle
    from pool_party.workers.base import Setup


_SEED = "PYTHONHASHSEED"
_LONGEST_S = 1e6  # longest single wait: poll takes milliseconds as a C int
_LAUNCHES = 3  # attempts to start a process, in case the fork server dies during one
_RELAUNCH_S = 0.02  # pause between them: a killed fork server still exists for a moment, but serves nobody
_SERVER_TELLS_S = 1.0  # how long a fork server may take to report a dead child's exit code; guess: it takes 0.1 ms
_STOP_PAUSE_S = 0.0002  # between checks whether a process has stopped; guess: stopping takes 0.05 ms


def _portable(initializer: Callable[..., object] | None, method: str | None, receivers: Receivers | None) -> Any:
    """Return the initializer as `Process` can send it: itself under fork, otherwise our own pickle (bytes).

    Its arguments are never pickled here: locks and queues may only be sent while a process is being started.
    """
    if initializer is None or method == "fork":
        return initializer
    return codec.with_names(codec.encode(initializer, receivers))


class _Arguments:
    """The initializer's arguments as `Process` sends them, except that shared memory is sent by name and not copied."""

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
    """Give NumPy's global generator a new state in a forked child. (`random` does this by itself.)

    It installs a new generator. `seed` would take a lock that another thread of the parent may have held at the fork.
    """
    numpy_random = sys.modules.get("numpy.random")
    replace, current = (getattr(numpy_random, name, None) for name in ("set_bit_generator", "get_bit_generator"))
    if replace is not None and current is not None:
        with contextlib.suppress(Exception):  # an unusual generator that cannot be made this way
            replace(type(current())())


class _Shield:
    """The first argument of a worker's `main`. Once it is unpickled, Ctrl-C no longer raises in the worker.

    A fork server's children start with SIGINT unblocked. Before this object is unpickled, KeyboardInterrupt ends them
    silently. Later, in `Process._bootstrap`, it would print a traceback.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _leave_interrupts_to_the_parent, ()


_interruptible: _native.Worker | None = None  # this process's worker, while it runs tasks


def _on_interrupt(number: int, frame: object) -> None:
    """Handle SIGINT in a worker. Ctrl-C itself is for the parent, so it does nothing here.

    The parent sends SIGINT again if it ends its workers in a way that lets tasks clean up (`ProcessWorker.interrupt`).
    """
    global _interruptible
    if _interruptible is not None and _interruptible.must_stop:
        _interruptible = None  # once: a task that cleans up is not disturbed
        raise KeyboardInterrupt


def _leave_interrupts_to_the_parent() -> None:
    """Ignore SIGINT through a handler. SIG_IGN would be inherited by programs that tasks start.

    Interrupted system calls are restarted if the kernel can, as Python does for its own. If the program ignores SIGINT,
    as under nohup, its workers do as well.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _on_interrupt)
        signal.siginterrupt(signal.SIGINT, False)


def _take_interrupts() -> None:
    """Restore Ctrl-C in a child that a task has forked, unless the task had set a handler of its own."""
    if signal.getsignal(signal.SIGINT) is _on_interrupt:
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
    has_seed: bool,
    relay: tuple[Any, ...] | None,
    memory: tuple[int, int] | None,
) -> None:
    """Run a worker process from start to end. `shield` has done its work by being unpickled."""
    global _interruptible
    _leave_interrupts_to_the_parent()
    os.register_at_fork(after_in_child=_take_interrupts)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    parent = parent_process()
    if parent is not None:
        _native.die_with(parent.sentinel)
    loop.is_remote = True
    definitions.enter_worker()
    worker = _native.Worker.attach(handle.open(), n)
    if terms is not None:
        terms.enter(worker)

    if memory is not None:
        from pool_party.workers import memory_limits

        worker.retire_when(memory_limits.watch_own(*memory))
    if is_forked:
        _reseed()
    if has_seed:
        os.environ.pop(_SEED, None)  # not for the programs that tasks start

    def initialize() -> None:
        if initializer is None:
            return
        if callable(initializer):
            definitions.note_own(initializer)
        function = initializer if callable(initializer) else codec.decode(initializer)
        function(*initargs.args)

    with contextlib.suppress(KeyboardInterrupt):  # of `_on_interrupt`, amid our own code: this process is to end
        _interruptible = worker
        loop.run(worker, initialize, max_tasks, preload=preload, observe=_relaying(relay))
        _interruptible = None


def _relaying(terms: tuple[Any, ...] | None) -> Callable[[_native.Worker], Callable[[], object]] | None:
    """Return the `observe` of `loop.run` in a process, whose descriptors arrive as handles."""
    if terms is None:
        return None
    sending, counting, *others = terms
    return loop.relaying(processes.current_process().name, (sending.open(), counting.open(), *others))


_setting = threading.RLock()  # held while the environment has a worker's variables
os.register_at_fork(after_in_child=_setting._at_fork_reinit)  # type: ignore[attr-defined]  # another thread may hold it


@functools.cache
def _hash_seed() -> str:
    """The seed of hashes in this program's spawned workers."""
    return str(int.from_bytes(os.urandom(4)) or 1)  # 0 would turn randomization off


def _variables_of(terms: Terms | None) -> dict[str, str]:
    """Return the variables that a spawned worker must find in its environment as it starts.

    Its libraries start threads for a count of theirs when the program's main module loads them, before the worker gets
    its terms. All spawned workers have the same hashes of strings, as those of the other start methods have them.
    Otherwise two workers would sort equal keys into different partitions, for example in Dask's `groupby`.
    """
    variables = {} if terms is None else terms.environment()
    return {**variables, _SEED: _hash_seed()} if _seeds_hashes() else variables


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Give a process that is spawned meanwhile these variables. `os.environ` does not change.

    A program that another thread starts meanwhile may inherit them.
    """
    if not variables:
        yield
        return
    with _setting:
        for name, value in variables.items():
            os.putenv(name, value)
        try:
            yield
        finally:
            for name in variables:
                before = os.environ.get(name)
                os.unsetenv(name) if before is None else os.putenv(name, before)


def _seeds_hashes() -> bool:
    """Whether the user has not chosen a seed."""
    return os.environ.get(_SEED) in (None, "", "random")


def _start(process: Any, method: str | None, variables: Mapping[str, str]) -> None:
    """Start a process with SIGINT blocked until the process ignores it.

    The fork server and the resource tracker would inherit the blocked signal, and pass it on to processes that are not
    ours. If they are missing, they are therefore started first, with the caller's own mask. So Ctrl-C ends a fork
    server that is still importing (some 0.1 s), with a traceback, as everywhere in `multiprocessing`.
    """
    process_helpers.ensure(method)
    # If the pool ended early, a forked worker would run the program's own SIGTERM handler before resetting it.
    blocked = {signal.SIGINT, signal.SIGTERM} if method == "fork" else {signal.SIGINT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # a handler may raise here, after the mask has changed
        with _environment(variables):
            _launch(process)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _launch(process: Any) -> None:
    """Start a process. One that dies before it has read its instructions counts as started.

    `multiprocessing` raises in that case and forgets the child, so that nobody would wait for it. If the fork server
    died instead, the next attempt starts another server.
    """
    for n_left in reversed(range(_LAUNCHES)):
        try:
            process.start()
            return
        except (ConnectionError, EOFError) as error:
            if _adopt(process, error):
                return
            if n_left == 0:
                raise
            time.sleep(_RELAUNCH_S)


def _adopt(process: Any, error: BaseException) -> bool:
    """Complete the start of a process that has died during it. Return whether there is such a process.

    Only the frames of the error still refer to it.
    """
    from multiprocessing import popen_fork

    frame = error.__traceback__
    while frame is not None:
        popen = frame.tb_frame.f_locals.get("self")
        if isinstance(popen, popen_fork.Popen) and hasattr(popen, "sentinel") and _has_pid(popen):
            process._popen, process._sentinel = popen, popen.sentinel
            processes._children.add(process)  # type: ignore[attr-defined]  # as `Process.start` does
            return True
        frame = frame.tb_next
    return False


def _has_pid(popen: Any) -> bool:
    """Whether a process was made. For a forkserver's child, the server says so, unless it has died."""
    if getattr(popen, "pid", None) is None:
        from multiprocessing import forkserver

        try:
            popen.pid = forkserver.read_signed(popen.sentinel)
        except (OSError, EOFError):
            return False
    return True


def _is_readable(fd: int, timeout: float | None = 0) -> bool:
    """Whether a descriptor becomes readable within this many seconds. None waits for ever."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout is None else min(timeout, _LONGEST_S) * 1000))


def _is_stopped(pid: int) -> bool:
    """Return whether the main thread of a process, which runs the tasks, is stopped or has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except OSError:
        return True
    return state in b"TtZX"


class _Descriptor:
    """Owns a file descriptor, which is closed once.

    Not by `weakref.finalize`: the first of those in a program decides where all of them are among its exit handlers.
    """

    def __init__(self, fd: int) -> None:
        self._fds = [fd]

    def close(self, close: Callable[[int], None] = os.close) -> None:
        while self._fds:
            close(self._fds.pop())

    def __del__(self) -> None:
        self.close()


def _open_pidfd(process: Any) -> int | None:
    """Return a descriptor that becomes readable when the process ends, or None if that is impossible.

    The process may be a child of another process.

    The sentinel of `multiprocessing` is less reliable. It is a pipe that children forked by a task may hold open, and
    with a fork server its other end belongs to the server and is lost with it. While the sentinel is not readable,
    nobody has waited for the process, so its pid has not been reused. That is checked after the pidfd was opened.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except (OSError, AttributeError):
        return None  # an old or emulated kernel, or the process has ended
    if _is_readable(process.sentinel):
        os.close(pidfd)
        return None
    return pidfd


def _exitcode_of_child(pidfd: int) -> int | None:
    """Return the exit code of a dead child that nobody has waited for, without waiting for it. Otherwise None."""
    try:
        info = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (OSError, AttributeError):
        return None
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


class ProcessWorker:
    """A worker that is a process.

    Any thread may call any method at any time, even after `release`. The locks are reentrant, since a signal handler
    may end the pool in the middle of a method.
    """

    def __init__(self, channel: _native.Channel, n: int, setup: Setup) -> None:
        from pool_party.wire.fd_handle import Handle

        self.n = n
        self.was_ready = False
        self._method = start_method(setup.context)
        context: Any = setup.context if self._method == setup.context.get_start_method() else get_context(self._method)
        terms = setup.relay_terms(n)
        budget = setup.plan and setup.plan.terms(n, setup.gate)
        self._variables = _variables_of(budget) if self._method == "spawn" else {}
        self.burst_bytes = 0  # what it had when it was found above its memory limit amid a task
        self.inherited_bytes = 0  # what it shares with its parent by fork
        if setup.memory_limit and self._method == "fork":
            from pool_party.workers import memory_limits

            self.inherited_bytes = memory_limits.private_bytes()
        self.process = context.Process(
            target=main,
            args=(
                _Shield(),
                Handle(channel.fd),
                n,
                _portable(setup.initializer, self._method, setup.receivers),
                _Arguments(setup.initargs),
                setup.max_tasks,
                budget,
                setup.preload,
                self._method != "spawn",  # a fork server forks its children, too
                self._method == "spawn" and _seeds_hashes(),
                terms and (Handle(terms[0]), Handle(terms[1]), *terms[2:]),
                (setup.memory_limit, self.inherited_bytes) if setup.memory_limit else None,
            ),
            daemon=False,  # it may have children of its own; it ends with us by `die_with`
        )
        self.process.name = self.name = self.process.name.replace("Process", "PoolWorker")
        self.pid: int | None = None
        self.sentinel: int | None = None
        self._pidfd: int | None = None
        self._owned: _Descriptor | None = None
        self._exitcode: int | None = None
        self._is_reaped = self._is_released = False
        self._n_waiting = 0  # threads that wait for `sentinel`, which must stay open meanwhile
        # Held only where no signal handler runs: one could end the pool, whose background thread takes these locks as
        # well.
        self._using = threading.RLock()  # guards the descriptors and the two lines above; held briefly
        self._reaping = threading.RLock()  # if two threads reaped at once, one would find no exit code

    def start(self) -> None:
        _start(self.process, self._method, self._variables)

    def enrol(self) -> None:
        if self.pid is not None or self.process.pid is None:  # already enrolled, or its start was interrupted
            return
        self.pid = self.process.pid
        self._pidfd = _open_pidfd(self.process)
        self.sentinel = self.process.sentinel if self._pidfd is None else self._pidfd
        if self._pidfd is not None:
            self._owned = _Descriptor(self._pidfd)

    @property
    def exitcode(self) -> int | None:
        return self._exitcode if self.join(0) else None

    def is_alive(self) -> bool:
        return not self.join(0)

    def interrupt(self) -> bool:
        _native.call_apart(lambda: self._send(signal.SIGINT))
        return True

    def terminate(self) -> bool:
        _native.call_apart(lambda: self._send(signal.SIGTERM))
        return True

    def kill(self) -> bool:
        _native.call_apart(lambda: self._send(signal.SIGKILL))
        return True

    def kill_if(self, holds: Callable[[], bool], number: int = signal.SIGKILL, patience_s: float | None = None) -> bool:
        """Stop the process, send it a signal if `holds()`, and let it continue. Blocks for a moment."""
        if self.pid is None:
            return True
        deadline = None if patience_s is None else time.monotonic() + patience_s
        _native.call_apart(lambda: self._send(signal.SIGSTOP))
        try:
            while not _is_stopped(self.pid) and self.is_alive():  # after its end another process may have its pid
                if deadline is not None and time.monotonic() > deadline:
                    return False
                time.sleep(_STOP_PAUSE_S)
            if holds():
                _native.call_apart(lambda: self._send(number))
        finally:
            _native.call_apart(lambda: self._send(signal.SIGCONT))
        return True

    def interrupt_task(self, begun_ns: int) -> bool:
        """Do nothing: a process is killed."""
        return True

    def _send(self, number: int) -> None:
        """Send a signal to this process, and never to another one that has got its pid since."""
        with self._using:
            if self._pidfd is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, number)
            elif not self._is_released and self.process.pid is not None:  # otherwise its start was interrupted
                self.process._popen._send_signal(number)  # as `terminate` and `kill` do with theirs

    def join(self, timeout: float | None = None) -> bool:
        if self._is_reaped:  # a sentinel of `multiprocessing` that was read is not readable for a moment
            return True
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
        """After the process's end: stores the exit code, and makes `multiprocessing` forget the process.

        `multiprocessing` learns the exit codes of a fork server's children from the server, if that is alive. The
        server reports them soon, except if SIGCHLD was blocked when it started. The program's end would then wait
        for the process for ever.
        """
        with self._reaping:
            if self._is_reaped:
                return
            code = None if self._pidfd is None else _exitcode_of_child(self._pidfd)
            self.process.join(None if code is not None else _SERVER_TELLS_S)
            processes._children.discard(self.process)  # type: ignore[attr-defined]
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
        if self._owned is not None:
            self._owned.close()
        with contextlib.suppress(ValueError):  # `multiprocessing` takes it for alive if somebody else has waited for it
            self.process.close()
