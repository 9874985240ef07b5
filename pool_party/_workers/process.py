"""Workers that are processes of a `multiprocessing` context."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import select
import signal
import sys
import time
from multiprocessing import get_context, parent_process
from multiprocessing import process as processes

from pool_party import _native
from pool_party._ground.descriptors import Owned
from pool_party._wire import beside, codec, definitions
from pool_party._wire.making import note_scope
from pool_party._workers import loop, process_helpers
from pool_party._workers.base import names_of_main, start_method

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from pool_party._budget.process_budget import ProcessBudget
    from pool_party._wire.definitions import Receivers
    from pool_party._wire.fd_handle import Handle
    from pool_party._workers.base import Setup


_SEED = "PYTHONHASHSEED"
_LONGEST_S = 1e6  # longest single wait: poll takes milliseconds as a C int
_LAUNCHES = 3  # attempts to start a process, in case the fork server dies during one
_ASKED_MAX = 50  # servers that were asked to end meanwhile; guess
_RELAUNCH_S = 0.02  # pause between them: a killed fork server still exists for a moment, but serves nobody
_UNKNOWN = 255  # the exit code of a fork server's child if nobody tells it, as in the standard library
_SERVER_TELLS_S = 1.0  # how long a fork server may take to report a dead child's exit code; guess: it takes 0.1 ms
_STOP_PAUSE_S = 0.0002  # between checks whether a process has stopped; guess: stopping takes 0.05 ms


def _portable(initializer: Callable[..., object] | None, method: str | None, receivers: Receivers | None) -> Any:
    """Return the initializer as `Process` can send it: itself under fork, otherwise our own pickle (bytes).

    Its arguments are never pickled here: locks and queues may only be sent while a process is being started.
    """
    if initializer is None or method == "fork":
        note_scope(initializer)  # tasks are to find what it sets there
        return initializer
    return codec.with_names(codec.encode(initializer, receivers))


class _Arguments:
    """The initializer's arguments as `Process` sends them, except that shared memory is sent by name and not copied.

    receivers: where to note definitions of `__main__` that travel with them; None: none do.
    """

    def __init__(self, args: tuple[Any, ...], receivers: Receivers | None = None) -> None:
        self.args = args
        self._receivers = receivers

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import ForkingPickler

        shared: list[memoryview | bytes] = []
        file = io.BytesIO()
        ForkingPickler(file, 5, True, beside.collector(shared)).dump(self.args)
        pickle = file.getvalue()
        if self._receivers is not None:
            pickle = codec.with_definitions(pickle, beside.collector(shared), self._receivers)
        return _arguments, (codec.with_names((pickle, shared)) if shared else pickle,)


class _NamedArguments:
    """The same as they arrive if shared memory is among them, which the worker gets once it has its link."""

    def __init__(self, payload: codec.Payload) -> None:
        self._payload = payload

    @property
    def args(self) -> tuple[Any, ...]:
        args: tuple[Any, ...] = codec.decode(self._payload)
        return args


def _arguments(payload: codec.Payload) -> _Arguments | _NamedArguments:
    return _Arguments(codec.decode(payload)) if isinstance(payload, bytes) else _NamedArguments(payload)


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

    names: what the worker's `__main__` has then, before the other arguments are unpickled.

    Only the children of a fork server that the program has started before its first pool need it: they start with
    SIGINT unblocked. Before this object is unpickled, KeyboardInterrupt ends them silently, and they are replaced.
    Later, in `Process._bootstrap`, it would print a traceback.
    """

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def __reduce__(self) -> tuple[Any, ...]:
        return _shield, (self._names,)


def _shield(names: dict[str, str]) -> None:
    _leave_interrupts_to_the_parent()
    sys.modules["__main__"].__dict__.update(names)


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


def _sentinel_of(parent: Any) -> int:
    """Return a descriptor that becomes readable when the parent ends. loky tells its children of none."""
    sentinel: int | None = parent.sentinel
    if sentinel is None:
        sentinel = os.pidfd_open(parent.pid)
        if os.getppid() != parent.pid:  # the parent has ended, and its pid may be another process's
            os._exit(1)
    return sentinel


