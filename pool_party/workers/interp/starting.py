"""Starts an interpreter, unless CPython cannot, and ends those that are kept for the next pool."""

import os

from pool_party import _native
from pool_party._core.errors import PoolPartyError

_is_hooked = False  # the hook for forks is registered


def is_traced() -> bool:
    """Whether `tracemalloc` traces, as far as can be seen: in interpreters of Python 3.13 and older it cannot."""
    try:
        from _tracemalloc import is_tracing
    except ImportError:
        return False
    return is_tracing()


def start(channel: _native.Channel, n: int, key: bytes | None = None) -> _native.Interpreter:
    """Start to create an interpreter, or take one that is kept for this key.

    Raises PoolPartyError while `tracemalloc` traces.
    """
    if is_traced():
        raise PoolPartyError(
            "an interpreter cannot be started while tracemalloc traces memory: CPython hangs or crashes (CPython "
            "issue 134604); call tracemalloc.stop() before, or use kind='process'"
        )
    return channel.start_interpreter(n, key)


def watch_forks() -> None:
    """Make interpreters that are kept end before a fork: CPython crashes in a child that has any."""
    global _is_hooked
    if not _is_hooked:
        _is_hooked = True
        os.register_at_fork(before=_native.end_kept)


def end_kept_interpreters() -> None:
    """End the interpreters that ended pools with `reuse=True` have left for the next one. Blocks until they have ended.

    Their memory is given back. Pools that are open stay as they are. The end of the program and a fork do the same.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed. They end nevertheless.

    Guarantees:
        Any thread may call it. It may be called again, and does nothing if there are none.
    """
    _native.end_kept()
