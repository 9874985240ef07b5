"""Workers that do not become ready: the others work, the counts say so, and every way to end the pool works."""

import logging
import os
import tempfile

from probe import TIMEOUT_S, ComposablePool, gates, main, tasks

from pool_party import InitializerFailed


def one_is_held(kind):
    """One worker is held in its initializer, and joins in later."""
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


class FailingStarts:
    """Makes the next starts of workers fail, as without memory or descriptors."""

    def __init__(self, pool, n):
        self.workers, self.n_left = pool._engine._workers, n
        self.start, self.workers._start_worker = self.workers._start_worker, self.start_or_fail

    def start_or_fail(self, n):
        if self.n_left > 0:
            self.n_left -= 1
            raise OSError("too little of something")
        self.start(n)


def one_replacement_fails(kind):
    """Later starts succeed again."""
    logging.disable(logging.ERROR)
    with ComposablePool(2, kind=kind, maxtasksperchild=2) as pool:
        failing = FailingStarts(pool, 1)
        assert pool.map(tasks.square, range(20), 1) == [x * x for x in range(20)]
        gates.wait_until(lambda: len(pool._pool) == 2, "both places are filled")
        assert failing.n_left == 0


def replacements_fail_for_a_while(kind):
    """Nothing else happens to the pool meanwhile, so only the passing of time triggers the retries."""
    logging.disable(logging.ERROR)
    with ComposablePool(1, kind=kind, maxtasksperchild=1) as pool:
        failing = FailingStarts(pool, 4)
        assert pool.apply(tasks.square, (3,)) == 9
        assert pool.apply_async(tasks.square, (4,)).get(TIMEOUT_S) == 16
        assert failing.n_left == 0


def replacements_always_fail(kind):
    """A pool that has no workers and cannot start any is broken, and says why."""
    logging.disable(logging.ERROR)
    with ComposablePool(1, kind=kind, maxtasksperchild=1) as pool:
        FailingStarts(pool, 10**9)
        assert pool.apply(tasks.square, (3,)) == 9
        try:
            pool.apply_async(tasks.square, (4,)).get(TIMEOUT_S)
        except InitializerFailed as error:
            assert "too little of something" in str(error)


if __name__ == "__main__":
    main(globals())
