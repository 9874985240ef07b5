"""Workers that do not get ready: the others work, the numbers tell, and every end is an end."""

import os
import tempfile

from probe import TIMEOUT_S, ComposablePool, gates, main, tasks


def one_is_held(kind):
    """In its initializer; it joins in later."""
    with gates.Gate(os.path.join(tempfile.mkdtemp(), "gate")) as gate:
        with ComposablePool(2, tasks.pass_gate, (gate.path,), kind=kind) as pool:
            gate.wait_arrived(2)
            assert pool.statistics().n_workers_starting == 2
            gate.release()
            assert pool.map(tasks.square, range(20), 1) == [x * x for x in range(20)]
            assert pool.statistics().n_workers_starting == 1
            gate.release()
            gates.wait_until(lambda: pool.statistics().n_workers_starting == 0, "both are ready")
        pool.join(timeout=TIMEOUT_S)


def make_with_one_that_never_ends(kind):
    gate = gates.Gate(os.path.join(tempfile.mkdtemp(), "gate"))
    pool = ComposablePool(2, tasks.spin_if_first, (gate.path,), kind=kind)
    gate.wait_arrived()
    assert pool.map(tasks.square, range(20), 1) == [x * x for x in range(20)]
    assert pool.statistics().n_workers_starting == 1
    return pool


def terminated(kind):
    with make_with_one_that_never_ends(kind) as pool:
        pending = pool.apply_async(tasks.square, (3,))
        assert pending.get(TIMEOUT_S) == 9
    pool.join(timeout=TIMEOUT_S)


def forgotten(kind):
    globals()["pool"] = make_with_one_that_never_ends(kind)


if __name__ == "__main__":
    main(globals())
