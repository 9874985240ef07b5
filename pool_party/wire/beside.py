"""Buffers in shared memory that travel beside a pickle, as views or by name."""

import _pickle

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


def collector(shared: "list[Any]") -> "Callable[[Any], bool]":
    """Return a buffer callback that collects buffers in shared memory and leaves all others in the pickle."""

    def collect(buffer: "Any") -> bool:
        is_shared = _native.is_shared(buffer)
        if is_shared:
            shared.append(buffer.raw())
        return not is_shared

    return collect


def names_of(buffers: "Iterable[Any]") -> "list[bytes]":
    """Return names by which other processes can open the buffers while any process retains them."""
    return [_native.name_shared(buffer) for buffer in buffers]


def load(pickle: bytes, parts: "Iterable[Any]") -> "Any":
    """Unpickle a value with its buffers or their names. Unpickling also calls this function."""
    return _pickle.loads(
        pickle, buffers=[_native.open_shared(part) if isinstance(part, bytes) else part for part in parts]
    )
