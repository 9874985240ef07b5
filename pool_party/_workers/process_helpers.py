"""The processes that `multiprocessing` starts for its own needs: the resource tracker and the fork server.

A fork server imports the program's main module before it starts the first worker, which is most of the time until a
program's first result. So a pool of processes starts it before anything else is done or imported for the pool.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading

from pool_party import _native
from pool_party._ground.descriptors import Known, Owned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# Runs in a fork server before it imports anything of the program. The server has SIGINT blocked, and so have the
# children that it forks. Those that are not workers of a pool get it back before the server's own code makes them
# interruptible. A worker is recognised by bytes of its channel, which is among the descriptors that it is sent.
_IN_SERVER = """
import os, signal
from multiprocessing import forkserver

def serve_one(child_r, fds, *args, serve_one=forkserver._serve_one):
    if not any(map(is_channel, fds)):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return serve_one(child_r, fds, *args)

def is_channel(fd):
    try:
        return os.pread(fd, len(magic), at) == magic
    except OSError:
        return False

forkserver._serve_one = serve_one
"""

MAIN_KEYS = ("init_main_from_name", "init_main_from_path")  # where a child process learns of the main module

# Held while the process is in another directory, or while something of `multiprocessing` is replaced. It is one lock,
# since these are entered in several orders.
_changing = threading.RLock()
os.register_at_fork(after_in_child=_changing._at_fork_reinit)  # type: ignore[attr-defined]  # another thread may hold it


def start_early(method: str | None, omits_main: bool = False) -> None:
    """Start them in another thread, and wait for that, so that no signal handler runs amid it.

    A handler may end another pool, and wait for a thread that needs the locks which are held here. What fails is tried
    again when a worker starts, and is reported then.
    """
    if method in ("forkserver", "spawn"):
        with contextlib.suppress(Exception):
            _native.call_apart(lambda: ensure(method, omits_main))


@contextlib.contextmanager
def in_a_directory() -> Iterator[None]:
    """Leave the current directory meanwhile if it was removed, since `multiprocessing` tells new processes its name.

    They start in the root directory then.
    """
    with _changing:
        try:
            os.getcwd()
        except FileNotFoundError:
            here = Owned(os.open(".", os.O_PATH | os.O_CLOEXEC))
        else:
            yield
            return
        os.chdir("/")
        try:
            yield
        finally:
            os.fchdir(here.get())
            here.close()


def ensure(method: str | None, omits_main: bool = False) -> None:
    """Start those that a start method needs and that do not run, with the caller's signal mask, which they inherit.

    omits_main: a fork server that is started does not import the program's main module.
    """
    _complete_main()
    _native.occupy_standard()
    with in_a_directory():
        if method in ("forkserver", "spawn"):
            from multiprocessing import resource_tracker

            _forget_if_closed(resource_tracker._resource_tracker, "_fd", "_pid")
            resource_tracker.ensure_running()
            _note(resource_tracker._resource_tracker, "_fd")
        if method == "forkserver":
            from multiprocessing import forkserver

            server: Any = forkserver._forkserver
            _forget_if_closed(server, "_forkserver_alive_fd", "_forkserver_pid", "_forkserver_address")
            with shielding_server(), main_omitted() if omits_main else contextlib.nullcontext():
                forkserver.ensure_running()
            _note(server, "_forkserver_alive_fd")


_noted: dict[str, Known] = {}  # the descriptors by which `multiprocessing` knows its processes, by their attribute


def _note(owner: Any, attribute: str) -> None:
    fd = getattr(owner, attribute, None)
    if isinstance(fd, int) and (attribute not in _noted or _noted[attribute].fd != fd):
        _noted[attribute] = Known(fd)


def _forget_if_closed(owner: Any, attribute: str, *others: str) -> None:
    """Have `multiprocessing` start another process if somebody has closed its descriptor of the last one.

    That one ends by itself. `multiprocessing` would write to whatever file has the number by now, or close it.
    """
    if attribute in _noted and getattr(owner, attribute, None) is not None and _noted[attribute].fd < 0:
        del _noted[attribute]
        for name in (attribute, *others):
            if hasattr(owner, name):
                setattr(owner, name, None)


@contextlib.contextmanager
def shielding_server() -> Iterator[None]:
    """Have a fork server that this thread starts meanwhile block SIGINT: Ctrl-C interrupts neither it nor its workers.

    `multiprocessing` starts one whenever a process is to be started and there is none, as after the server was killed.
    """
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    with _changing:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        modules = server._preload_modules
        server._preload_modules = shielding = _Shielding(modules)
        if _use_system_sockets():
            shielding[:] = [name for name in modules if name != "__main__"]
        try:
            yield
        finally:
            if server._preload_modules is shielding:
                server._preload_modules = modules
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _use_system_sockets() -> bool:
    """Whether a library, as gevent, has replaced sockets by its own. If so, give `multiprocessing` the system's.

    The library's do not block, and the fork server and its clients read from their descriptors as if they did. A server
    must not import a main module that has the library replace them there.
    """
    from multiprocessing import forkserver

    if socket.socket.__module__ == "socket":
        return False
    module: Any = forkserver
    if module.socket is socket:
        import importlib.util  # which other programs do not need

        spec = importlib.util.find_spec("socket")
        assert spec is not None and spec.loader is not None
        module.socket = importlib.util.module_from_spec(spec)  # a second one, not in `sys.modules`
        spec.loader.exec_module(module.socket)
    return True


def server_pid() -> int | None:
    """The pid of the fork server that `multiprocessing` has started last."""
    from multiprocessing import forkserver

    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return pid


def was_asked_to_end(pid: int | None) -> bool:
    """Whether this fork server was ended by a signal that somebody has sent to the whole program."""
    try:
        info = None if pid is None else os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return False
    if info is None or info.si_code not in (os.CLD_KILLED, os.CLD_DUMPED):
        return False
    return info.si_status in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class _Shielding(list[str]):
    """The modules that a fork server imports first. Its text is part of the command that starts the server.

    When the server evaluates it, it runs `_IN_SERVER`. Making the text blocks SIGINT in this thread, and so in the
    process that it starts next: a server with the signal blocked has always run that code.
    """

    def __repr__(self) -> str:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        names = {"magic": _native.CHANNEL_MAGIC.to_bytes(8, sys.byteorder), "at": _native.CHANNEL_MAGIC_AT}
        return f"(exec({_IN_SERVER!r}, {names!r}), {list(self)!r})[1]"


@contextlib.contextmanager
def main_omitted() -> Iterator[None]:
    """Have processes that this thread starts meanwhile not run the program's main module."""
    from multiprocessing import spawn

    with _changing:
        original, thread = spawn.get_preparation_data, threading.get_ident()

        def get_preparation_data(name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
            data: dict[str, Any] = original(name, *args, **kwargs)
            if threading.get_ident() == thread:
                for key in MAIN_KEYS:
                    data.pop(key, None)
            return data

        spawn.get_preparation_data = get_preparation_data
        try:
            yield
        finally:
            if spawn.get_preparation_data is get_preparation_data:
                spawn.get_preparation_data = original


def _complete_main() -> None:
    """Give `__main__` what `multiprocessing` expects of it, since a program that runs a script may have replaced it.

    Workers name a script's classes after `__mp_main__`, which `multiprocessing` sets when it is imported. `__spec__` is
    read to start a process, and IPython's second `%run` of a script runs it in a module that has none.
    """
    main = sys.modules.get("__main__")
    if main is not None:
        sys.modules["__mp_main__"] = main
        main.__dict__.setdefault("__spec__", None)
        _forget_stdin(main.__dict__)


def _forget_stdin(main: dict[str, object]) -> None:
    """Remove `__file__` from a `__main__` that was read from stdin, which Python before 3.14 sets.

    multiprocessing would search for a script of that name in the child, and the child would die.
    """
    if main.get("__file__") == "<stdin>":
        main.pop("__file__", None)
