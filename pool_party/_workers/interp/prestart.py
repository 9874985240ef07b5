"""Interpreters that are created before their pool is fully set up.

Creation starts early because it takes several times longer than the rest of the pool's set-up.
"""

import sys

from pool_party import _native


def begin(channel: _native.Channel, n_workers: int) -> dict[int, _native.Interpreter]:
    """Start to create the first interpreters of a pool. Return them by worker number."""
    from pool_party._workers.interp.starting import start

    if sys.version_info < (3, 13):
        from pool_party._workers.interp import worker  # noqa: F401  # its import must precede the first interpreter
    begun: dict[int, _native.Interpreter] = {}
    try:
        for n in range(n_workers):
            begun[n] = start(channel, n)
    except BaseException:
        give_up(begun)
        raise
    return begun


def give_up(begun: dict[int, _native.Interpreter]) -> None:
    """End the interpreters that no worker has taken, and wait for their end."""
    for interpreter in begun.values():
        interpreter.dismiss()
    for interpreter in begun.values():
        interpreter.join()
