"""Functions on their way to workers: published once, by name or pickled, and fetched by each worker once.

A function that its module has under its name keeps its place in shared memory for later calls; one of `__main__` for
as long as it travels as the same. Any other (a closure, a bound method) may change between two calls, and travels with
each.
"""

import functools
import gc
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import islice
from typing import Any

from pool_party import _native

_MAX_OBJECTS = 10_000  # guess: a millisecond for each map of a function that holds so much, which is pickled, too
_ATOMS = {int, float, complex, bool, str, bytes, type(None), type}
# What ForkingPickler has reducers for, and may be unpickled any number of times.
_LASTING = {types.MethodType, functools.partial, type(list.append), type(int.__add__)}
MAX_KEPT = 128  # functions that keep their place; guess: more than programs use at a time


class _Kept:
    """A function that keeps its place, and as what it travels."""

    __slots__ = ("function", "pickle", "published")

    def __init__(self, function: Any, payload: Any, published: _native.Published) -> None:
        self.function = function  # keeps its id from being used again
        self.pickle = _pickle_of(payload)
        self.published = published


def is_global(function: Any) -> bool:
    """Whether its module has it under its name."""
    if not isinstance(function, types.FunctionType | types.BuiltinFunctionType | type):
        return False
    found: Any = sys.modules.get(function.__module__ or "")
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def is_for_one(function: Any) -> bool:
    """Whether the pickle of a function is for one receiver, as far as is easily seen.

    That is so where it holds what travels by a registered reducer, such as a connection: a descriptor is sent once. The
    function is looked through level by level, until `_MAX_OBJECTS` have been seen.
    """
    reduction: Any = sys.modules.get("multiprocessing.reduction")
    pickler = getattr(reduction, "ForkingPickler", None)
    return pickler is not None and _holds(function, pickler._extra_reducers.keys() - _LASTING)


def _holds(value: Any, kinds: set[type]) -> bool:
    seen = {id(value): value}  # kept, so that no id is used again
    todo = deque([value])
    while todo:
        value = todo.popleft()
        if type(value) in kinds:
            return True
        for part in islice(_parts(value), _MAX_OBJECTS - len(seen)):
            if type(part) not in _ATOMS and id(part) not in seen:
                seen[id(part)] = part
                todo.append(part)
    return False


def _parts(value: Any) -> Iterable[Any]:
    """What it is made of: without the globals of functions, and without what classes and modules have."""
    if isinstance(value, types.FunctionType):
        return [value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__]
    return [] if isinstance(value, type | types.ModuleType) else gc.get_referents(value)


def _pickle_of(payload: Any) -> Any:
    """A payload without the memory beside it, which the pickle of a name only names."""
    return payload[0] if isinstance(payload, tuple) else payload


class Functions:
    """The functions that a channel has published. Not thread-safe: for the one thread that puts tasks."""

    def __init__(self, channel: _native.Channel) -> None:
        self._channel = channel
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def open(self, function: Any) -> _native.Published | None:
        """The published function; None if there is no room now. Raises what pickling raises."""
        if not is_global(function):
            return self._channel.publish(self._channel.encode(function))
        kept = self._kept.get(id(function))
        is_of_main = function.__module__ in ("__main__", "__mp_main__")
        if kept is not None and not is_of_main:
            return kept.published
        payload = self._channel.encode(function if is_of_main else (function.__module__, function.__qualname__))
        if kept is not None and kept.pickle == _pickle_of(payload):
            return kept.published
        published = self._channel.publish(payload)
        if published is not None:
            self._keep(_Kept(function, payload, published))
        return published

    def _keep(self, kept: _Kept) -> None:
        self._kept[id(kept.function)] = kept
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        """The pool has ended."""
        self._kept.clear()
