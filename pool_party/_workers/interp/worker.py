"""Workers that are interpreters with their own GIL, each in a thread that the native module starts."""

from __future__ import annotations

import functools
import marshal
import os
import sys
from _frozen_importlib_external import SourceFileLoader

from pool_party import _native
from pool_party._wire import codec
from pool_party._workers.base import Setup, names_of_main
from pool_party._workers.interp.starting import note_end, start, watch_forks
from pool_party._workers.interp.steps import steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

_LOADED = (
    "pool_party",
    "pool_party._workers",
    "pool_party._workers.loop",
    "pool_party._workers.interp",
    "pool_party._workers.interp.known",
    "pool_party._workers.interp.process_state",
    "pool_party._workers.interp.extensions",
)


def _frozen() -> tuple[str, int, str, dict[str, tuple[int, int, int]]] | None:
    """Return PyInstaller's archive with the modules of this program, as `frozen.install` takes it; None if none is."""
    archive = getattr(sys.modules.get("pyimod02_importers"), "pyz_archive", None)
    if archive is None:
        return None
    return archive._filename, archive._start_offset, sys._MEIPASS, archive.toc  # type: ignore[attr-defined]


def _code_of(name: str) -> tuple[str, CodeType]:
    """Return a module's file and code.

    Raises: ImportError if the module was imported neither from a source file nor from PyInstaller's archive.
    """
    module = __import__(name, fromlist=["__name__"])
    loader: Any = module.__spec__ and module.__spec__.loader
    is_plain = type(loader) is SourceFileLoader or _frozen() is not None
    if not (is_plain and loader.path == module.__file__) or (code := loader.get_code(name)) is None:
        raise ImportError(f"{name} has no code that can be taken")
    return loader.path, code


@functools.cache
def _boot() -> tuple[Any, ...] | None:
    """Return the code of `boot`, the modules that it loads, and what `frozen` needs.

    None if workers must find our modules themselves.
    """
    try:
        package, *modules = [(name, file, marshal.dumps(code)) for name in _LOADED for file, code in [_code_of(name)]]
        _, boot = _code_of("pool_party._workers.interp.boot")
    except ImportError:
        return None
    frozen = None
    if (archive := _frozen()) is not None:
        frozen = marshal.dumps(_code_of("pool_party._workers.interp.frozen")[1]), archive
    return boot, (package, (_native.__name__, _native.__file__, None), *modules), frozen


def _config(setup: Setup, n: int, name: str) -> bytes:
    """Return the interpreter's configuration.

    It is marshalled, since imports do not work there before sys.path is set.
    """
    options = setup.config

    def encode(value: object) -> Any:
        return codec.with_names(codec.encode(value, setup.receivers, is_local=True))

    initializer = None if options.initializer is None else encode((options.initializer, options.initargs))
    first = encode(found) if (found := steps()) else None
    path = [str(entry) for entry in sys.path]
    cpus = setup.plan.mask(n) if setup.plan is not None else ()
    packages = (options.extensions, setup.plan is not None and setup.plan.has_own_blas)
    relay = setup.relay_terms(n)
    config = (
        *(list(sys.argv), names_of_main("__package__", "__file__"), cpus, packages, first),
        *(initializer, options.maxtasksperchild or 0, options.preload, name, relay),
    )
    return marshal.dumps((path, _boot(), config))


class InterpreterWorker:
    """A worker that is an interpreter with its own GIL."""

    exitcode = None
    sentinel = None
    is_watched = True
    link = None

    def __init__(self, channel: _native.Channel, n: int, setup: Setup) -> None:
        self.n = n
        self.was_ready = False
        self.name = f"InterpreterPoolWorker-{n + 1}"
        self.pid = os.getpid()
        self._setup = setup
        begun = setup.begun or {}
        watch_forks()
        self._interpreter = begun.pop(n) if n in begun else start(channel, n)

    def start(self) -> None:
        try:
            config = _config(self._setup, self.n, self.name)
            options = self._setup.config
            self._interpreter.run(config, options.initializer is not None or bool(options.preload))
        except BaseException:
            self._interpreter.dismiss()
            self._interpreter.join()  # the program's end may be next
            raise

    @property
    def error(self) -> str:
        """Why the worker ended, if that was its own fault."""
        return self._interpreter.error

    def enrol(self) -> None:
        """Do nothing: an interpreter's end is reported by the channel."""

    def is_alive(self) -> bool:
        return not self._interpreter.join(0)

    @property
    def is_closing(self) -> bool:
        """Whether the tasks and their threads have ended, and only the interpreter has not."""
        return self._interpreter.is_closing

    def terminate(self) -> bool:
        """Raise SystemExit in the Python code of a task or an initializer.

        A C function that is running returns first.
        """
        note_end(self)
        self._interpreter.interrupt()
        return True

    interrupt = kill = terminate

    def kill_if(self, holds: object, number: int, patience_s: float | None) -> bool:
        """Do nothing: only a process can be stopped or killed."""
        return True

    def interrupt_task(self, begun_ns: int) -> bool:
        return self._interpreter.interrupt(begun_ns)

    def join(self, timeout: float | None = None) -> bool:
        return self._interpreter.join(timeout)

    def reopen(self) -> None:
        """Do nothing: no descriptor belongs to it."""

    def release(self) -> None:
        """Do nothing: an interpreter leaves nothing open."""
