"""Values <-> payloads where the native codec needs help, and for code that has no channel at hand.

Plain pickle, with the reducers that are registered with multiprocessing's ForkingPickler, does nearly all values. Two
kinds it cannot: what it refuses (lambdas, closures, local classes), and what lives in `__main__`, which it would send
as a name that means something else in the worker. Both are pickled by value, with cloudpickle; `main_module` says what
becomes of `__main__` on the other side.
"""

from __future__ import annotations

import _pickle

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# A pickle; or a pickle and its buffers in shared memory, which the receiver is to get itself, or their names.
type Payload = bytes | tuple[bytes, list[memoryview | bytes]]

_picklers: dict[bool, Any] = {}


def _pickler(is_local: bool) -> Any:
    """A class of cloudpickle's pickler that knows our rules, and what is registered with ForkingPickler.

    is_local: for an interpreter of this process.
    """
    from collections import ChainMap
    from multiprocessing.reduction import ForkingPickler

    from pool_party.wire.fd_handle import local_reducers
    from pool_party.wire.main_module import Pickler

    registered: Any = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    replaced: Any = local_reducers()[0] if is_local else {}
    table = ChainMap(replaced, registered, *Pickler.dispatch_table.maps)
    if is_local not in _picklers:
        _picklers[is_local] = type("Pickler", (Pickler,), {})
    _picklers[is_local].dispatch_table = table
    return _picklers[is_local]


def dumps(
    value: object,
    buffer_callback: Callable[[Any], Any] | None,
    refusal: BaseException | None = None,
    is_local: bool = False,
) -> bytes:
    """The pickle of what plain pickle refuses, or of what it would send as a name in `__main__`.

    buffer_callback: as in pickle. refusal: what plain pickle raised. is_local: for an interpreter of this process.
    Raises what the object raised, with a note that says where in `value` it was; what a signal handler raised, as is.
    """
    from pool_party.wire.fd_handle import settle_duplicates
    from pool_party.wire.interrupts import is_from_handler

    settle_duplicates(False)
    if refusal is not None and is_from_handler(refusal):
        raise refusal
    try:
        pickle: bytes = _pickler(is_local).dumps(value, buffer_callback)
    except Exception as failure:
        settle_duplicates(False)
        if is_from_handler(failure):
            raise
        from pool_party.wire.explain import explain

        note = explain(value)
        if note:
            failure.add_note(note)
        raise failure from None
    settle_duplicates(True)
    return pickle


def collector(shared: list[memoryview | bytes]) -> Callable[[Any], bool]:
    """A buffer callback of pickle's that takes the buffers in shared memory and leaves the others to the pickle."""

    def collect(buffer: Any) -> bool:
        is_shared = _native.is_shared(buffer)
        if is_shared:
            shared.append(buffer.raw())
        return not is_shared

    return collect


def encode(value: object) -> Payload:
    """The value for later: it travels in another value, or while its receiver is being started."""
    shared: list[memoryview | bytes] = []
    collect = collector(shared)
    try:
        pickle = _pickle.dumps(value, 5, buffer_callback=collect)
    except Exception as refusal:
        shared.clear()
        pickle = dumps(value, collect, refusal)
    else:
        if b"__main__" in pickle:
            shared.clear()
            pickle = dumps(value, collect)
    return (pickle, shared) if shared else pickle


def with_names(payload: Payload) -> Payload:
    """A payload of bytes alone, for as long as the sender has the value."""
    if isinstance(payload, bytes):
        return payload
    pickle, buffers = payload
    return pickle, [_native.name_shared(buffer) for buffer in buffers]


def decode(payload: Payload) -> Any:
    """The value of `encode`."""
    if isinstance(payload, bytes):
        return _pickle.loads(payload)
    pickle, buffers = payload
    return _pickle.loads(
        pickle, buffers=[_native.open_shared(part) if isinstance(part, bytes) else part for part in buffers]
    )
