"""Parts of shared memory on their way to nodes: each is sent to each node once, which keeps it for its workers.

The program may write to shared memory. So each call looks at what it sends, unless nobody can write to it: a part that
was changed gets another number, which nodes do not have yet.
"""

from __future__ import annotations

import hashlib
import weakref
from collections import OrderedDict
from pickle import PickleBuffer

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

KEPT_MAX = 128  # parts that nodes keep, since each needs a descriptor there; guess


class Part:
    """A part as it was for some call, under the number that nodes know it by."""

    __slots__ = ("__weakref__", "content", "number")

    def __init__(self, number: int, content: Any) -> None:
        self.number = number
        self.content = content  # a buffer that does not change


class _Entry:
    __slots__ = ("call", "mark", "number", "part")

    def __init__(self) -> None:
        self.number = 0
        self.mark: bytes | None = None  # what the content is told by; None: there was none yet
        self.call = 0  # the last call for which it was looked at
        self.part: Any = None  # a weak reference: nodes keep it, and tasks on their way there


class Parts:
    """The parts that were used last. It keeps no memory alive. Any thread may call the methods.

    numbers: for parts; nodes know nothing else by the same numbers.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._lock = _native.Guard()
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()  # by name

    def part_of(self, view: memoryview, call: int | None) -> Part:
        """Return a part for the tasks of a call. None: it has one task, so that the part must be looked at.

        Raises: MemoryError.
        """
        name = _native.name_shared(view)
        with self._lock:
            entry = self._entries.setdefault(name, _Entry())
            self._entries.move_to_end(name)
            part = entry.part and entry.part()
            memory = _native.open_shared(name)  # read-only only if nobody can write to it
            if part is not None and (memory.readonly or (call is not None and entry.call == call)):
                kept: Part = part
                return kept
            content = memory if memory.readonly else bytes(memory)
            mark = b"" if memory.readonly else hashlib.sha1(content, usedforsecurity=False).digest()
            if entry.mark != mark:
                entry.number, entry.mark = next(self._numbers), mark
            entry.call = call or 0
            made = Part(entry.number, PickleBuffer(content))
            entry.part = weakref.ref(made)
            return made

    def living(self) -> set[int]:
        """Return the numbers of parts that nodes are to keep: of those used last, if the program has the memory."""
        with self._lock:
            n_more = len(self._entries) - KEPT_MAX
            for name, entry in list(self._entries.items()):
                is_on_its_way = entry.part is not None and entry.part() is not None
                if not is_on_its_way and (n_more > 0 or not _native.has_shared(name)):
                    del self._entries[name]
                    n_more -= 1
            return {entry.number for entry in self._entries.values()}

    def __bool__(self) -> bool:
        return bool(self._entries)