def main(
    shield: None,
    handle: Handle,
    link: Handle,
    n: int,
    initializer: Any,
    initargs: _Arguments | _NamedArguments,
    max_tasks: int,
    budget: ProcessBudget | None,
    preload: tuple[str, ...],
    is_forked: bool,
    has_seed: bool,
    relay: tuple[Any, ...] | None,
    memory: tuple[int, int] | None,
) -> None:
    """Run a worker process from start to end. `shield` has done its work by being unpickled."""
    global _interruptible
    _leave_interrupts_to_the_parent()
    _native.occupy_standard()  # what tasks print, if there are no standard streams, goes nowhere
    os.register_at_fork(after_in_child=_take_interrupts)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    parent = parent_process()
    if parent is not None:
        _native.die_with(_sentinel_of(parent))
    loop.is_remote = True
    definitions.enter_worker()
    worker = _native.Worker.attach(handle.open(), n)
    _native.enter_link(link.open())
    if budget is not None:
        budget.enter(worker)

    if memory is not None:
        from pool_party._workers import memory_limits

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


_setting = _native.Guard()  # held while the environment has a worker's variables
os.register_at_fork(after_in_child=_setting._at_fork_reinit)  # type: ignore[attr-defined]  # another thread may hold it


@functools.cache
def _hash_seed() -> str:
    """The seed of hashes in this program's spawned workers."""
    return str(int.from_bytes(os.urandom(4)) or 1)  # 0 would turn randomization off


def _variables_of(budget: ProcessBudget | None) -> dict[str, str]:
    """Return the variables that a spawned worker must find in its environment as it starts.

    Its libraries start threads for a count of theirs when the program's main module loads them, before the worker gets
    its budget. All spawned workers have the same hashes of strings, as those of the other start methods have them.
    Otherwise two workers would sort equal keys into different partitions, for example in Dask's `groupby`.
    """
    variables = {} if budget is None else budget.environment()
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


