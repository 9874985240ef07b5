"""Interpreters with their own OpenBLAS: several budgets other than 1 at the same time in one process."""

import importlib
import os
import pathlib

import fresh
import gates
import pytest
import tasks

from pool_party import ComposablePool, WorkerBudget
from pool_party._workers.interp.elf import Dynamic
from pool_party._workers.interp.extensions import IS_SUPPORTED

np = pytest.importorskip("numpy")

pytestmark = pytest.mark.usefixtures("no_shared_pools")
needs_support = pytest.mark.skipif(not IS_SUPPORTED, reason="needs CPython 3.14 with a GIL")


class OneTwoThree:
    """Gives the first worker one thread, the next one two, and so on."""

    def shares(self, state):
        return [WorkerBudget(n + 1, state.cpus) for n in range(len(state.own))]


@pytest.fixture
def gate(tmp_path):
    with gates.Gate(tmp_path / "gate") as opened:
        yield opened


def threads():
    return set(pathlib.Path("/proc/self/task").iterdir())


def threads_of_workers(others):
    """The names of threads of interpreters, and of their libraries' threads, which inherit their creator's name."""
    names = []
    for thread in threads() - others:
        try:
            names.append((thread / "comm").read_text().strip())
        except OSError:
            pass  # the thread has ended
    return sorted(name for name in names if name.startswith("pp-interp"))


# ---- budgets ---------------------------------------------------------------


@needs_support
def test_three_interpreters_have_one_two_and_three_threads(gate):
    tasks.linear_algebra(0)  # starts the threads of the shared OpenBLAS again, which a fork had ended
    others = threads()  # those of pools that tests share, and of their shared OpenBLAS
    with ComposablePool(3, kind="interp", policy=OneTwoThree()) as pool:
        results = [pool.apply_async(tasks.own_blas_at_gate, (gate.path,)) for _ in range(3)]
        gate.wait_arrived(3)
        assert pool.statistics().n_threads == (1, 2, 3)
        names = threads_of_workers(others)
        for worker, n_threads in enumerate((1, 2, 3)):  # loading the library has started none, which would spin
            assert names.count(f"pp-interp-{worker}") == n_threads
        gate.release(3)
        assert sorted(result.get(60) for result in results) == [[1], [2], [3]]
    pool.join(timeout=30)
    gates.wait_until(lambda: not threads_of_workers(others), "the libraries' threads have ended")


USERS = """
import sys
import tasks
from pool_party import ComposablePool

if __name__ == "__main__":
    with ComposablePool(1, kind="interp", threads_per_worker=3, oversubscription=4.0) as pool:
        print(pool.apply(tasks.own_blas), "numpy" in sys.modules)
"""


@needs_support
@pytest.mark.parametrize(("users", "n"), [(None, 3), ("1", 1), ("2", 2)])
def test_copies_keep_to_the_users_environment(monkeypatch, users, n):
    """The program has not loaded OpenBLAS itself, from which its count could be known."""
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if users is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", users)
    fresh.check(fresh.run(["-c", USERS]), f"[{n}] False")


@needs_support
def test_a_lone_worker_gets_all_cpus_in_mid_task(monkeypatch, gate):
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", "4")
    with ComposablePool(2, kind="interp", policy="dynamic") as pool:
        first = pool.apply_async(tasks.own_blas_reaches, (gate.path, 4))
        second = pool.apply_async(tasks.own_blas_at_gate, (gate.path,))
        gate.wait_arrived(2)
        gate.release(1)
        assert second.get(60) == [2]
        assert first.get(60) == 4
        assert pool.statistics().n_lends >= 1


@needs_support
def test_threads_keep_to_their_workers_cpus():
    with ComposablePool(2, kind="interp", threads_per_worker=2, oversubscription=2.0, affinity=True) as pool:
        masks = pool.map(tasks.masks_of_blas_threads, range(2), 1)
    for own, others in masks:
        assert others and set(others) == {own}


@needs_support
def test_budgets_of_one_need_no_copies(monkeypatch):
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", "2")
    with ComposablePool(2, kind="interp", policy="static") as pool:
        assert pool.apply(tasks.own_blas) == []


@needs_support
def test_the_shared_library_is_left_alone():
    before = tasks.openblas_count()
    with ComposablePool(2, kind="interp", policy=OneTwoThree()) as pool:
        pool.map(tasks.linear_algebra, range(4), 1)
    assert tasks.openblas_count() == before


# ---- results ---------------------------------------------------------------


@needs_support
@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"threads_per_worker": 2}, id="static", marks=pytest.mark.slow),
        pytest.param({"policy": "dynamic"}, id="dynamic"),
        pytest.param({"policy": OneTwoThree()}, id="one-two-three"),
    ],
)
def test_results_are_those_of_one_thread(limits):
    with ComposablePool(3, kind="interp", **limits) as pool:
        wrong = [error for error in pool.map(tasks.linear_algebra, range(6), 1) if error > 1e-8]
    assert not wrong


# ---- names in files --------------------------------------------------------


def a_library(tmp_path):
    """A copy of a file that needs libraries, and its dynamic section."""
    original = importlib.import_module("pool_party._native").__file__
    copy = tmp_path / "copy"
    copy.write_bytes(pathlib.Path(original).read_bytes())
    return str(copy), Dynamic(original)


def rename(path, dynamic, names):
    fd = os.open(path, os.O_RDWR)
    try:
        dynamic.rename(fd, names)
    finally:
        os.close(fd)


def test_a_library_is_renamed(tmp_path):
    path, dynamic = a_library(tmp_path)
    libc = next(name for name in dynamic.needed if name.startswith("libc.so"))
    rename(path, dynamic, {libc: "short"})
    assert Dynamic(path).needed == ["short" if name == libc else name for name in dynamic.needed]
    assert os.path.getsize(path) == os.path.getsize(importlib.import_module("pool_party._native").__file__)


@pytest.mark.parametrize(("old", "new"), [("libc.so.6", "a-name-that-is-too-long"), ("libnone.so", "x"), ("", "x")])
def test_what_cannot_be_renamed_is_refused(tmp_path, old, new):
    path, dynamic = a_library(tmp_path)
    before = pathlib.Path(path).read_bytes()
    with pytest.raises(ValueError, match="cannot be changed"):
        rename(path, dynamic, {old: new})
    assert pathlib.Path(path).read_bytes() == before
