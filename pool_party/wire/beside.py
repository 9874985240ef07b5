"""What travels beside a pickle: buffers in shared memory, themselves or their names."""

import _pickle

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


def collector(shared: "list[Any]") -> "Callable[[Any], bool]":
    """A buffer callback of pickle's that takes the buffers in shared memory and leaves the others to the pickle."""

    def collect(buffer: "Any") -> bool:
        is_shared = _native.is_shared(buffer)
        if is_shared:
            shared.append(buffer.raw())
        return not is_shared

    return collect


def names_of(buffers: "Iterable[Any]") -> "list[bytes]":
    """What other processes find the buffers by, for as long as somebody has them."""
    return [_native.name_shared(buffer) for buffer in buffers]


def load(pickle: bytes, parts: "Iterable[Any]") -> "Any":
    """The value of a pickle and its buffers or their names. Also called by unpickling."""
    return _pickle.loads(
        pickle, buffers=[_native.open_shared(part) if isinstance(part, bytes) else part for part in parts]
    )
