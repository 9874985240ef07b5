"""Warns of generators of random numbers that several workers get as copies, so that they draw the same numbers."""

from __future__ import annotations

import functools
import os
import sys
import types

from pool_party._wire.namespace import look_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_MAIN = ("__main__", "__mp_main__")
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_MAX_FUNCTIONS = 200  # that are looked at for one; guess: a script has fewer


class Watch:
    """Looks at the functions that a pool sends to more than one worker. It warns once of each generator, by its name.

    method: how processes are started; None for interpreters, and for machines of a cluster. imports_main: processes
    that are spawned, or from a fork server, run the main module.
    """

    def __init__(self, method: str | None, imports_main: bool) -> None:
        self._method = method
        self._imports_main = imports_main
        self._warned: set[str] = set()

    def look(self, function: Any) -> None:
        """Warn of generators that a function has as globals, in its closure, as defaults or as arguments of a partial.

        Functions of its own module that it names are looked at, too.
        """
        if classes := _classes():
            for name, value in self._found(function, classes):
                if name not in self._warned:
                    self._warned.add(name)
                    self._warn(name, value)

    def _warn(self, name: str, value: object) -> None:
        import warnings

        warnings.warn(
            f"the workers of this pool get copies of {name!r}, a {type(value).__name__}, so several of them draw the "
            "same random numbers: make a generator in each task, with a seed that the task gets",
            RuntimeWarning,
            skip_file_prefixes=(_PACKAGE,),
        )

    def _found(self, function: Any, classes: tuple[type, ...]) -> Iterator[tuple[str, object]]:
        todo, seen = [function], {id(function)}
        while todo and len(seen) < _MAX_FUNCTIONS:
            function = todo.pop()
            for name, value in [*_held(function), *self._globals_of(function)]:
                if isinstance(value, classes) and type(value).__name__ != "SystemRandom":  # which has no state
                    yield name, value
                elif isinstance(value, types.FunctionType | functools.partial) and id(value) not in seen:
                    seen.add(id(value))
                    todo.append(value)

    def _globals_of(self, function: Any) -> Iterator[tuple[str, object]]:
        if isinstance(function, types.FunctionType) and self._are_copied(function.__module__):
            for name in look_at(function.__code__)[1] & function.__globals__.keys():
                value = function.__globals__[name]
                if not isinstance(value, types.FunctionType) or value.__module__ in (function.__module__, *_MAIN):
                    yield name, value

    def _are_copied(self, module: str | None) -> bool:
        """Whether workers have copies of a module's globals, rather than make their own by importing it."""
        if self._method == "fork" or (self._method == "forkserver" and self._imports_main):
            return True
        return module in _MAIN and not (self._method == "spawn" and self._imports_main)


def _classes() -> tuple[type, ...]:
    """Return the classes of generators, of modules that are loaded."""
    found = []
    if (numpy := sys.modules.get("numpy.random")) is not None:
        found += [getattr(numpy, name, None) for name in ("Generator", "RandomState")]
    if (random := sys.modules.get("random")) is not None:
        found.append(getattr(random, "Random", None))
    return tuple(cls for cls in found if isinstance(cls, type))


def _held(function: Any) -> Iterator[tuple[str, object]]:
    """Return what a function or a partial holds itself, with names."""
    if isinstance(function, functools.partial):
        yield "an argument of a partial", function.func
        yield from (("an argument of a partial", value) for value in function.args)
        yield from function.keywords.items()
    elif isinstance(function, types.MethodType):
        yield function.__name__, function.__func__
    elif isinstance(function, types.FunctionType):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                yield name, cell.cell_contents
            except ValueError:  # it is empty
                continue
        if defaults := function.__defaults__:
            code = function.__code__
            yield from zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
        yield from (function.__kwdefaults__ or {}).items()
