"""Starts an interpreter, unless CPython cannot."""

from _tracemalloc import is_tracing

from pool_party import _native
from pool_party._core.errors import PoolPartyError


def start(channel: _native.Channel, n: int) -> _native.Interpreter:
    """Start to create an interpreter. Raises PoolPartyError while `tracemalloc` traces."""
    if is_tracing():
        raise PoolPartyError(
            "an interpreter cannot be started while tracemalloc traces memory: CPython hangs or crashes (CPython "
            "issue 134604); call tracemalloc.stop() before, or use kind='process'"
        )
    return channel.start_interpreter(n)
