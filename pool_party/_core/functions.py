"""Functions on their way to workers: published once, by name or pickled, and fetched by each worker once.

A function that its module has under its name keeps its place in shared memory for later calls; any other (a closure, a
bound method) may change between two calls and travels with each. One of `__main__` keeps its place while it is made of
the same: its code, its defaults, and the globals that it names.
"""

import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from pool_party import _native

MAX_KEPT = 128  # functions that keep their place; guess: more than programs use at a time
LARGE_BYTES = 1 << 16  # values from here on are not kept alive to be compared; guess: scripts' constants are smaller

_MISSING = object()
_PLAIN = (int, float, complex, bool, str, bytes, type(None), type(...))


class _Kept:
    """A function that keeps its place. `is_same` says whether it still is what was published."""

    __slots__ = ("function", "is_same", "published")

    def __init__(self, function: Any, published: _native.Published, is_same: Callable[[], bool]) -> None:
        self.function = function  # keeps its id from being used again
        self.published = published
        self.is_same = is_same


def is_global(function: Any) -> bool:
    """Whether its module has it under its name."""
    if not isinstance(function, types.FunctionType | types.BuiltinFunctionType | type):
        return False
    found: Any = sys.modules.get(function.__module__ or "")
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _reference(value: Any) -> Callable[[], Any] | None:
    """A function that returns the value while it exists, and does not keep it alive; None if nothing can do that.

    Small constants are kept alive: they take little memory.
    """
    if type(value) in _PLAIN and sys.getsizeof(value) < LARGE_BYTES:
        return lambda: value
    try:
        return weakref.ref(value)
    except TypeError:
        return None


def _watch_main(function: Any) -> Callable[[], bool] | None:
    """A function that says whether a function of `__main__` is still what it is now; None if nothing can say that."""
    if not isinstance(function, types.FunctionType):
        return lambda: True
    code, defaults, keywords = function.__code__, function.__defaults__, function.__kwdefaults__
    main = function.__globals__
    values = {name: _reference(main[name]) for name in code.co_names if name in main}
    if None in values.values():
        return None

    def is_same() -> bool:
        return (
            function.__code__ is code
            and function.__defaults__ is defaults
            and function.__kwdefaults__ is keywords
            and all(value is not None and main.get(name, _MISSING) is value() for name, value in values.items())
        )

    return is_same


class Functions:
    """The functions that a channel has published. Not thread-safe: for the one thread that puts tasks."""

    def __init__(self, channel: _native.Channel) -> None:
        self._channel = channel
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def open(self, function: Any) -> _native.Published | None:
        """The published function; None if there is no room now. Raises what pickling raises."""
        kept = self._kept.get(id(function))
        if kept is not None:
            if kept.is_same():
                return kept.published
            del self._kept[id(function)]
        if not is_global(function):
            return self._channel.publish(self._channel.encode(function))
        if function.__module__ == "__main__":
            return self._keep(function, function, _watch_main(function))
        return self._keep(function, (function.__module__, function.__qualname__), lambda: True)

    def _keep(self, function: Any, value: Any, is_same: Callable[[], bool] | None) -> _native.Published | None:
        published = self._channel.publish(self._channel.encode(value))
        if published is not None and is_same is not None:
            self._kept[id(function)] = _Kept(function, published, is_same)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return published

    def clear(self) -> None:
        """The pool has ended."""
        self._kept.clear()
