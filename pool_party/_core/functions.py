"""Functions on their way to workers: each is published once, by name or pickled, and each worker fetches it once.

A function that can be found by its name keeps its place in shared memory for later calls. A function of `__main__`
keeps it while its pickle stays the same. Any other function (a closure, a bound method) may change between two calls,
so it is sent with each.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from itertools import islice

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

_MAX_OBJECTS = 10_000  # guess: looking at so many takes a millisecond, and such a function is slow to pickle anyway
_ATOMS = {int, float, complex, bool, str, bytes, type(None), type}
_Function = types.FunctionType
_ASYNC = 0x80 | 0x200  # flags of the code of coroutine functions and of asynchronous generators, from `inspect`
MAX_KEPT = 128  # published functions that are kept; guess: programs seldom use more at a time


class _Kept:
    """A published function that keeps its place, and the pickle that was sent for it."""

    __slots__ = ("function", "pickle", "published")

    def __init__(self, function: Any, payload: Any, published: _native.Published) -> None:
        self.function = function  # a reference, so that its id is not reused
        self.pickle = _pickle_of(payload)
        self.published = published


def check_runs(function: Any) -> None:
    """Raise TypeError for a coroutine function, or an asynchronous generator: calling it runs nothing."""
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    if type(flags) is int and flags & _ASYNC:
        raise TypeError(
            f"{getattr(function, '__qualname__', function)} is asynchronous, and workers have no event loop: pass a "
            "function that runs one, as `asyncio.run` does"
        )


def check_callable(function: Any) -> None:
    """Raise TypeError unless the function can be called."""
    if not callable(function):
        name = type(function).__name__
        raise TypeError(f"{name!r} object is not callable: the first argument is the function to run")


def check(function: Any) -> None:
    """Raise TypeError unless a worker can run the function."""
    if type(function) is _Function and not function.__code__.co_flags & _ASYNC:
        return  # so for most calls, each of which pays for this check
    check_callable(function)
    check_runs(function)


def is_global(function: Any) -> bool:
    """Whether a function can be found in its module by its name."""
    if not isinstance(function, types.FunctionType | types.BuiltinFunctionType | type):
        return False
    found: Any = sys.modules.get(function.__module__ or "")
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _is_of_main(function: Any) -> bool:
    return function.__module__ in ("__main__", "__mp_main__")


def is_for_one(function: Any) -> bool:
    """Whether the pickle of a function can be loaded by one receiver only, as far as a quick check shows.

    This is so if the function holds an object with a registered reducer, such as a connection: a descriptor is sent
    once. The search goes level by level, through at most `_MAX_OBJECTS` objects.
    """
    from pool_party._wire.beside import for_one

    kinds = for_one()
    return bool(kinds) and _holds(function, kinds)


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
    """Return the objects that a value refers to, except the globals of functions and what classes and modules hold."""
    if isinstance(value, types.FunctionType):
        return [value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__]
    return [] if isinstance(value, type | types.ModuleType) else gc.get_referents(value)


def _pickle_of(payload: Any) -> Any:
    """Return a payload without its shared memory, to which the pickle of a name only refers."""
    return payload[0] if isinstance(payload, tuple) else payload


class Functions:
    """The functions that a channel has published. Not thread-safe: only the thread that puts tasks uses it.

    look: is shown each function that is published or pickled; None: nobody is.
    """

    def __init__(self, channel: _native.Channel, look: Callable[[Any], object] | None = None) -> None:
        self._channel = channel
        self._look = look
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def open(self, function: Any, may_pickle: bool = True) -> _native.Published | Literal[False] | None:
        """Return the published function. None: there is no room now. False: it must be pickled, and must not be.

        Raises: whatever pickling raises.
        """
        is_lasting = is_global(function)
        kept = self._kept.get(id(function)) if is_lasting else None
        if kept is not None and not _is_of_main(function):
            return kept.published
        if not may_pickle:
            return False
        if kept is None and self._look is not None:
            self._look(function)
        if not is_lasting:
            return self._channel.publish(self._channel.encode(function))
        payload = self._channel.encode(
            function if _is_of_main(function) else (function.__module__, function.__qualname__)
        )
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
        """Forget all functions, after the end of the pool."""
        self._kept.clear()
