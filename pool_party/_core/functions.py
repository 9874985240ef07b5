"""Functions on their way to workers: published once, by name or pickled, and fetched by each worker once.

A function that its module has under its name, or that lives in `__main__`, keeps its place in shared memory for later
calls; any other (a closure, a bound method) may change between two calls and travels with each.
"""

import sys
import types
from collections import OrderedDict
from typing import Any

from pool_party import _native

MAX_KEPT = 128  # functions that keep their place; guess: more than programs use at a time


class Published:
    """A function in shared memory. `n_users` belongs to the scheduler's lock."""

    __slots__ = ("block", "function", "guard", "keep", "n_users", "ref")

    def __init__(self, ref: Any, block: int, keep: bool) -> None:
        self.ref = ref
        self.block = block
        self.keep = keep
        self.guard: tuple[Any, ...] = ()
        self.n_users = 0
        self.function: Any = None


def _is_global(function: Any) -> bool:
    """Whether its module has it under its name."""
    if not isinstance(function, types.FunctionType | types.BuiltinFunctionType | type):
        return False
    found: Any = sys.modules.get(function.__module__ or "")
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _guard(function: Any) -> tuple[Any, ...]:
    """What must be unchanged for a function of `__main__` to be the same: its code, defaults, the globals it names."""
    if function.__module__ != "__main__" or not isinstance(function, types.FunctionType):
        return ()
    main = function.__globals__
    names = [name for name in function.__code__.co_names if name in main]
    return function.__code__, function.__defaults__, function.__kwdefaults__, names, [main[name] for name in names]


def _is_unchanged(function: Any, guard: tuple[Any, ...]) -> bool:
    if not guard:
        return True
    code, defaults, keywords, names, values = guard
    main = function.__globals__
    return (
        function.__code__ is code
        and function.__defaults__ is defaults
        and function.__kwdefaults__ is keywords
        and all(main.get(name) is value for name, value in zip(names, values, strict=True))
    )


class Functions:
    """The functions that a channel has published. Not thread-safe: the scheduler's feeding lock guards it."""

    def __init__(self, channel: _native.Channel) -> None:
        self._channel = channel
        self._kept: OrderedDict[int, Published] = OrderedDict()

    def find(self, function: Any) -> Published | None:
        """The function if it keeps a place."""
        found = self._kept.get(id(function))
        if found is not None and not _is_unchanged(function, found.guard):
            del self._kept[id(function)]
            found.keep = False
            self.close_if_unused(found)
            return None
        return found

    def is_keepable(self, function: Any) -> bool:
        """Whether a later call may use what this one publishes."""
        return _is_global(function)

    def open(self, function: Any) -> Published | None:
        """Publishes a function; None if there is no room now. Raises what pickling raises."""
        found = self.find(function)
        if found is not None:
            return found
        keep = self.is_keepable(function)
        if keep and function.__module__ != "__main__":
            ref = self._channel.publish(self._channel.encode((function.__module__, function.__qualname__)))
        else:
            ref = self._channel.publish(self._channel.encode(function))
        if ref is None:
            return None
        published = Published(ref, ref[3], keep)
        if published.keep:
            published.guard = _guard(function)
            published.function = function  # so that its id stays its own
            self._kept[id(function)] = published
            self._shrink()
        return published

    def _shrink(self) -> None:
        while len(self._kept) > MAX_KEPT:
            _, oldest = self._kept.popitem(last=False)
            oldest.keep = False
            self.close_if_unused(oldest)

    def close_if_unused(self, published: Published) -> None:
        """Frees the place of a function that nobody keeps or uses."""
        if not published.keep and published.n_users == 0 and published.block >= 0:
            self._channel.retract(published.block)
            published.block = -1
