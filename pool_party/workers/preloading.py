"""Modules that a worker imports as it starts, before its initializer and its first task.

All workers of a pool do that at the same time, and nobody waits for them but their tasks. Interpreters and processes
import for themselves; threads share the modules of this process, so there the first imports and the others wait for it.
"""

import sys

ATTEMPTS = 10  # each time one of the threads that wait becomes the one that imports; a module may also remove itself
PREFIX = "preload: the module"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from pool_party import _native


def choose(names: "Iterable[str]") -> "tuple[str, ...]":
    """The modules for the option `preload`, each once.

    Raises: TypeError, ValueError for what is not the full name of a module.
    """
    if isinstance(names, str):
        raise TypeError(f"preload must be names of modules, such as [{names!r}], not a str")
    try:
        chosen = tuple(dict.fromkeys(names))
    except TypeError:
        raise TypeError(f"preload must be names of modules, not {names!r}") from None
    for name in chosen:
        if not isinstance(name, str):
            raise TypeError(f"preload must be names of modules, not {name!r}")
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"preload must be full names of modules, such as 'numpy.linalg', not {name!r}")
    return chosen


def _import(name: str) -> None:
    """Raises what the module raises, also where another thread imports it at the same time and fails.

    CPython gives a thread that waited for such an import the module, though it is in `sys.modules` no longer.
    """
    for _ in range(ATTEMPTS):
        __import__(name)
        if name in sys.modules:
            return


def load(names: "Iterable[str]", worker: "_native.Worker") -> None:
    """Imports the modules, unless the pool ends meanwhile. Raises: ImportError that says which one failed, and how."""
    for name in names:
        if worker.must_stop:
            return
        try:
            _import(name)
        except BaseException as error:  # a module may raise anything, SystemExit as well
            # Stands in for what the module raised, whose class may be unknown to the parent, instead of adding to it.
            text = f"{PREFIX} {name!r} could not be imported: {type(error).__name__}: {error}"
            before = error.__cause__ if error.__suppress_context__ else error.__context__
            raise ImportError(text, name=name).with_traceback(error.__traceback__) from before


def describe_cause(cause: BaseException) -> str:
    """Why no worker can be made, in words; what `load` raises says all by itself."""
    return str(cause) if isinstance(cause, ImportError) and str(cause).startswith(PREFIX) else repr(cause)
