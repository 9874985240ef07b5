"""OpenBLAS's regions on our threads: the same results, from many threads at once, after forks, and after removal."""

import os
import sys
import threading

import numpy as np
import numpy.testing  # here, not by a thread amid a fork: it imports logging, which registers functions for forks
from probe import gates, main, thread_ids

from pool_party import _native
from pool_party._budget import libraries
from pool_party._budget.gate import Gate, Gated, can_be_gated

OPENBLAS = [library for library in libraries.find() if can_be_gated(library)]


def set_threads(n):
    import ctypes

    for library in OPENBLAS:
        ctypes.CFUNCTYPE(None, ctypes.c_int)(library.setter)(n)


def make_operations():
    rng = np.random.default_rng(7)
    a, tall = rng.random((260, 260)), rng.random((700, 120))
    spd = a @ a.T + 260 * np.eye(260)
    return {
        "gemm": lambda: a @ a,
        "gemv": lambda: rng_matrix @ vector,
        "cholesky": lambda: np.linalg.cholesky(spd),
        "eigh": lambda: np.linalg.eigvalsh(spd),
        "eig": lambda: np.sort_complex(np.linalg.eigvals(a[:90, :90])),
        "qr": lambda: np.abs(np.linalg.qr(tall)[1]),
        "solve": lambda: np.linalg.solve(spd, a),
    }


rng_matrix = np.random.default_rng(8).random((900, 900))
vector = np.random.default_rng(9).random(900)


def check(operations, expected, n_rounds):
    for _ in range(n_rounds):
        for name, operation in operations.items():
            np.testing.assert_allclose(operation(), expected[name], rtol=1e-8, atol=1e-9, err_msg=name)


def prepare():
    operations = make_operations()
    set_threads(1)
    return operations, {name: operation() for name, operation in operations.items()}


def results(n_threads, n_python_threads, n_tokens, exclusive, n_rounds):
    """Results equal the serial ones, and every region passed the gate."""
    operations, expected = prepare()
    gate = Gate(int(n_tokens)) if int(n_tokens) else None
    with Gated(gate, exclusive=exclusive == "exclusive") as gated:
        gated.install(OPENBLAS)
        set_threads(int(n_threads))
        calls = [gates.call_in_thread(check, operations, expected, int(n_rounds)) for _ in range(int(n_python_threads))]
        for call in calls:
            call.result(100)
        set_threads(1)
    n_regions, _, _ = _native.region_statistics()
    assert n_regions > 10
    if gate:
        assert gate.n_acquired == n_regions
        assert (gate.n_free, gate.n_waiting, gate.n_recovered) == (gate.n_tokens, 0, 0)


def inside_a_hold():
    """A thread that holds tokens runs its regions with these."""
    operations, expected = prepare()
    gate = Gate(2)
    with Gated(gate) as gated:
        gated.install(OPENBLAS)
        set_threads(2)
        gate.acquire(2)
        check(operations, expected, 1)
        assert gate.held == 2
        gate.release()
        assert (gate.n_acquired, gate.n_free) == (1, 2)


def forks():
    """Children start their own threads. A fork waits until regions of other threads have ended."""
    operations, expected = prepare()
    gate = Gate(2)
    with Gated(gate) as gated:
        gated.install(OPENBLAS)
        set_threads(2)
        check(operations, expected, 1)
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                try:
                    check(operations, expected, 1)
                    n_threads = _native.region_statistics()[2]
                    os._exit(0 if n_threads >= 1 else 3)
                except BaseException:
                    sys.excepthook(*sys.exc_info())
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            check(operations, expected, 1)
    assert gate.n_free == 2


def forks_meanwhile():
    """Regions run in other threads while this one forks. The parent's results must stay right.

    LU is left out: its updates run on OpenBLAS's own threads, which sometimes lose a job to a fork, with us or without.
    """
    operations, expected = prepare()
    del operations["solve"]
    stop = threading.Event()

    def compute():
        while not stop.is_set():
            check(operations, expected, 1)

    with Gated(Gate(2)) as gated:
        gated.install(OPENBLAS)
        set_threads(2)
        calls = [gates.call_in_thread(compute) for _ in range(2)]
        for _ in range(30):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        for call in calls:
            call.result(30)


def undone():
    """Install and remove under running calls, many times. Then OpenBLAS must have its own threads again."""
    operations, expected = prepare()
    stop = threading.Event()

    def compute():
        while not stop.is_set():
            check(operations, expected, 1)

    set_threads(2)
    calls = [gates.call_in_thread(compute) for _ in range(2)]
    for i in range(60):
        with Gated(Gate(2) if i % 2 else None, exclusive=i % 4 == 1) as gated:
            gated.install(OPENBLAS)
            gated.install(OPENBLAS)
            assert gated.setters == tuple(library.callback for library in OPENBLAS)
            operations["gemm"]()
        assert not any(map(_native.uninstall_regions, (library.callback for library in OPENBLAS)))
    stop.set()
    for call in calls:
        call.result(30)
    before = _native.region_statistics()[0]
    check(operations, expected, 1)
    assert _native.region_statistics()[0] == before


def threads_deaf_and_wide():
    """Our threads block every signal and have the process's CPUs, although a pinned thread came first."""
    operations, _ = prepare()
    everywhere = os.sched_getaffinity(0)

    def narrow():
        os.sched_setaffinity(0, {min(everywhere)})
        operations["gemm"]()

    with Gated(None) as gated:
        gated.install(OPENBLAS)
        set_threads(2)
        gates.call_in_thread(narrow).result(30)
        ours = [tid for tid in thread_ids() if read(tid, "comm").strip() == "pool_party-blas"]
        assert len(ours) == _native.region_statistics()[2] == 1
        status = dict(line.split(":\t") for line in read(ours[0], "status").splitlines())
        blocked = int(status["SigBlk"], 16)
        blockable = (1 << 64) - 1 & ~(
            1 << 8 | 1 << 18 | 1 << 31 | 1 << 32
        )  # all but KILL, STOP, and two of the C library's
        assert blocked & blockable == blockable, hex(blocked)
        assert os.sched_getaffinity(ours[0]) == everywhere


def read(tid, name):
    with open(f"/proc/self/task/{tid}/{name}") as file:
        return file.read()


SCENARIOS = {f.__name__: f for f in (results, inside_a_hold, forks, forks_meanwhile, undone, threads_deaf_and_wide)}

if __name__ == "__main__":
    main(SCENARIOS, hang_s=90)
