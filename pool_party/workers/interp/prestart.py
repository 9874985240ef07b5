"""Interpreters that are created before their pool is fully set up.

Creation starts early because it takes several times longer than the rest of the pool's set-up.
"""

import sys
from _tracemalloc import is_tracing

from pool_party import _native
from pool_party._core.errors import PoolPartyError


def begin(kind: str, channel: _native.Channel, n_workers: int) -> dict[int, _native.Interpreter]:
    """Start to create the first interpreters of a pool of kind "interp". Return them by worker number."""
    if kind != "interp":
        return {}
    if sys.version_info < (3, 13):
        from pool_party.workers.interp import worker  # noqa: F401  # its import must precede the first interpreter
    return {n: start(channel, n) for n in range(n_workers)}


def start(channel: _native.Channel, n: int) -> _native.Interpreter:
    """Start to create an interpreter. Raises PoolPartyError while `tracemalloc` traces."""
    if is_tracing():
        raise PoolPartyError(
            "an interpreter cannot be started while tracemalloc traces memory: CPython hangs or crashes (CPython "
            "issue 134604); call tracemalloc.stop() before, or use kind='process'"
        )
    return channel.start_interpreter(n)


def give_up(begun: dict[int, _native.Interpreter]) -> None:
    """End the interpreters that no worker has taken, and wait for their end."""
    for interpreter in begun.values():
        interpreter.dismiss()
    for interpreter in begun.values():
        interpreter.join()
