"""Runs the machine against a pool with one intended fault, `python faulty.py fault`. It must fail.

The fault is in a class between the machine and the real pool of threads. With the fault "none" the machine passes.
"""

import os
import sys
import threading
import time

import machine

from pool_party import ComposablePool


class Wrapped:
    """The result of a call, with some methods replaced."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)


class LateResult(Wrapped):
    def get(self, timeout=None):
        before = time.monotonic()
        try:
            return self._inner.get(timeout=timeout)
        finally:
            if timeout and time.monotonic() - before >= timeout:
                time.sleep(1.5)


class LossyIterator(Wrapped):
    def next(self, timeout=None):
        self._inner.next(timeout=timeout)
        return self._inner.next(timeout=timeout)


def twice(function):
    return function and (lambda *args: (function(*args), function(*args))[0])


class WrongValue(ComposablePool):
    def starmap(self, *args):
        return list(reversed(super().starmap(*args)))


class LostResult(ComposablePool):
    def imap_unordered(self, *args):
        return LossyIterator(super().imap_unordered(*args))


class TwoCallbacks(ComposablePool):
    def map_async(self, *args, callback=None, **kwargs):
        return super().map_async(*args, callback=twice(callback), **kwargs)


class Late(ComposablePool):
    def apply_async(self, *args, **kwargs):
        return LateResult(super().apply_async(*args, **kwargs))


class Descriptor(ComposablePool):
    def join(self, *args, **kwargs):
        super().join(*args, **kwargs)
        os.dup(1)


class Rerun(ComposablePool):
    def apply(self, *args):
        super().apply(*args)
        return super().apply(*args)


class Hang(ComposablePool):
    def join(self, *args, **kwargs):
        threading.Event().wait()


FAULTS = {
    "none": ComposablePool,
    "wrong-value": WrongValue,
    "lost-result": LostResult,
    "two-callbacks": TwoCallbacks,
    "late": Late,
    "descriptor": Descriptor,
    "rerun": Rerun,
    "hang": Hang,
}
NEEDED = {"late": "punctual", "descriptor": "flat"}  # the forgivable properties that a fault violates

if __name__ == "__main__":
    fault = sys.argv.pop()
    machine.PoolMachine.pool_class = FAULTS[fault]
    forgiven = set(machine.PROPERTIES) - {NEEDED.get(fault)}
    sys.argv += ["thread", "--examples", "60", "--forgive", ",".join(sorted(forgiven))]
    machine.main()
