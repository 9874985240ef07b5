"""Interpreters that are created before their pool is fully set up.

Creation starts early because it takes several times longer than the rest of the pool's set-up.
"""

import sys

from pool_party import _native


def begin(channel: _native.Channel, n_workers: int, reuse: bool) -> dict[int, _native.Interpreter]:
    """Start to create the first interpreters of a pool. Return them by worker number.

    reuse: without those that are kept. Which of these the pool can take is not known yet.
    """
    from pool_party.workers.interp.starting import start

    if sys.version_info < (3, 13):
        from pool_party.workers.interp import worker  # noqa: F401  # its import must precede the first interpreter
    return {n: start(channel, n) for n in range(_native.n_kept() if reuse else 0, n_workers)}


def give_up(begun: dict[int, _native.Interpreter]) -> None:
    """End the interpreters that no worker has taken, and wait for their end."""
    for interpreter in begun.values():
        interpreter.dismiss()
    for interpreter in begun.values():
        interpreter.join()
