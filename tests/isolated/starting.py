"""Workers that do not get ready: the others work, the numbers tell, and every end is an end."""

import logging
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


def one_replacement_fails(kind):
    """For want of memory or of descriptors, say; later there is enough again."""
    logging.disable(logging.ERROR)
    with ComposablePool(2, kind=kind, maxtasksperchild=2) as pool:
        crew = pool._scheduler._crew
        start, has_failed = crew._start_worker, []

        def failing_start(n):
            if not has_failed:
                has_failed.append(n)
                raise OSError("too little of something")
            start(n)

        crew._start_worker = failing_start
        assert pool.map(tasks.square, range(20), 1) == [x * x for x in range(20)]
        gates.wait_until(lambda: len(pool._pool) == 2, "both places are filled")
        assert has_failed


if __name__ == "__main__":
    main(globals())
