"""Context variables of the caller in tasks: `context=True` in threads, and `propagate=` in every kind.

A carrier wraps the function of a call when it is submitted. The wrapper holds the caller's values of that moment, and
each call of the function has them in a context of its own, so that tasks change nothing for each other.
"""

import copyreg
import functools
import sys
from collections.abc import Callable, Iterable
from contextvars import Context, ContextVar, copy_context
from importlib import import_module
from typing import Any, NamedTuple, Self

type Carrier = Callable[[Callable[..., Any]], Callable[..., Any]]


class InCopy(functools.partial[Any]):
    """A function that runs in a copy of the context in which this object was made."""

    context: Context

    def __new__(cls, function: Callable[..., Any]) -> Self:
        self = super().__new__(cls, function)
        self.context = copy_context()
        return self

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.context.copy().run(super().__call__, *args, **kwargs)


# ---- chosen variables ----


class _Place(NamedTuple):
    """Where a context variable is found, in every worker as well. default: its default value, or nothing."""

    module: str
    name: str
    default: tuple[Any, ...] = ()

    def find(self) -> "ContextVar[Any] | None":
        """Return the variable, or None if something else or nothing is there."""
        found: Any = import_module(self.module)
        for part in self.name.split("."):
            found = getattr(found, part, None)
        return found if isinstance(found, ContextVar) else None


class WithVariables(functools.partial[Any]):
    """A function that runs with these values of context variables, besides those that its worker's context has."""

    values: tuple[tuple[_Place, Any], ...]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return copy_context().run(self._run, args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for place, value in self.values:
            _variable_at(*place).set(value)
        return super().__call__(*args, **kwargs)


class Propagation:
    """A carrier of chosen variables. One that has no value in the caller's context has none in the task either."""

    def __init__(self, variables: "Iterable[ContextVar[Any] | str]") -> None:
        """Raises: TypeError for what is no variable and no name of one, ValueError for one that no module has."""
        if isinstance(variables, str | ContextVar):
            raise TypeError(f"propagate must be a list of context variables or names, such as [{variables!r}]")
        self.places = tuple(_place_of(variable) for variable in variables)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function with the values of the calling thread's context."""
        context, carried = copy_context(), WithVariables(function)
        variables = ((place, place.find()) for place in self.places)
        carried.values = tuple((place, context[found]) for place, found in variables if found and found in context)
        return carried


def _place_of(variable: "ContextVar[Any] | str") -> _Place:
    if isinstance(variable, str):
        module, colon, name = variable.partition(":")
        if not colon:
            raise ValueError(f"propagate: name a context variable as 'module:name', not {variable!r}")
        place = _Place(module, name)
    elif isinstance(variable, ContextVar):
        place = _search(variable)
    else:
        raise TypeError(f"propagate must contain context variables or names of them, not {variable!r}")
    found = place.find()
    if found is None:
        raise ValueError(f"propagate: there is no context variable {place.name!r} in the module {place.module!r}")
    return _known.setdefault(found, place._replace(default=_default_of(found)))


def _search(variable: "ContextVar[Any]") -> _Place:
    """Find the module that has a variable as a global."""
    for module, contents in list(sys.modules.items()):
        for name, value in list(getattr(contents, "__dict__", {}).items()):
            if value is variable and module != "__mp_main__":
                return _Place(module, name)
    raise ValueError(f"propagate: {variable!r} is not a global of a module, by which workers could find it")


def _default_of(variable: "ContextVar[Any]") -> tuple[Any, ...]:
    try:
        return (Context().run(variable.get),)
    except LookupError:
        return ()


# ---- the variables of __main__, in workers that have not imported the program's file ----

_known: "dict[ContextVar[Any], _Place]" = {}  # variables that pools propagate
_made: "dict[tuple[str, str], ContextVar[Any]]" = {}  # those that were made here, because `__main__` lacks them


def _variable_at(module: str, name: str, default: tuple[Any, ...]) -> "ContextVar[Any]":
    """Return this interpreter's variable of that place. Make it if this `__main__` lacks it.

    Functions of `__main__` that read such a global get the same object with their definition, by `_reduce`.
    """
    found = _Place(module, name).find()
    if found is not None:
        return found
    if module != "__main__":
        raise LookupError(f"propagate: there is no context variable {name!r} in the worker's module {module!r}")
    options = {"default": default[0]} if default else {}
    return _made.setdefault((module, name), ContextVar(name, **options))


def _reduce(variable: "ContextVar[Any]") -> tuple[Any, ...]:
    place = _known.get(variable)
    if place is None:
        raise TypeError(f"cannot pickle {type(variable).__name__!r} object: name it in propagate= of the pool")
    return _variable_at, tuple(place)


def check_context(context: object, kind: str) -> None:
    """Raise TypeError unless the option `context` of a call is a bool, and ValueError if it is True for other kinds."""
    if not isinstance(context, bool):
        raise TypeError(f"context must be True, False or None, not {context!r}")
    if context and kind != "thread":
        raise ValueError(f"context=True is for kind='thread', not {kind!r}: name the variables in propagate=")


def choose_carrier(kind: str, context: Any, propagate: "Iterable[ContextVar[Any] | str]") -> Carrier | None:
    """Return the carrier for the options of a pool, or None if its tasks run in their worker's own context.

    By default, threads do what `threading.Thread` does in this interpreter: it inherits the context on free-threaded
    builds of CPython 3.14 and later, or with `-X thread_inherit_context=1`.
    """
    if context is True:  # otherwise it may be the context that starts processes
        check_context(context, kind)
    carrier = Propagation(propagate)
    if kind == "thread":
        inherits = bool(getattr(sys.flags, "thread_inherit_context", False))
        if context is True or (inherits and context is not False):
            return InCopy
    if not carrier.places:
        return None
    if kind != "thread":
        copyreg.pickle(ContextVar, _reduce)
    return carrier
