"""The functions of tasks on their way to nodes: each is encoded once for each call, and sent to each node once."""

from __future__ import annotations

import itertools
from collections import OrderedDict

from pool_party.wire import distant

TYPE_CHECKING = False
if TYPE_CHECKING:
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
    """The functions that were used last. Not thread-safe: only the dispatcher uses it."""

    def __init__(self, receivers: distant.Machines) -> None:
        self._receivers = receivers
        self._numbers = itertools.count(1)
        self._kept: OrderedDict[int, Function] = OrderedDict()

    def encode(self, function: Any, call: int) -> tuple[Function, Function | None]:
        """Return a function for the tasks of a call, and one that nodes may forget, if any.

        What a function refers to may change from one call to the next, so each call encodes it once more. It keeps its
        number if that makes no difference. Raises: whatever pickling raises.
        """
        kept = self._kept.get(id(function))
        if kept is not None and kept.call == call:
            return kept, None
        encoded = distant.encode_whole(function, self._receivers)
        if kept is not None and kept.encoded == encoded:
            kept.call = call
            self._kept.move_to_end(id(function))
            return kept, None
        made = self._kept[id(function)] = Function(next(self._numbers), function, call, encoded)
        if kept is None and len(self._kept) > KEPT_MAX:
            _, kept = self._kept.popitem(last=False)
        return made, kept
