"""Faults while no descriptor is left, so that nothing can be imported: `python no_descriptors.py CASE KIND`.

Every call must still get an outcome. Its exact error may be out of reach.
"""

import contextlib
import os
import resource
import sys

import pytest
from probe import TIMEOUT_S, ComposablePool, main

from pool_party import PoolPartyError

N_HELD = 64


@contextlib.contextmanager
def none_left():
    """Refuse further descriptors, also in the place of those that are closed meanwhile."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (N_HELD, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def wait_and_die(reader):
    os.read(reader, 1)
    os._exit(3)


def wait_and_raise(reader):
    os.read(reader, 1)
    raise ValueError("told to")


def error_of(result):
    with pytest.raises(PoolPartyError) as caught:
        result.get(TIMEOUT_S)
    return str(caught.value)


def lost(kind):
    """A worker dies with a task. Another one can be started only later."""
    reader, writer = os.pipe()
    with ComposablePool(1, kind=kind, context="fork") as pool:
        result = pool.apply_async(wait_and_die, (reader,))
        with none_left():
            os.write(writer, b"x")
            assert "exited with code 3" in error_of(result)
        assert pool.apply_async(abs, (-1,)).get(TIMEOUT_S) == 1


def initializer(kind):
    """An initializer raises, which breaks the pool. An interpreter cannot even import what describes its error."""
    reader, writer = os.pipe()
    context = "fork" if kind == "process" else None
    with ComposablePool(1, wait_and_raise, (reader,), kind=kind, context=context) as pool:
        result = pool.apply_async(abs, (-1,))
        with none_left():
            os.write(writer, b"x")
            assert ("ValueError('told to')" if kind != "interp" else "the pool is broken") in error_of(result)


if __name__ == "__main__":
    while os.dup(0) < N_HELD:
        pass  # so that pools get descriptors beyond the limit of `none_left`
    for module in ("pool_party._ground.broken", "multiprocessing.pool"):
        sys.modules.pop(module, None)  # so that they have to be imported again
    main({"lost": lost, "initializer": initializer})
