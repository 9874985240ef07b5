"""Ctrl-C does not break into what the main thread does for a pool: `native/python/interrupts.c` says why and how."""

import functools
from collections.abc import Callable

from pool_party import _native


def uninterrupted[*Ts, T](function: Callable[[*Ts], T]) -> Callable[[*Ts], T]:
    """The function with Ctrl-C held back while it runs, but for waits and callbacks inside it."""
    hold_interrupts = _native.hold_interrupts  # in a finalizer at the very end the module's globals are gone

    @functools.wraps(function)
    def call(*args: *Ts) -> T:
        return hold_interrupts(function, *args)

    return call
