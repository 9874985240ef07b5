"""Interpreters that are being made before it is settled what they are to run.

Making one takes several times as long as all that its pool has to find out first. Little happens before that.
"""

import sys

from pool_party import _native


def begin(kind: str, channel: _native.Channel, n_workers: int) -> dict[int, _native.Interpreter]:
    """The first interpreters of a pool of kind "interp", by the number of their workers, in the making."""
    if kind != "interp":
        return {}
    if sys.version_info < (3, 13):
        from pool_party.workers.interp import worker  # noqa: F401  # does what must come before the first interpreter
    return {n: channel.start_interpreter(n) for n in range(n_workers)}


def give_up(begun: dict[int, _native.Interpreter]) -> None:
    """There will be no pool: those that no worker has taken end, and have ended."""
    for interpreter in begun.values():
        interpreter.dismiss()
    for interpreter in begun.values():
        interpreter.join()
