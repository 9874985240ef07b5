"""Programs whose pools have workers in the ranks of an MPI program. The test starts them by `mpiexec`."""

import multiprocessing
import operator
import os
import sys
import threading
import time
from multiprocessing import spawn

import gates
import numpy as np
import probe
import tasks
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor, MPIPoolExecutor

from pool_party import (
    ComposableExecutor,
    ComposablePool,
    PoolPartyError,
    WorkerLost,
    share,
)
from pool_party._cluster import mpi, ranks

TIMEOUT_S = 30


class Point:
    """A class of the script, which the ranks know from what is sent."""

    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return self.x == other.x


def moved(point):
    return Point(point.x + 1)


def verbs(worker_kind):
    with ComposablePool(1, kind="mpi", worker_kind=worker_kind) as pool:
        assert pool.kind == "mpi" and pool.statistics().n_workers == MPI.COMM_WORLD.size - 1
        assert pool.map(tasks.square, range(100), 1) == [x * x for x in range(100)]
        assert pool.starmap(tasks.multiply, [(2, 3), (4, 5)]) == [6, 20]
        assert list(pool.imap(moved, map(Point, range(10)), 3)) == [Point(x + 1) for x in range(10)]
        assert sorted(pool.imap_unordered(tasks.square, range(10))) == [x * x for x in range(10)]
        assert type(probe.expect(ZeroDivisionError, pool.apply, divmod, (1, 0))) is ZeroDivisionError
        assert pool.apply(lambda: 7) == 7
    with ComposableExecutor(1, kind="mpi", worker_kind=worker_kind) as executor:
        assert list(executor.map(tasks.square, range(10))) == [x * x for x in range(10)]


def all_ranks(folder):
    """Tasks run in all ranks, and in no other process."""
    with gates.Gate(os.path.join(folder, "gate")) as gate, ComposablePool(1, kind="mpi", worker_kind="thread") as pool:
        n = MPI.COMM_WORLD.size - 1
        result = pool.map_async(tasks.pass_gate, [gate.path] * n, 1)
        gate.wait_arrived(n)
        gate.release(n)
        result.get(TIMEOUT_S)
        pids = {pid for pid, *_ in pool.map(tasks.worker_ident, range(200), 1)}
        assert os.getpid() not in pids and len(pids) <= n


def arrays():
    """Large values, in several messages of MPI each."""
    with ComposablePool(1, kind="mpi") as pool, MPIPoolExecutor() as executor:
        for n_bytes in (ranks.BESIDE_MIN, 10_000):
            ranks.PIECE = n_bytes
            list(executor.map(set_piece, [n_bytes] * 10))
        array = np.random.default_rng(1).random((300, 401))
        for value in (array, array.T, array[:, ::3], array.astype("f4"), np.zeros(0), b"a" * 100_000):
            result = pool.apply(tasks.identity, (value,))
            assert np.array_equal(result, value)
        mapped = pool.starmap(operator.add, [(array, n) for n in range(30)], 1)
        assert all(np.array_equal(result, array + n) for n, result in enumerate(mapped))
        shared = share(array, readonly=True)
        assert pool.starmap(operator.getitem, [(shared, (0, n)) for n in range(30)], 1) == list(array[0, :30])


def set_piece(n_bytes):
    ranks.PIECE = n_bytes


def comm_executor():
    """All ranks run the program, and those without an executor wait for tasks. They are as before then."""
    before = spawn.get_preparation_data, dict(os.environ)
    with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
        if executor is not None:
            with ComposablePool(1, kind="mpi", client=executor) as pool:
                assert pool.map(tasks.square, range(10)) == [x * x for x in range(10)]
            error = probe.expect(TypeError, ComposablePool, 1, kind="mpi", client=object())
            assert "an executor of mpi4py.futures" in str(error)
            print("done")
    assert (spawn.get_preparation_data, dict(os.environ)) == before


def without_workers():
    """All ranks run the program, and none waits for tasks."""
    error = probe.expect(ValueError, ComposablePool, 1, kind="mpi")
    assert "mpiexec -n N python -m mpi4py.futures" in str(error)


def alone(worker_kind):
    """Without other ranks tasks run on this machine."""
    with ComposablePool(2, kind="mpi", worker_kind=worker_kind) as pool:
        assert pool.map(tasks.square, range(10)) == [x * x for x in range(10)]


