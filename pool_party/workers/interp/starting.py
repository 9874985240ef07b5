"""Starts an interpreter, unless CPython cannot."""

from pool_party import _native
from pool_party._core.errors import PoolPartyError


def is_traced() -> bool:
    """Whether `tracemalloc` traces, as far as can be seen: in interpreters of Python 3.13 and older it cannot."""
    try:
        from _tracemalloc import is_tracing
    except ImportError:
        return False
    return is_tracing()


def start(channel: _native.Channel, n: int) -> _native.Interpreter:
    """Start to create an interpreter. Raises PoolPartyError while `tracemalloc` traces."""
    if is_traced():
        raise PoolPartyError(
            "an interpreter cannot be started while tracemalloc traces memory: CPython hangs or crashes (CPython "
            "issue 134604); call tracemalloc.stop() before, or use kind='process'"
        )
    return channel.start_interpreter(n)
