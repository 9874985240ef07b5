"""Pools in the ranks of an MPI program, started by `mpiexec`."""

import importlib.util
import pathlib
import subprocess
import sys

import fresh
import pytest

PROGRAM = fresh.TESTS / "isolated" / "ranks.py"
MPIEXEC = pathlib.Path(sys.executable).with_name("mpiexec")
TIMEOUT_S = 100.0

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not MPIEXEC.exists(), reason="there is no MPI here"
)


def run(*args, n=3, runs=("-m", "mpi4py.futures"), extra=None):
    """Run a program with n ranks. 0: without `mpiexec`."""
    started_by = [MPIEXEC, "-n", n] if n else []
    command = [*started_by, sys.executable, *runs, PROGRAM, *args]
    with fresh.default_signals():
        process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**fresh.environment(), **(extra or {})},
            start_new_session=True,
        )
    return fresh.finish(process, timeout=TIMEOUT_S)


@pytest.mark.parametrize("worker_kind", ["thread", "process", "interp"])
def test_the_verbs(worker_kind):
    fresh.check(run("verbs", worker_kind))


@pytest.mark.parametrize(
    ("name", "n"), [("arrays", 2), ("several", 3), ("refusing", 3), ("unusable", 3), ("lost_worker", 3)]
)
def test_pools_in_ranks(name, n):
    fresh.check(run(name, n=n))


@pytest.mark.parametrize("name", ["all_ranks", "busy"])
def test_pools_in_ranks_with_gates(name, tmp_path):
    fresh.check(run(name, tmp_path))


@pytest.mark.parametrize(("n", "worker_kind"), [(0, "thread"), (0, "process"), (1, "thread")])
def test_a_pool_without_other_ranks_is_in_this_process(n, worker_kind):
    fresh.check(run("alone", worker_kind, n=n, runs=()))


def test_the_executor_of_a_communicator():
    fresh.check(run("comm_executor", runs=()), "done")


def test_ranks_that_do_not_wait_for_tasks():
    fresh.check(run("without_workers", runs=()))


def test_the_ranks_of_a_machine_share_its_cpus():
    fresh.check(run("budgets", extra={"POOL_PARTY_CPU_COUNT": "8"}))


def test_an_mpi_for_one_thread_is_refused():
    fresh.check(run("single_threaded", extra={"MPI4PY_RC_THREAD_LEVEL": "serialized"}))


@pytest.mark.parametrize("verb", ["idle", "pending"])
def test_a_program_may_end_without_ending_its_pool(verb):
    completed = run("left_open", verb)
    assert completed.returncode == 0, completed


def test_nothing_follows_the_last_message():
    fresh.check(run("last_message", n=1, runs=()))


def test_a_lost_rank_ends_the_program():
    completed = run("lost_rank")
    assert completed.returncode != 0, completed


@pytest.mark.slow
def test_the_benchmark_of_packing_runs():
    benchmark = PROGRAM.parents[2] / "benchmarks" / "mpi_faces.py"
    command = [MPIEXEC, "-n", "2", sys.executable, benchmark, "--quick"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0 and "transposed, 1 MB" in done.stdout, done