def several():
    """Several pools at a time, opened in several threads, and other tasks of mpi4py."""
    with MPIPoolExecutor() as executor:

        def use(n):
            with ComposablePool(1, kind="mpi", worker_kind="thread") as pool:
                for _ in range(5):
                    assert pool.map(tasks.square, range(n, n + 20), 1) == [x * x for x in range(n, n + 20)]
                    assert executor.submit(abs, -n).result(TIMEOUT_S) == n

        for call in [gates.call_in_thread(use, n) for n in range(4)]:
            call.result(TIMEOUT_S)


def unusable():
    """A node that can make no workers ends its session before the pool does, and later pools are as others."""
    with ComposablePool(1, kind="mpi", initializer=os._exit, initargs=(3,)) as pool:
        probe.expect((WorkerLost, multiprocessing.TimeoutError), pool.apply_async(abs, (-1,)).get, 5)
    for _ in range(3):
        with ComposablePool(1, kind="mpi") as pool:
            assert pool.apply(abs, (-1,)) == 1


def last_message():
    """Nothing leaves behind the last message: the next communicator would receive it."""
    mail, found = ranks.Mail(MPI.COMM_SELF.Dup()), []
    for message in ("first",), ("end", False), ("late",), ("end", True):
        mail.put(0, message)
    while len(found) < 2:
        found += [message for _, batch in mail.take() for message in batch]
    mail.flush()
    assert not mail.take() and found == [("first",), ("end", False)]
    mail.free()


def refusing():
    """If one rank cannot open a pool, the others end theirs."""
    with MPIPoolExecutor() as executor:
        executor.submit(refuse).result(TIMEOUT_S)
        error = probe.expect(PoolPartyError, ComposablePool, 1, kind="mpi", worker_kind="thread")
        assert "as the test wants it" in str(error) and "rank" in str(error)
        assert executor.submit(abs, -3).result(TIMEOUT_S) == 3


def refuse():
    from pool_party._cluster.node import session

    def fail(*args):
        raise OSError("as the test wants it")

    session._open_pool = fail


def busy(folder):
    """Ranks that run other tasks are not waited for without end, and are as before when these have ended."""
    mpi.OPEN_S = 1.0
    n = MPI.COMM_WORLD.size - 1
    with gates.Gate(os.path.join(folder, "gate")) as gate, MPIPoolExecutor() as executor:
        calls = [executor.submit(tasks.pass_gate, gate.path) for _ in range(n - 1)]
        gate.wait_arrived(n - 1)
        error = probe.expect(TimeoutError, ComposablePool, 1, kind="mpi", worker_kind="thread")
        assert "they may run other tasks" in str(error)
        gate.release(n - 1)
        for call in calls:
            call.result(TIMEOUT_S)
        mpi.OPEN_S = 30.0
        with ComposablePool(1, kind="mpi", worker_kind="thread") as pool:
            assert pool.map(tasks.square, range(10)) == [x * x for x in range(10)]
        gates.wait_until(
            lambda: not any(thread.name == "pool_party-mail" for thread in threading.enumerate()), "the first has ended"
        )


def budgets():
    """Ranks of a machine share its CPUs. The test says that it has eight."""
    n = 8 // (MPI.COMM_WORLD.size - 1)
    for _ in range(2):
        with ComposablePool(kind="mpi", worker_kind="thread") as pool:
            assert pool.statistics().n_workers == 8
    with ComposablePool(2, kind="mpi", worker_kind="thread", policy="static") as pool:
        assert set(pool.map(tasks.limit_now, range(20), 1)) == {n // 2}


def lost_worker():
    """A worker process that dies costs its task, and no rank."""
    with ComposablePool(1, kind="mpi") as pool:
        probe.expect(WorkerLost, pool.apply, os._exit, (1,))
        assert pool.map(tasks.square, range(10)) == [x * x for x in range(10)]


def left_open(verb):
    """The program ends without ending its pool."""
    global pool
    pool = ComposablePool(1, kind="mpi", worker_kind="thread")
    assert pool.apply(tasks.square, (3,)) == 9
    if verb == "pending":
        pool.apply_async(time.sleep, (600,))


def lost_rank():
    """MPI ends the program if a rank is lost."""
    with ComposablePool(1, kind="mpi", worker_kind="thread") as pool:
        pool.apply(os._exit, (3,))


def single_threaded():
    error = probe.expect(PoolPartyError, ComposablePool, 1, kind="mpi")
    assert "MPI_THREAD_MULTIPLE" in str(error)


if __name__ == "__main__":
    name, *args = sys.argv[1:]
    globals()[name](*args)
