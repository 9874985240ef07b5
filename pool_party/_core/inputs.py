"""Which inputs are taken as they are when a call is made. All others are read while tasks run.

Reading a list, a range or an array costs next to nothing and runs no code of the user's. A data set, a file that is
mapped into memory, or a sequence of a class of the user's may take long to read and may be larger than memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pool_party._core.results import Call

AHEAD_PER_WORKER = 64  # tasks for each worker that are read before they are done; guess: far more than latency needs
AHEAD_BYTES = 16 << 20  # bytes of arguments that are read before, if these tasks would have more; guess
RANGE_MAX = 1 << 17  # items of the longest range of which a list is made: it has 5 MB, and is read in 0.8 of the time

_COPIED = frozenset(
    (
        *(list, tuple, dict, set, frozenset, str, bytes, bytearray),
        *(type({}.keys()), type({}.values()), type({}.items())),
    )
)


def take(iterable: Iterable[Any]) -> Any:
    """Return the items of an input that is in memory, or None if they are to be read while tasks run.

    They are a list, or a sequence whose slices run no code of the user's: a range or an array. What is returned is not
    changed by changes of the input, except by those of the rows of an array and of other objects in it.
    """
    kind = type(iterable)
    if kind in _COPIED:
        return list(iterable)
    if isinstance(iterable, range):
        return iterable if iterable[RANGE_MAX:] else list(iterable)
    if kind.__name__ == "deque" and kind.__module__ == "collections":
        return list(iterable)
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind is getattr(numpy, "ndarray", None):
        return _take_array(iterable)
    return None


def _take_array(array: Any) -> Any:
    """Return an array whose items make no objects before they are needed. None: it lies in a file, or has no items."""
    owner = array
    while isinstance(owner, type(array)):
        owner = owner.base
    if array.ndim == 0 or type(owner).__module__ == "mmap":
        return None
    return array.copy() if array.ndim == 1 else array


def length_of(iterable: Iterable[Any]) -> int | None:
    """Return the length of an iterable, or None if it has none. That of a tqdm, for example, depends on its own."""
    try:
        return len(iterable)  # type: ignore[arg-type]
    except TypeError:
        return None


def limit_reading(call: Call, payload: Any) -> None:
    """Limit how far ahead of its tasks' outcomes a call's input is read, given the encoded arguments of the last task.

    A worker finds one task that waits whenever it needs one.
    """
    n_bytes = _size_of(payload)
    is_large = n_bytes > call.large_bytes
    call.ahead = max(call.engine.n_workers + 1, AHEAD_BYTES // n_bytes) if is_large else call.small_ahead


def _size_of(payload: Any) -> int:
    if isinstance(payload, bytes):
        return len(payload)
    rest, leaves = payload
    return len(rest) + sum(map(_size_of_leaf, leaves))


def _size_of_leaf(leaf: Any) -> int:
    try:
        return memoryview(leaf).nbytes
    except (TypeError, BufferError):
        return 8 * len(leaf)  # a list of numbers; a str may need less
