"""Workers that are interpreters with their own GIL, each in a thread that the native module starts."""

from __future__ import annotations

import functools
import marshal
import os
import sys
from _frozen_importlib_external import SourceFileLoader

from pool_party import _native
from pool_party.wire import codec
from pool_party.workers.base import Setup
from pool_party.workers.interp.starting import note_end, start, watch_forks
from pool_party.workers.interp.steps import steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

_LOADED = (
    "pool_party",
    "pool_party.workers",
    "pool_party.workers.loop",
    "pool_party.workers.interp",
    "pool_party.workers.interp.known",
    "pool_party.workers.interp.process_state",
    "pool_party.workers.interp.extensions",
)


def _code_of(name: str) -> tuple[str, CodeType]:
    """Return a module's file and code. Raises: ImportError if the module was not imported from a source file."""
    module = __import__(name, fromlist=["__name__"])
    loader: Any = module.__spec__ and module.__spec__.loader
    is_source = type(loader) is SourceFileLoader and loader.path == module.__file__
    if not is_source or (code := loader.get_code(name)) is None:
        raise ImportError(f"{name} was not loaded from a source file")
    return loader.path, code


@functools.cache
def _boot() -> tuple[CodeType, tuple[tuple[str, str | None, bytes | None], ...]] | None:
    """Return the code of `boot` and of the modules that it loads.

    None if workers must find our modules themselves.
    """
    try:
        package, *modules = [(name, file, marshal.dumps(code)) for name in _LOADED for file, code in [_code_of(name)]]
        _, boot = _code_of("pool_party.workers.interp.boot")
    except ImportError:
        return None
    return boot, (package, (_native.__name__, _native.__file__, None), *modules)


def _key(setup: Setup, n: int) -> bytes | None:
    """Return what an interpreter gets when it is new and is not changed afterwards. None: it is not kept.

    Threads of libraries keep the CPUs of the worker that made them. Steps might have to be undone. A worker with a
    limited number of tasks is to have a new interpreter.
    """
    if not setup.reuse or setup.max_tasks or steps():
        return None
    return repr((*_packages(setup), _cpus(setup, n))).encode()


def _packages(setup: Setup) -> tuple[tuple[str, ...], bool]:
    return setup.extensions, setup.plan is not None and setup.plan.has_own_blas


def _cpus(setup: Setup, n: int) -> tuple[int, ...]:
    return setup.plan.mask(n) if setup.plan is not None else ()


def _config(setup: Setup, n: int, name: str, is_kept: bool, is_new: bool) -> bytes:
    """Return the interpreter's configuration. is_kept: for its next worker. is_new: it has had no worker yet.

    It is marshalled, since imports do not work there before sys.path is set.
    """
    main = sys.modules["__main__"]
    names = {name: getattr(main, name, None) for name in ("__package__", "__file__")}
    main_names = {name: value for name, value in names.items() if isinstance(value, str)}

    def encode(value: object) -> Any:
        return codec.with_names(codec.encode(value, setup.receivers, is_local=True))

    initializer = None if setup.initializer is None else encode((setup.initializer, setup.initargs))
    first = encode(found) if (found := steps()) else None
    path = [str(entry) for entry in sys.path]
    relay = setup.relay_terms(n)
    config = (
        *(list(sys.argv), main_names, _cpus(setup, n), _packages(setup), first),
        *(initializer, setup.max_tasks, setup.preload, name, relay, is_kept),
    )
    return marshal.dumps((path, _boot() if is_new else None, config))


class InterpreterWorker:
    """A worker that is an interpreter with its own GIL."""

    exitcode = None
    sentinel = None

    def __init__(self, channel: _native.Channel, n: int, setup: Setup) -> None:
        self.n = n
        self.was_ready = False
        self.name = f"InterpreterPoolWorker-{n + 1}"
        self.pid = os.getpid()
        self._setup = setup
        begun = setup.begun or {}
        self._key = _key(setup, n)
        watch_forks()
        self._interpreter = begun.pop(n) if n in begun else start(channel, n, self._key)

    def start(self) -> None:
        try:
            is_kept, is_new = self._key is not None, not self._interpreter.was_kept
            config = _config(self._setup, self.n, self.name, is_kept, is_new)
            initializes = self._setup.initializer is not None or bool(self._setup.preload)
            self._interpreter.run(config, initializes, self._key)
        except BaseException:
            self._interpreter.dismiss()
            raise

    @property
    def error(self) -> str:
        """Why the worker ended, if that was its own fault."""
        return self._interpreter.error

    def enrol(self) -> None:
        """Do nothing: an interpreter's end is reported by the channel."""

    def is_alive(self) -> bool:
        return not self._interpreter.join(0)

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

    def release(self) -> None:
        """Do nothing: an interpreter leaves nothing open."""
