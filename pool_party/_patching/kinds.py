"""Which kind of workers `kind="auto"` chooses in the place of processes."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any

from pool_party._ground.choices import Kind
from pool_party._patching.subclasses import names_in
from pool_party._workers.interp.extensions import IS_SUPPORTED
from pool_party._workers.interp.known import PACKAGES
from pool_party._workers.interp.starting import is_traced

# Modules whose functions act on the whole process, or that CPython does not load in interpreters.
_OF_PROCESS = frozenset(
    ("ctypes", "cffi", "curses", "faulthandler", "fcntl", "readline", "resource", "signal", "tkinter")
)
# Functions that tell or change what a process has for itself, and objects that processes share by inheritance.
_NAMES_OF_PROCESS = frozenset(
    (
        *("_exit", "abort", "chdir", "fchdir", "fork", "forkpty", "getpid", "kill", "killpg", "nice", "umask"),
        *("putenv", "environ", "sched_setaffinity", "setrlimit", "setuid", "current_process", "parent_process"),
        *("Process", "Manager", "Lock", "RLock", "Semaphore", "Condition", "Event", "Barrier", "Queue", "SimpleQueue"),
        *("JoinableQueue", "Value", "Array", "RawValue", "RawArray", "Pipe", "SharedMemory"),
    )
)
_REFUSING = frozenset(("_curses", "_curses_panel", "_tkinter", "_tracemalloc", "faulthandler", "readline"))


def choose(context: Any, *others: object) -> Kind:
    """Return "interp" if the program runs there as in processes as far as can be told, otherwise "process".

    others: arguments of the pool which speak for processes unless they are None.
    """
    if not IS_SUPPORTED or is_traced() or any(other is not None for other in others) or _forks(context):
        return "process"
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    if not all(map(_loads, modules)) or any(map(_needs_process, filter(_is_of_program, modules))):
        return "process"
    return "interp"


def _forks(context: Any) -> bool:
    """Whether workers would be forked, so that tasks may rely on the state of this process."""
    from multiprocessing import get_start_method

    method = get_start_method(allow_none=True) if context is None else context.get_start_method(allow_none=True)
    return bool(method == "fork")


def _loads(module: ModuleType) -> bool:
    """Whether interpreters load a module. It is true of extension modules only if the tests have shown it."""
    loader = getattr(module, "__loader__", None)
    name, _, inner = module.__name__.partition(".")
    if not isinstance(loader, ExtensionFileLoader) or name == "pool_party":
        return name not in PACKAGES or bool(inner) or _is_as_tested(name, module)
    return name in PACKAGES or (name in sys.stdlib_module_names and name not in _REFUSING)


def _is_as_tested(name: str, package: ModuleType) -> bool:
    """Whether a package has the tested version, and is no editable install, which has an importer of its own."""
    return getattr(package, "__version__", None) == PACKAGES[name] and type(package.__loader__) is SourceFileLoader


def _is_of_program(module: ModuleType) -> bool:
    """Whether a module is neither of the standard library nor installed."""
    if module.__name__ == "__main__":
        return True
    path = getattr(module, "__file__", None)
    is_ours = module.__name__.partition(".")[0] == "pool_party"
    return isinstance(path, str) and not path.startswith(_INSTALLED) and not is_ours


_INSTALLED = tuple(
    os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def _needs_process(module: ModuleType) -> bool:
    """Whether a module of the program uses what a process has for itself."""
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] in _OF_PROCESS:
            return True
        if any(_is_shared(base.__module__) for base in type(value).__mro__):
            return True
    return not _NAMES_OF_PROCESS.isdisjoint(_names_used(module))


def _is_shared(module: str) -> bool:
    """Whether this module's objects belong to processes: locks, queues, shared memory, processes."""
    package = module.partition(".")[0]
    return package == "ctypes" or (
        package == "multiprocessing" and module not in ("multiprocessing.pool", "multiprocessing.context")
    )


def _names_used(module: ModuleType) -> Iterator[str]:
    yield from vars(module)
    for value in list(vars(module).values()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            for inner in list(vars(value).values()):
                yield from names_in(inner)
        elif isinstance(value, FunctionType) and value.__module__ == module.__name__:
            yield from names_in(value)
