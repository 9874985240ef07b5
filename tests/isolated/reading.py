"""The thread that reads what other programs use: how many there are, and when. argv: scenario, kind."""

import contextlib
import os
import pathlib

from probe import ComposablePool, gates, main

from pool_party import _native


def n_readers():
    names = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            names.append(pathlib.Path(f"/proc/self/task/{thread}/comm").read_text())
    return names.count("pp-others\n")


def one(kind):
    """There is one for all pools that lend, none for other pools, and none if the system does not report what runs."""
    with ComposablePool(2, kind=kind, policy="dynamic"):
        assert n_readers() == 0 and _native.cpus_left(4) == 4
    gates.wait_until(lambda: _native.cpus_left(4) == 0, "nothing is known any more")
    _native.pretend_running(2)
    with ComposablePool(2, kind=kind, policy="static"):
        assert n_readers() == 0
        with ComposablePool(2, kind=kind, policy="dynamic"), ComposablePool(2, kind=kind, policy="dynamic"):
            gates.wait_until(lambda: n_readers() == 1, "it has its name")
        gates.wait_until(lambda: n_readers() == 0, "it ends with the last of them")


if __name__ == "__main__":
    main(globals())
