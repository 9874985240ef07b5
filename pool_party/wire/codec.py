"""Values <-> payloads where the native codec needs help, and for code that has no channel at hand.

Plain pickle does nearly all values. What it refuses (lambdas, closures, local classes) is pickled by value, with
cloudpickle. What lives in `__main__` is pickled as a name, which may mean something else in the worker: `definitions`
puts what has to be known there before such a pickle.
"""

from __future__ import annotations

import _pickle

from pool_party.wire.definitions import complete

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pool_party.wire.definitions import Receivers

type Payload = bytes


def dumps(
    value: object,
    buffer_callback: Callable[[Any], Any] | None,
    refusal: BaseException | None = None,
    receivers: Receivers | None = None,
) -> bytes:
    """The pickle of what plain pickle refuses.

    buffer_callback: as in pickle. refusal: what plain pickle raised. receivers: as in `encode`.
    Raises what the object raised, with a note that says where in `value` it was; what a signal handler raised, as is.
    """
    from pool_party.wire.interrupts import is_from_handler
    from pool_party.wire.main_module import Pickler

    if refusal is not None and is_from_handler(refusal):
        raise refusal
    try:
        pickle, read, named = Pickler.dumps(value, buffer_callback)
        return complete(pickle, receivers, read, named)
    except Exception as failure:
        if is_from_handler(failure):
            raise
        from pool_party.wire.explain import explain

        note = explain(value)
        if note:
            failure.add_note(note)
        raise failure from None


def encode(value: object, receivers: Receivers | None = None) -> Payload:
    """The value as bytes, for what does not travel through the channel.

    receivers: what the workers have of `__main__`; None: it is a reply.
    """
    try:
        pickle = _pickle.dumps(value, 5)
    except Exception as refusal:
        return dumps(value, None, refusal, receivers)
    return complete(pickle, receivers) if b"_main__" in pickle else pickle


def decode(payload: Payload) -> Any:
    """The value of `encode`."""
    return _pickle.loads(payload)
