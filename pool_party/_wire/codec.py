"""Encodes and decodes values where the native codec needs help, and for code without a channel.

Plain pickle handles nearly all values, with the reducers that are registered with multiprocessing's ForkingPickler.
Values that it refuses (lambdas, closures, local classes) are pickled by value, if need be by cloudpickle. Functions and
classes of `__main__` are pickled by name, which may mean something else in the worker. `definitions` therefore puts the
definitions that the worker needs before such a pickle.
"""

from __future__ import annotations

import _pickle
import sys

from pool_party import _native
from pool_party._ground.imports import loaded
from pool_party._wire.beside import Replaced, collector, load, names_of
from pool_party._wire.definitions import complete, replying

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from pool_party._wire.definitions import Receivers

# A pickle alone, or a pickle with its buffers in shared memory: as views, which are sent to the receiver, or by name.
type Payload = bytes | tuple[bytes, list[memoryview | bytes]]


def reducers(is_local: bool, others: Iterable[Any]) -> Any:
    """Return the reducers for a pickler: those registered with ForkingPickler, then `others`.

    is_local: whether the receiver is an interpreter of this process.
    """
    from collections import ChainMap

    reduction: Any = sys.modules.get("multiprocessing.reduction")
    pickler = getattr(reduction, "ForkingPickler", None)  # None: nothing can be registered yet
    if pickler is None:
        return ChainMap(*others)
    from pool_party._wire.fd_handle import local_reducers

    return ChainMap(local_reducers()[0] if is_local else {}, pickler._extra_reducers, *others)


def dumps_plainly(
    value: object, buffer_callback: Callable[[Any], Any], is_local: bool, own_reducers: Mapping[type, Any] | None = None
) -> bytes:
    """Pickle a value by plain pickle's rules and the registered reducers. Raises: whatever that raises.

    own_reducers: further ones, for types that have none.
    """
    import copyreg
    import io

    with io.BytesIO() as file:
        pickler = _pickle.Pickler(file, 5, buffer_callback=buffer_callback)
        pickler.dispatch_table = reducers(is_local, [copyreg.dispatch_table, *filter(None, [own_reducers])])
        pickler.dump(value)
        return file.getvalue()


def _dumps_by_value(
    value: object, buffer_callback: Callable[[Any], Any] | None, is_local: bool
) -> tuple[bytes, Iterable[str], Iterable[str]]:
    """Return the pickle, and `read` and `named` as in `complete`."""
    from pool_party._wire.main_module import BY_VALUE, Pickler

    return Pickler.dumps(value, buffer_callback, reducers(is_local, BY_VALUE.maps))


def dumps_current(value: object, buffer_callback: Callable[[Any], Any] | None = None, is_local: bool = False) -> bytes:
    """Pickle a value together with what it needs of `__main__`, as that is now. Raises: whatever pickling raises.

    This is for pools whose workers have nothing of the program's `__main__`, as loky's. cloudpickle decides what
    travels. A class that travels back is the program's own. buffer_callback, is_local: as in `dumps_plainly`.
    """
    import copyreg
    import io

    from cloudpickle import Pickler  # takes some 40 ms

    with io.BytesIO() as file:
        pickler = Pickler(file, 5, buffer_callback)
        pickler.dispatch_table = reducers(is_local, [Pickler._dispatch_table, copyreg.dispatch_table])
        pickler.dump(value)
        return file.getvalue()


def reply_with_definitions() -> None:
    """Have this worker send its results by `dumps_current` if they name something of `__main__`. A task calls this."""
    replying().is_by_value = True


def _is_by_value(receivers: Receivers | None) -> bool:
    return (receivers or _native.receivers() or replying()).is_by_value


def _fails(value: object) -> bool:
    try:
        _dumps_by_value(value, None, True)  # local: `_settle` closes these descriptors, unlike those for a process
    except Exception:
        return True
    finally:
        _settle(False)
    return False


def _settle(are_sent: bool) -> None:
    """Call `fd_handle.settle_duplicates` if that module has been imported."""
    if (handles := loaded("pool_party._wire.fd_handle")) is not None:
        handles.settle_duplicates(are_sent)


def dumps(
    value: object,
    buffer_callback: Callable[[Any], Any],
    refusal: BaseException | None = None,
    is_local: bool = False,
    receivers: Receivers | None = None,
) -> bytes:
    """Pickle a value that plain pickle refuses.

    buffer_callback: as in pickle. refusal: the exception that plain pickle raised. is_local, receivers: as in `encode`.
    Raises: the exception of the object that does not pickle, with a note that gives its path in `value`. An exception
        that a signal handler raised is passed on unchanged.
    """
    from pool_party._wire.interrupts import is_from_handler

    _settle(False)
    if refusal is not None and is_from_handler(refusal):
        raise refusal
    if isinstance(value, Replaced):
        value = value.value
    try:
        if _is_by_value(receivers):
            whole = dumps_current(value, buffer_callback, is_local)
        else:
            pickle, read, named = _dumps_by_value(value, buffer_callback, is_local)
            whole = complete(pickle, buffer_callback, receivers, read, named)
    except Exception as failure:
        _settle(False)
        if is_from_handler(failure):
            raise
        from pool_party._wire.explain import advice, explain

        for note in (explain(value, _fails), advice(failure, is_local)):
            if note:
                failure.add_note(note)
        raise failure from None
    _settle(True)
    return whole


def encode(value: object, receivers: Receivers | None = None, is_local: bool = False) -> Payload:
    """Encode a value that travels in another value, or to a worker that is being started.

    receivers: what the workers have of `__main__`; None: the value is a reply.
    is_local: whether the receiver is an interpreter of this process.
    """
    shared: list[memoryview | bytes] = []
    collect = collector(shared)
    try:
        pickle = dumps_plainly(value, collect, is_local)
    except Exception as refusal:
        shared.clear()
        pickle = dumps(value, collect, refusal, is_local, receivers)
    else:
        if b"_main__" in pickle and _is_by_value(receivers):
            shared.clear()
            pickle = dumps(value, collect, None, is_local, receivers)
        else:
            pickle = with_definitions(pickle, collect, receivers)
    return (pickle, shared) if shared else pickle


def with_definitions(pickle: bytes, collect: Callable[[Any], bool], receivers: Receivers | None) -> bytes:
    """Put the definitions that the receivers need before a pickle of `dumps_plainly`."""
    is_sent = False
    try:
        if b"_main__" in pickle:
            pickle = complete(pickle, collect, receivers)
        is_sent = True
    finally:
        _settle(is_sent)
    return pickle


def with_names(payload: Payload) -> Payload:
    """Replace buffers by their names. The result can be decoded while the sender retains the value."""
    if isinstance(payload, bytes):
        return payload
    pickle, buffers = payload
    return pickle, [*names_of(buffers)]


def decode(payload: Payload) -> Any:
    """Decode a payload of `encode` or `with_names`."""
    return _pickle.loads(payload) if isinstance(payload, bytes) else load(*payload)
