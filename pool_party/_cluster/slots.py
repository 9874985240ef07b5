"""Slots: the worker slots of a pool whose workers are on other machines. Each has at most one task under way."""

from __future__ import annotations

from pool_party._cluster.parts import Part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pool_party._cluster.distant import Frames
    from pool_party._cluster.functions import Function
    from pool_party._cluster.nodes import Node
    from pool_party._native import Worker


class Limited:
    """A function whose tasks a node ends after some seconds of their running."""

    __slots__ = ("function", "timeout_s")

    def __init__(self, function: Any, timeout_s: float) -> None:
        self.function = function
        self.timeout_s = timeout_s


class Packed:
    """The argument of a task, encoded when the call was made, and its limit of time."""

    __slots__ = ("frames", "timeout_s")

    def __init__(self, frames: Frames, timeout_s: float | None) -> None:
        self.frames = frames
        self.timeout_s = timeout_s


class Task:
    """A task that a slot has taken from the pool, encoded. It keeps that until its outcome has come."""

    __slots__ = ("frames", "function", "mode", "number", "slot", "timeout_s")

    def __init__(
        self, slot: Slot, number: int, function: Function | None, mode: int, timeout_s: float | None, frames: Frames
    ) -> None:
        self.slot = slot
        self.number = number
        self.function = function
        self.mode = mode
        self.timeout_s = timeout_s
        self.frames = frames

    @property
    def parts(self) -> list[Part]:
        """The parts of shared memory in its argument."""
        return [frame for frame in self.frames if isinstance(frame, Part)]

    @property
    def message(self) -> tuple[Any, ...]:
        """The task as `Session` expects it."""
        function = None if self.function is None else self.function.number
        frames = [frame.number if isinstance(frame, Part) else frame for frame in self.frames]
        return self.number, function, self.mode, self.timeout_s, frames


class Slot:
    """A worker slot of the channel. The dispatcher claims its task, and the receiver answers it."""

    __slots__ = ("call", "node", "number", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.number = 0  # of its task, or of its last one
        self.call = 0  # of that task; 0: it has none
        self.node: Node | None = None  # the last one that a task of this slot was sent to

    def node_with(self, number: int) -> Node | None:
        """Return the node that has the slot's task of this number, if one has it."""
        return self.node if self.node is not None and number in self.node.tasks else None
