"""Buffers in shared memory that travel beside a pickle, as views or by name."""

import _pickle
import sys

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


class Replaced:
    """Stands for a value that is pickled in another way. If plain pickle fails, the value itself is pickled."""

    __slots__ = ("_reduce", "value")

    def __init__(self, value: "Any", reduce: "Callable[[], tuple[Any, ...]]") -> None:
        self.value = value
        self._reduce = reduce

    def __reduce__(self) -> "tuple[Any, ...]":
        return self._reduce()


def for_one() -> "set[type]":
    """Return types that are registered with ForkingPickler and whose pickles only one receiver may load."""
    reduction: Any = sys.modules.get("multiprocessing.reduction")
    pickler = getattr(reduction, "ForkingPickler", None)  # None: nothing can be registered yet
    if pickler is None:
        return set()
    import functools
    import types

    lasting = {types.MethodType, functools.partial, type(list.append), type(int.__add__)}
    return {*pickler._extra_reducers} - lasting


def collector(shared: "list[Any]") -> "Callable[[Any], bool]":
    """Return a buffer callback that collects buffers in shared memory and leaves all others in the pickle."""

    def collect(buffer: "Any") -> bool:
        is_shared = _native.is_shared(buffer)
        if is_shared:
            shared.append(buffer.raw())
        return not is_shared

    return collect


def keep_in_pickle(buffer: object) -> bool:
    """Be a buffer callback that leaves all buffers in the pickle."""
    return True


def names_of(buffers: "Iterable[Any]") -> "list[bytes]":
    """Return names by which other processes can open the buffers while any process retains them."""
    return [_native.name_shared(buffer) for buffer in buffers]


def load(pickle: bytes, parts: "Iterable[Any]") -> "Any":
    """Unpickle a value with its buffers or their names. Unpickling also calls this function."""
    return _pickle.loads(
        pickle, buffers=[_native.open_shared(part) if isinstance(part, bytes) else part for part in parts]
    )
