"""Somebody closes all descriptors while a pool is open: `python closing.py KIND task|program`.

Nothing hangs, small values still pass, what fails says why, files that get the numbers of our descriptors stay empty
and open, and the next pool works.
"""

import os
import sys
import tempfile

from probe import TIMEOUT_S, ComposablePool, gates, tasks

from pool_party import PoolPartyError
from pool_party._ground.broken import WorkerLost

BIG = 5_000_000
PROCESSES = ("fork", "forkserver", "spawn")


def close_all(_):
    os.closerange(3, 1024)
    return "closed"


def pool_of(kind, **options):
    if kind in PROCESSES:
        return ComposablePool(2, kind="process", context=kind, **options)
    return ComposablePool(2, kind=kind, **options)


def outcome(pool, function, argument):
    """Return the value of a call, or the error, which must be one of ours that says what has happened."""
    try:
        return pool.apply_async(function, (argument,)).get(TIMEOUT_S)
    except PoolPartyError as error:
        assert "closed file descriptors" in str(error), error
        return error


def use_after_a_task(kind):
    with pool_of(kind) as pool:
        assert outcome(pool, close_all, 1) == "closed"
        assert pool.map_async(tasks.square, range(10)).get(TIMEOUT_S) == [x * x for x in range(10)]
        for _ in range(3):
            found = outcome(pool, bytes, BIG)
            if isinstance(found, PoolPartyError):
                assert isinstance(found, WorkerLost) == (kind in PROCESSES), found
            else:
                assert len(found) == BIG
        if kind in PROCESSES:  # the worker has been replaced by now
            assert [len(data) for data in pool.map_async(bytes, [BIG] * 6, 1).get(TIMEOUT_S)] == [BIG] * 6


def use_after_the_program(kind, log):
    pool = pool_of(kind, log=log)
    assert pool.map_async(tasks.square, range(10)).get(TIMEOUT_S) == [x * x for x in range(10)]
    gates.wait_until(lambda: all(worker.was_ready for worker in pool._engine.workers), "no worker reads files")
    folder = tempfile.mkdtemp()
    os.closerange(3, 1024)
    victims = [os.open(f"{folder}/{n}", os.O_RDWR | os.O_CREAT) for n in range(60)]
    for function, argument in ((tasks.square, 3), (bytes, BIG), (len, bytes(BIG))):
        found = outcome(pool, function, argument)
        assert isinstance(found, PoolPartyError) or found in (9, BIG, bytes(BIG)), found
    pool.terminate()
    pool.join(timeout=TIMEOUT_S)
    use(kind)
    for n, fd in enumerate(victims):
        assert os.fstat(fd).st_size == 0, f"{n}: something was written to a file of the program"
        assert os.fstat(fd).st_ino == os.stat(f"{folder}/{n}").st_ino, f"{n}: it was closed"
        os.unlink(f"{folder}/{n}")
        os.close(fd)
    os.rmdir(folder)


def use(kind):
    with pool_of(kind) as pool:
        assert pool.map_async(tasks.square, range(10)).get(TIMEOUT_S) == [x * x for x in range(10)]
        assert len(pool.apply_async(bytes, (BIG,)).get(TIMEOUT_S)) == BIG


if __name__ == "__main__":
    kind, who = sys.argv[1:]
    if who == "task":
        use_after_a_task(kind)
    else:
        use_after_the_program(kind, log=False)
        use_after_the_program(kind, log=True)
    use(kind)
