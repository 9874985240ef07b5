"""Workers that are interpreters with their own GIL, each in a thread that the native module starts."""

import _pickle
import contextlib
import importlib
import marshal
import os
import sys

from pool_party import _native
from pool_party.wire import codec
from pool_party.workers._base import Setup


def _prepare_main_interpreter() -> None:
    """On 3.12, does first in the main interpreter what must not be done first in another.

    Static types, and the keyword parsers of extension modules, keep tuples of the interpreter that uses them first.
    Those are freed when the main interpreter ends, which then dies with "free(): invalid pointer". The list was found
    by importing each module of the standard library in interpreters alone.
    """
    for name in ("_asyncio", "_datetime", "_decimal", "hashlib"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _pickle.loads(_pickle.dumps(b"", 5, buffer_callback=lambda buffer: None), buffers=[])


if sys.version_info < (3, 13):
    _prepare_main_interpreter()


def _config(setup: Setup, n: int) -> bytes:
    """What the interpreter starts with; marshalled, since nothing can be imported there before sys.path is set."""
    main = sys.modules["__main__"]
    names = {name: getattr(main, name, None) for name in ("__package__", "__file__")}
    main_names = {name: value for name, value in names.items() if isinstance(value, str)}
    initializer = None
    if setup.initializer is not None:
        initializer = codec.encode((setup.initializer, setup.initargs))
    path = [str(entry) for entry in sys.path]
    cpus = setup.plan.mask(n) if setup.plan is not None else ()
    packages = (setup.extensions, setup.plan is not None and setup.plan.has_own_blas)
    work = (initializer, setup.max_tasks, setup.preload)
    return marshal.dumps((path, list(sys.argv), main_names, cpus, packages, *work))


class InterpreterWorker:
    """A worker that is an interpreter with its own GIL."""

    exitcode = None
    sentinel = None

    def __init__(self, channel: _native.Channel, n: int, setup: Setup) -> None:
        self.n = n
        self.was_ready = False
        self.name = f"InterpreterPoolWorker-{n + 1}"
        self.pid = os.getpid()
        self._interpreter = channel.start_interpreter(n, _config(setup, n))

    @property
    def error(self) -> str:
        """Why it ended, if that was its own fault."""
        return self._interpreter.error

    def is_alive(self) -> bool:
        return not self._interpreter.join(0)

    def terminate(self) -> None:
        """Raises SystemExit in a task that runs Python code; a task inside a C function ends with that."""
        self._interpreter.interrupt()

    kill = terminate

    def join(self, timeout: float | None = None) -> bool:
        return self._interpreter.join(timeout)
