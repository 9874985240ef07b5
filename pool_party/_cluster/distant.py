"""Values on their way to another machine and back: a pickle, and its large buffers beside it.

Nothing in them refers to memory, descriptors or definitions of this machine. A pickle that names something of
`__main__` therefore contains what the receiver needs of it. Large buffers in shared memory may be sent apart, once for
each machine, which puts them into shared memory of its own.
"""

from __future__ import annotations

import _pickle
import sys

from pool_party import _native
from pool_party._ground.records import NamedTuple
from pool_party._wire import codec
from pool_party._wire.beside import keep_in_pickle
from pool_party._wire.definitions import Receivers, replying
from pool_party._wire.shared import share

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pool_party._config import PoolConfig

    # The pickle, and its buffers: of type PickleBuffer where the value was encoded, later anything with a buffer. What
    # `apart` of `encode` has returned stands for others.
    type Frames = list[Any]

BESIDE_MIN = 1 << 14  # bytes; smaller buffers are copied into the pickle, which costs less than a frame each; guess
APART_MIN = 1 << 18  # bytes; smaller parts of shared memory are not sent apart, since each needs a descriptor; guess


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


class Terms(NamedTuple):
    """What a session opens its pool with.

    open_pool: makes the pool from the fields of a `PoolConfig`. config: these, but for what follows. initializer: the
    pool's, encoded with its arguments, or None.
    """

    open_pool: Callable[..., Any]
    config: PoolConfig
    initializer: Frames | None


class Shared:
    """A buffer on its way into shared memory of another machine, where it is a memoryview that cannot be written to."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __reduce__(self) -> tuple[Any, ...]:
        from pickle import PickleBuffer

        return _share_readonly, (PickleBuffer(self.buffer),)


def _share_readonly(buffer: Any) -> memoryview:
    try:
        memory: memoryview = share(buffer, readonly=True)
    except OSError:  # no descriptor is left, for example; then each worker gets a copy
        return memoryview(buffer).toreadonly()
    return memory


def _collector(beside: list[Any], apart: Callable[[memoryview], Any] | None) -> Callable[[Any], bool]:
    """Return a buffer callback that keeps small buffers in the pickle."""

    def collect(buffer: Any) -> bool:
        raw = buffer.raw()
        if raw.nbytes < BESIDE_MIN:
            return True
        is_apart = apart is not None and raw.nbytes >= APART_MIN and _native.is_shared(raw)
        beside.append(apart(raw) if is_apart else buffer)  # type: ignore[misc]
        return False

    return collect


def encode(
    value: object, receivers: Machines | None = None, apart: Callable[[memoryview], Any] | None = None
) -> Frames:
    """Encode a value. receivers: what the workers have of `__main__`; None: the value is a reply.

    apart: called with large buffers in shared memory; what it returns takes their places. None: they travel as others.
    Raises: whatever pickling it raises, and whatever `apart` raises.
    """
    beside: list[Any] = []
    return [_dumps(value, _collector(beside, apart), receivers), *beside]


def encode_whole(value: object, receivers: Machines | None = None) -> bytes:
    """As `encode`, but with all buffers in the pickle, so that `pickle.loads` suffices to decode it."""
    return _dumps(value, keep_in_pickle, receivers)


def _dumps(value: object, collect: Callable[[Any], bool], receivers: Receivers | None) -> bytes:
    receivers = receivers or replying()
    try:
        pickle = codec.dumps_plainly(value, collect, False, _array_reducers())
    except RecursionError:
        raise
    except Exception as refusal:
        return codec.dumps(value, collect, refusal, receivers=receivers)
    return codec.with_definitions(pickle, collect, receivers)


def _array_reducers() -> dict[type, Any]:
    array_type = getattr(sys.modules.get("numpy"), "ndarray", None)  # None while NumPy is being imported
    return {} if array_type is None else {array_type: _reduce_array}


def _reduce_array(array: Any) -> Any:
    """Reduce an array as NumPy does, but if it is large and not contiguous, as a copy that idle cores help to make.

    NumPy would put it into the pickle, and copy it three times.
    """
    flags = array.flags
    is_contiguous = flags.c_contiguous or flags.f_contiguous
    if array.nbytes < BESIDE_MIN or is_contiguous or array.dtype.hasobject:
        return array.__reduce_ex__(5)
    packed = sys.modules["numpy"].empty(array.shape, array.dtype)
    try:
        _native.copy(packed, array)
    except (BufferError, ValueError):  # dates have no buffer
        return array.__reduce_ex__(5)
    return packed.__reduce_ex__(5)


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
    from pickle import PickleBuffer

    return [PickleBuffer(bytearray(frame)) if isinstance(frame, PickleBuffer) else frame for frame in frames]
