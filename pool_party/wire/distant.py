"""Values on their way to another machine and back: a pickle, and its large buffers beside it.

Nothing in them refers to memory, descriptors or definitions of this machine. A pickle that names something of
`__main__` therefore contains what the receiver needs of it, and shared memory travels as a copy.
"""

from __future__ import annotations

import _pickle

from pool_party.wire import codec
from pool_party.wire.definitions import Receivers, replying

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    # The pickle, and its buffers: of type PickleBuffer where the value was encoded, later anything with a buffer.
    type Frames = list[Any]

BESIDE_MIN = 1 << 14  # bytes; smaller buffers are copied into the pickle, which costs less than a frame each; guess


class Machines(Receivers):
    """The workers of a pool on other machines. They begin with nothing of our `__main__`."""

    has_our_memory = False

    def __init__(self) -> None:
        super().__init__(None)
        self.is_local = False


class Envelope:
    """A message of a transport, so that its library neither looks into it nor copies its buffers."""

    __slots__ = ("message",)

    def __init__(self, message: Any) -> None:
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return Envelope, (self.message,)


def _collector(beside: list[Any]) -> Callable[[Any], bool]:
    """Return a buffer callback that keeps small buffers in the pickle."""

    def collect(buffer: Any) -> bool:
        is_small: bool = buffer.raw().nbytes < BESIDE_MIN
        if not is_small:
            beside.append(buffer)
        return is_small

    return collect


def _in_band(buffer: object) -> bool:
    return True


def encode(value: object, receivers: Machines | None = None) -> Frames:
    """Encode a value. receivers: what the workers have of `__main__`; None: the value is a reply.

    Raises: whatever pickling it raises.
    """
    beside: list[Any] = []
    return [_dumps(value, _collector(beside), receivers), *beside]


def encode_whole(value: object, receivers: Machines | None = None) -> bytes:
    """As `encode`, but with all buffers in the pickle, so that `pickle.loads` suffices to decode it."""
    return _dumps(value, _in_band, receivers)


def _dumps(value: object, collect: Callable[[Any], bool], receivers: Receivers | None) -> bytes:
    receivers = receivers or replying()
    try:
        pickle = codec.dumps_plainly(value, collect, False)
    except RecursionError:
        raise
    except Exception as refusal:
        return codec.dumps(value, collect, refusal, receivers=receivers)
    return codec.with_definitions(pickle, collect, receivers)


def decode(frames: Frames) -> Any:
    """Decode what `encode` returned. The value may write to its buffers if they are writable."""
    pickle, *beside = frames
    return _pickle.loads(pickle, buffers=beside)


def as_buffers(frames: Frames) -> Frames:
    """Return frames whose buffers travel beside the pickle of a message, as those of `encode` do."""
    from pickle import PickleBuffer

    pickle, *beside = frames
    return [pickle, *map(PickleBuffer, beside)]


def copied(frames: Frames) -> Frames:
    """Return frames of `encode` with copies of the buffers, which the sender may change from then on."""
    pickle, *beside = frames
    return as_buffers([pickle, *map(bytearray, beside)])