def _start(process: Any, method: str | None, variables: Mapping[str, str], omits_main: bool) -> None:
    """Start a process with SIGINT blocked until the process ignores it.

    The resource tracker would inherit the blocked signals, and pass them on to processes that are not ours. If it is
    missing, it is therefore started first, by `ensure`. A fork server blocks SIGINT itself.
    """
    process_helpers.ensure(method, omits_main)
    omitting = process_helpers.main_omitted() if omits_main else contextlib.nullcontext()
    if method == "forkserver":
        with omitting:
            _launch(process, process_helpers.shielding_server)
        return
    # If the pool ended early, a forked worker would run the program's own SIGTERM handler before resetting it.
    blocked = {signal.SIGINT, signal.SIGTERM} if method == "fork" else {signal.SIGINT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # a handler may raise here, after the mask has changed
        with _environment(variables), omitting:
            _launch(process, contextlib.nullcontext)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _launch(process: Any, circumstances: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Start a process. One that dies before it has read its instructions counts as started.

    `multiprocessing` raises in that case and forgets the child, so that nobody would wait for it. If the fork server
    died instead, the next attempt starts another server. One that was asked to end does not count, since the signal was
    for the program, which goes on; but not for ever, since a server that sends itself such a signal looks the same.
    """
    n_left, n_asked = _LAUNCHES, 0
    while True:
        try:
            _native.occupy_standard()
            with process_helpers.in_a_directory(), circumstances():
                process.start()
            return
        except (OSError, EOFError) as error:
            if not isinstance(error, (ConnectionError, EOFError)):
                _close_pipes(error)
                raise
            if _adopt(process, error):
                return
            time.sleep(_RELAUNCH_S)
            if n_asked < _ASKED_MAX and process_helpers.was_asked_to_end(process_helpers.server_pid()):
                n_asked += 1
                continue
            n_left -= 1
            if n_left == 0:
                raise


def _adopt(process: Any, error: BaseException) -> bool:
    """Complete the start of a process that has died during it. Return whether there is such a process.

    Only the frames of the error still refer to it.
    """
    from multiprocessing import popen_fork

    for found in _locals(error):
        popen = found.get("self")
        if isinstance(popen, popen_fork.Popen) and hasattr(popen, "sentinel") and _has_pid(popen):
            process._popen, process._sentinel = popen, popen.sentinel
            processes._children.add(process)  # type: ignore[attr-defined]  # as `Process.start` does
            return True
    return False


def _close_pipes(error: BaseException) -> None:
    """Close the pipes that `multiprocessing` has opened for a process, and forgets if `os.fork` fails."""
    from multiprocessing import popen_fork

    for found in _locals(error):
        popen = found.get("self")
        if type(popen) is popen_fork.Popen and "child_w" in found and getattr(popen, "pid", None) is None:
            for name in ("parent_r", "child_w", "child_r", "parent_w"):
                if name in found:
                    os.close(found[name])


def _locals(error: BaseException) -> Iterator[Mapping[str, Any]]:
    """The local variables of all functions that an exception has ended, from the outermost."""
    frame = error.__traceback__
    while frame is not None:
        yield frame.tb_frame.f_locals
        frame = frame.tb_next


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


def _readable_pipe() -> int:
    """Return the reading end of a pipe that has no other end."""
    ear, hand = os.pipe()
    os.close(hand)
    return ear


def _is_stopped(pid: int) -> bool:
    """Return whether the main thread of a process, which runs the tasks, is stopped or has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except OSError:
        return True
    return state in b"TtZX"


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


def _popen(process: Any) -> Any:
    """Return what represents a process in `multiprocessing`, or None for a class that does not derive from theirs."""
    return getattr(process, "_popen", None)


def _take_pipes(process: Any) -> list[Owned]:
    """Take over the pipes of a process, which `multiprocessing` would close by number, whatever has them by then."""
    finalizer = getattr(_popen(process), "finalizer", None)
    fds = getattr(finalizer, "_args", None)
    if finalizer is None or not isinstance(fds, tuple | list):
        return []
    finalizer.cancel()
    return [Owned(fd) for fd in fds if isinstance(fd, int)]


def _reap_child(pidfd: int) -> int | None:
    """Reap a dead child, and return its exit code. None if it is not a child of this process, or was reaped before."""
    try:
        info = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
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
        from pool_party._wire.fd_handle import Handle

        self.n = n
        self.was_ready = False
        config, memory_limit = setup.config, setup.memory_limit
        self._method = start_method(config.context)
        is_as_chosen = self._method == config.context.get_start_method()
        context: Any = config.context if is_as_chosen else get_context(self._method)
        relay = setup.relay_terms(n)
        budget = setup.plan and setup.plan.process_budget(n, setup.entry)
        self._variables = _variables_of(budget) if self._method == "spawn" else {}
        self._omits_main = setup.omits_main
        self.burst_bytes = 0  # what it had when it was found above its memory limit amid a task
        self.inherited_bytes = 0  # what it shares with its parent by fork
        if memory_limit and self._method == "fork":
            from pool_party._workers import memory_limits

            self.inherited_bytes = memory_limits.private_bytes()
        self.link = _native.Link()
        self.process = context.Process(
            target=main,
            args=(
                _Shield(names_of_main("__package__") if setup.omits_main else {}),  # by `__file__` its children run it
                Handle(channel.fd),
                Handle(self.link.worker_fd),
                n,
                _portable(config.initializer, self._method, setup.receivers),
                _Arguments(config.initargs, setup.receivers if setup.omits_main and not setup.by_value else None),
                config.maxtasksperchild or 0,
                budget,
                config.preload,
                self._method in ("fork", "forkserver"),  # a fork server forks its children, too
                self._method == "spawn" and _seeds_hashes(),
                relay and (Handle(relay[0]), Handle(relay[1]), *relay[2:]),
                (memory_limit, self.inherited_bytes) if memory_limit else None,
            ),
            daemon=False,  # it may have children of its own; it ends with us by `die_with`
        )
        self.process.name = self.name = self.process.name.replace("Process", "PoolWorker")
        self.pid: int | None = None
        self.sentinel: int | None = None
        self._pidfd: int | None = None
        self._owned: Owned | None = None
        self._pipes: list[Owned] = []
        self._exitcode: int | None = None
        self._is_reaped = self._is_released = False
        self._n_waiting = 0  # threads that wait for `sentinel`, which must stay open meanwhile
        # Held only where no signal handler runs: one could end the pool, whose background thread takes these locks as
        # well.
        self._using = _native.Guard()  # guards the descriptors and the two lines above; held briefly
        self._reaping = _native.Guard()  # if two threads reaped at once, one would find no exit code

    def start(self) -> None:
        try:
            _start(self.process, self._method, self._variables, self._omits_main)
        finally:
            self.link.close_worker_end()

    def enrol(self) -> None:
        if self.pid is not None or self.process.pid is None:  # already enrolled, or its start was interrupted
            return
        self.pid = self.process.pid
        self._pidfd = _open_pidfd(self.process)
        self.sentinel = self.process.sentinel if self._pidfd is None else self._pidfd
        if self._pidfd is not None:
            self._owned = Owned(self._pidfd)
        self._pipes = _take_pipes(self.process)

    def reopen(self) -> None:
        with self._using:
            self._watch_again()

    def _watch_again(self) -> None:
        """Open a new sentinel if somebody has closed it. Called with `_using`. Raises: OSError, to be tried again."""
        if self.is_watched:
            return
        _native.occupy_standard()
        try:
            self._pidfd = None if self._is_reaped else os.pidfd_open(self.pid or 0)
        except ProcessLookupError:  # it has ended, and its fork server has waited for it
            self._pidfd = None
        self.sentinel = _readable_pipe() if self._pidfd is None else self._pidfd
        self._owned = Owned(self.sentinel)

    @property
    def is_watched(self) -> bool:
        return self._owned is None or self._is_released or self._owned.fd >= 0

    @property
    def was_cut_off(self) -> bool:
        """Whether somebody has closed the pipe whose end tells the worker that this process has ended."""
        return any(pipe.fd < 0 for pipe in self._pipes)

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
            self._watch_again()
            if self._pidfd is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, number)
            elif not (self._is_released or self._owned or self.process.pid is None):  # else it has ended, or not begun
                self.process._popen._send_signal(number)  # as `terminate` and `kill` do with theirs

    def join(self, timeout: float | None = None) -> bool:
        if self._is_reaped:  # a sentinel of `multiprocessing` that was read is not readable for a moment
            return True
        sentinel = _native.call_apart(self._begin_waiting)
        try:
            if sentinel is not None:
                if not (_is_readable(sentinel, timeout) and self.is_watched):
                    return False
                _native.call_apart(self._reap)
        finally:
            _native.call_apart(self._end_waiting)
        return True

    def _begin_waiting(self) -> int | None:
        with self._using:
            self._n_waiting += 1
            self._watch_again()
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

        The process may be of a class of the program's own. Whatever its methods raise, it is reaped once.
        """
        with self._reaping:
            if self._is_reaped:
                return
            popen = _popen(self.process)
            self._exitcode = None if self._pidfd is None or popen is None else _reap_child(self._pidfd)
            try:
                if self._exitcode is None and self.was_cut_off:
                    self._exitcode = _UNKNOWN  # the pipe that would tell it is closed, and may be another file's now
                if self._exitcode is None:
                    self.process.join(_SERVER_TELLS_S)
                    self._exitcode = self.process.exitcode
                elif popen is not None:
                    popen.returncode = self._exitcode
            finally:
                processes._children.discard(self.process)  # type: ignore[attr-defined]
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
        self.link.close()
        if self._owned is not None:
            self._owned.close()
        for pipe in self._pipes:
            pipe.close()
        popen = _popen(self.process)
        if popen is not None and not hasattr(popen, "close"):  # as loky's, which closes its pipe when it is garbage
            self.process._popen = None
            return
        with contextlib.suppress(ValueError):  # `multiprocessing` takes it for alive if somebody else has waited for it
            self.process.close()
