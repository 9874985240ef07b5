"""Imports modules when a worker starts, before its initializer and its first task.

All workers of a pool do this at the same time, and only their tasks wait for it. Interpreters and processes each import
for themselves. Threads share the modules of this process, so the first one imports and the others wait for it.
"""

import sys

ATTEMPTS = 10  # after a failure one of the waiting threads imports anew; a module may also remove itself
PREFIX = "preload: the module"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from pool_party import _native


def choose(names: "Iterable[str]") -> "tuple[str, ...]":
    """Return the modules for the option `preload`, each once.

    Raises: TypeError, ValueError for a value that is not the full name of a module.
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
    """Import a module.

    It raises what the module raises, even if another thread imports the module at the same time and fails.

    CPython returns the module to a thread that waited for such an import, although it is no longer in `sys.modules`.
    """
    for _ in range(ATTEMPTS):
        __import__(name)
        if name in sys.modules:
            return


def load(names: "Iterable[str]", worker: "_native.Worker") -> None:
    """Import the modules, unless the pool ends meanwhile.

    Raises: ImportError that names the one that failed, and why.
    """
    for name in names:
        if worker.must_stop:
            return
        try:
            _import(name)
        except BaseException as error:  # a module may raise anything, SystemExit as well
            # Replaces the module's exception, whose class the parent may not know.
            text = f"{PREFIX} {name!r} could not be imported: {type(error).__name__}: {error}"
            before = error.__cause__ if error.__suppress_context__ else error.__context__
            raise ImportError(text, name=name).with_traceback(error.__traceback__) from before


def describe_cause(cause: BaseException) -> str:
    """Return why no worker can be made, in words. The text of an error from `load` needs no addition."""
    return str(cause) if isinstance(cause, ImportError) and str(cause).startswith(PREFIX) else repr(cause)
