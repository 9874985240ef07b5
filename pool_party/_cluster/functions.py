"""The functions of tasks on their way to nodes: each is encoded once for each call, and sent to each node once."""

from __future__ import annotations

from collections import OrderedDict

from pool_party import _native
from pool_party._cluster import distant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

KEPT_MAX = 128  # guess: programs seldom use more at a time


class Function:
    """An encoded function, under the number that nodes know it by."""

    __slots__ = ("call", "encoded", "number", "original")

    def __init__(self, number: int, original: Any, call: int, encoded: bytes) -> None:
        self.number = number
        self.original = original  # kept, so that its id is not used again
        self.call = call  # the last call for which it was encoded
        self.encoded = encoded


class Functions:
    """The functions that were used last. One thread at a time may call `encode`, and any thread `living`.

    numbers: for functions; nodes know nothing else by the same numbers.
    """

    def __init__(self, receivers: distant.Machines, numbers: Iterator[int]) -> None:
        self._receivers = receivers
        self._numbers = numbers
        self._lock = _native.Guard()  # guards changes of the next
        self._kept: OrderedDict[int, Function] = OrderedDict()

    def encode(self, function: Any, call: int) -> Function:
        """Return a function for the tasks of a call.

        What a function refers to may change from one call to the next, so each call encodes it once more. It keeps its
        number if that makes no difference. Raises: whatever pickling raises.
        """
        kept = self._kept.get(id(function))
        if kept is not None and kept.call == call:
            return kept
        encoded = distant.encode_whole(function, self._receivers)
        with self._lock:
            if kept is not None and kept.encoded == encoded:
                kept.call = call
            else:
                kept = self._kept[id(function)] = Function(next(self._numbers), function, call, encoded)
            self._kept.move_to_end(id(function))
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        return kept

    def living(self) -> set[int]:
        """Return the numbers of functions that nodes are to keep."""
        with self._lock:
            return {kept.number for kept in self._kept.values()}
