"""The default executor: nested calls in every kind, configuration, forks, the program's end."""

import concurrent.futures
import functools
import multiprocessing
import os
import random
import threading

import fresh
import gates
import pytest
import tasks

import pool_party
from pool_party import _default

TIMEOUT_S = 30


@pytest.fixture
def default(monkeypatch):
    """Return a function that configures a default executor of this test's own. It is ended with the test."""
    executors = {}
    for name, value in {"_executors": executors, "_configured": None, "_is_used": False}.items():
        monkeypatch.setattr(_default, name, value)

    def configure(kind, max_workers=2, **options):
        pool_party.configure(kind=kind, max_workers=max_workers, **options)
        return pool_party.default_executor()

    yield configure
    for executor in executors.values():
        if executor._inner is not None:
            executor._inner.shutdown()


# ---- calls -----------------------------------------------------------------


def test_submit_and_map(default, kind):
    executor = default(kind)
    assert isinstance(executor, concurrent.futures.Executor) and "not open" in repr(executor)
    assert executor.submit(tasks.affine, 2, a=3, b=1).result(TIMEOUT_S) == 7
    assert list(executor.map(tasks.multiply, range(5), range(5), chunksize=2)) == [0, 1, 4, 9, 16]
    assert executor.kind == kind and f"kind={kind} state=RUN workers=2" in repr(executor)


def test_it_is_one_for_all(default, kind):
    executor = default(kind)
    executor.submit(abs, -1).result(TIMEOUT_S)
    inner = executor._inner
    with gates.call_in_thread(pool_party.default_executor, kind).result() as same:
        assert same is executor is pool_party.default_executor()
    executor.shutdown()
    assert executor.submit(abs, -1).result(TIMEOUT_S) == 1 and executor._inner is inner


def test_threads_that_use_it_first_at_the_same_time(default):
    executor = default("thread")
    barrier = threading.Barrier(8)

    def use():
        barrier.wait(TIMEOUT_S)
        return executor.submit(abs, -1).result(TIMEOUT_S), executor._inner

    outcomes = [call.result() for call in [gates.call_in_thread(use) for _ in range(8)]]
    assert {value for value, _ in outcomes} == {1} and len({id(inner) for _, inner in outcomes}) == 1


def test_map(default, kind):
    default(kind)
    assert pool_party.map(tasks.square, range(20)) == [x * x for x in range(20)]
    assert pool_party.map(tasks.multiply, range(3), iter((5, 6)), kind=kind, chunksize=2) == [0, 6]
    assert pool_party.map(tasks.square, []) == pool_party.map(tasks.square, iter(())) == []
    shown = []
    assert pool_party.map(tasks.square, range(3), progress=lambda *counts: shown.append(counts)) == [0, 1, 4]
    assert shown[0] == (0, 3) and shown[-1] == (3, 3)
    with pytest.raises(ValueError, match="first"):
        pool_party.map(tasks.raise_named, ["ValueError"] * 2, ["first", "second"])


def test_the_map_of_a_star_import_is_the_built_in_one():
    names = {}
    exec("from pool_party import *", names)
    assert "map" not in names and "default_executor" in names


def test_it_is_opened_with_all_cpus_from_within_a_task(default, make_pool, monkeypatch):
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", "3")
    default("thread", None)
    pool = make_pool(1, kind="thread", threads_per_worker=1)
    assert pool.apply(pool_party.cpu_count) == 1
    assert pool.apply(lambda: pool_party.map(abs, [-1])) == [1]
    assert pool_party.default_executor()._inner._max_workers == 3


def test_a_policy_for_processes_leaves_other_workers_the_default(kind, default):
    executor = default(kind, policy="exclusive")
    assert executor.submit(abs, -1).result(TIMEOUT_S) == 1
    assert executor._inner.statistics().policy == ("exclusive" if kind == "process" else "dynamic")


def test_a_broken_one_is_replaced(default):
    executor = default("thread")
    assert executor.submit(abs, -1).result(TIMEOUT_S) == 1
    first = executor._inner
    first._engine._cause = pool_party.PoolPartyError("its memory was overwritten")
    assert executor.submit(abs, -2).result(TIMEOUT_S) == 2 and executor._inner is not first
    first._engine._cause = None
    first.shutdown()


# ---- in tasks --------------------------------------------------------------


@pytest.mark.parametrize("n_workers", [1, 2])
def test_maps_inside_maps(default, kind, n_workers):
    default(kind, n_workers)
    nested = gates.call_in_thread(pool_party.map, tasks.nest, [3] * 3, range(3), [kind] * 3)
    assert nested.result(60) == [tasks.nest(3, x, "") for x in range(3)]


def make_program(rng, depth):
    """Make a random program for `tasks.play`."""
    verb = rng.choice(["map", "submit", "as_completed", "ahead", "catch", "value", "fail"]) if depth else "value"
    if verb in ("value", "fail"):
        return (verb, rng.randrange(100))
    n_parts = 1 if verb == "catch" else rng.randrange(4)
    return (verb, *(make_program(rng, depth - 1) for _ in range(n_parts)))


def outcome_of(program, kind):
    try:
        return tasks.play(program, kind)
    except ValueError as error:
        return repr(error)


@pytest.mark.parametrize("n_workers", [1, 3])
def test_random_nested_programs_have_the_outcomes_of_plain_ones(default, kind, n_workers):
    """Failures, too: the first one in the order of the input."""
    default(kind, n_workers)
    for seed in range(60):
        program = make_program(random.Random(seed), 5)
        outcome = gates.call_in_thread(outcome_of, program, kind).result(60)
        assert outcome == outcome_of(program, ""), (seed, program)


def test_idle_workers_help(default):
    """Both calls of the inner map must run at the same time."""
    default("thread")
    both = threading.Barrier(2)
    inner = functools.partial(pool_party.map, lambda _: both.wait(TIMEOUT_S), range(2))
    assert sorted(pool_party.default_executor().submit(inner).result(TIMEOUT_S)) == [0, 1]


def test_no_more_tasks_run_than_workers(default):
    default("thread", 2)
    running, most, lock = set(), [], threading.Lock()

    def leaf(x):
        with lock:
            running.add(threading.get_ident())
            most.append(len(running))
        os.sched_yield()
        with lock:
            running.discard(threading.get_ident())
        return x

    nested = gates.call_in_thread(pool_party.map, lambda _: sum(pool_party.map(leaf, range(40))), range(20))
    assert nested.result() == [sum(range(40))] * 20
    assert max(most) <= 2


def test_a_nested_map_counts_for_a_callable(default):
    default("thread", 1)
    shown = []
    inner = functools.partial(pool_party.map, abs, range(3), progress=lambda *counts: shown.append(counts))
    assert pool_party.default_executor().submit(inner).result(TIMEOUT_S) == [0, 1, 2]
    assert shown[0] == (0, 3) and shown[-1] == (3, 3)


def test_a_nested_map_has_its_timeout(default):
    default("thread", 1)
    nested = pool_party.default_executor().submit(pool_party.map, abs, range(3), timeout=0)
    with pytest.raises(TimeoutError):
        nested.result(TIMEOUT_S)


def test_it_may_be_passed_to_tasks(default, kind):
    executor = default(kind)
    assert executor.submit(tasks.use_executor, executor, 3).result(TIMEOUT_S) == (kind, 9, True)


def test_workers_of_other_pools_run_calls_themselves(remote_pool):
    """Otherwise each would open as many workers as the machine has CPUs."""
    executor = pool_party.default_executor("thread")
    assert remote_pool.apply(tasks.use_executor, (executor, 3)) == ("thread", 9, True)


def test_a_worker_of_multiprocessing_runs_calls_itself():
    """It is daemonic, so that it may have no children."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(tasks.use_executor, (pool_party.default_executor("process"), 3)) == ("process", 9, True)


def test_a_task_of_threads_uses_processes(default):
    default("thread", 1)
    use = functools.partial(pool_party.map, tasks.nest, [1] * 2, range(2), ["process"] * 2, kind="process")
    assert pool_party.default_executor().submit(use).result(TIMEOUT_S) == [tasks.nest(1, x, "") for x in range(2)]


# ---- configuration ---------------------------------------------------------


def test_configure_twice(default):
    default("thread", preload=["json"])
    pool_party.configure(kind="thread", max_workers=2, preload=["json"])
    with pytest.raises(pool_party.PoolPartyError, match="with another value of kind, max_workers: only the program"):
        pool_party.configure(kind="process", max_workers=3, preload=["json"])
    assert pool_party.map(abs, [-1]) == [1]
    pool_party.configure(kind="thread", max_workers=2, preload=["json"])


def test_configure_after_the_first_use(default, monkeypatch):
    monkeypatch.setenv("POOL_PARTY_DEFAULT_KIND", "thread")
    monkeypatch.setenv("POOL_PARTY_DEFAULT_WORKERS", "1")
    assert pool_party.map(abs, [-1]) == [1]
    with pytest.raises(pool_party.PoolPartyError, match="before the first use"):
        pool_party.configure(kind="thread")


def test_variables(default, monkeypatch):
    monkeypatch.setenv("POOL_PARTY_DEFAULT_KIND", "subinterpreter")
    monkeypatch.setenv("POOL_PARTY_DEFAULT_WORKERS", "3")
    executor = pool_party.default_executor()
    assert executor.kind == "interp"
    assert pool_party.default_executor("thread")._open()._max_workers == 3


def test_what_the_program_configures_prevails_over_variables(default, monkeypatch):
    monkeypatch.setenv("POOL_PARTY_DEFAULT_KIND", "process")
    monkeypatch.setenv("POOL_PARTY_DEFAULT_WORKERS", "3")
    assert default("thread", 1)._open()._max_workers == 1


@pytest.mark.parametrize(("name", "value"), [("KIND", "fibre"), ("WORKERS", "two"), ("WORKERS", "0")])
def test_wrong_variables_are_named(default, monkeypatch, name, value):
    monkeypatch.setenv(f"POOL_PARTY_DEFAULT_{name}", value)
    with pytest.raises(ValueError, match=f"POOL_PARTY_DEFAULT_{name}.*{value}"):
        pool_party.map(abs, [-1])


def test_wrong_options(default):
    with pytest.raises(ValueError, match="kind must be one of"):
        pool_party.configure(kind="fibre")
    with pytest.raises(ValueError, match="greater than 0"):
        pool_party.configure(max_workers=0)
    with pytest.raises(ValueError, match="unknown scope"):
        pool_party.configure(scope="planet")
    with pytest.raises(TypeError, match="no option 'workers'"):
        pool_party.configure(workers=2)


def test_an_initializer(default, kind):
    executor = default(kind, 1, initializer=tasks.set_greeting, initargs=("hi",))
    assert executor.submit(tasks.get_greeting).result(TIMEOUT_S) == "hi"


# ---- forks and the end -----------------------------------------------------

FORK = """
import os, pool_party
if __name__ == "__main__":
    pool_party.configure(kind={kind!r}, max_workers=2)
    assert pool_party.map(abs, range(-4, 0)) == [4, 3, 2, 1]
    pid = os.fork()
    assert pool_party.map(abs, range(-4, 0)) == [4, 3, 2, 1]
    if pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert pool_party.map(abs, range(-4, 0)) == [4, 3, 2, 1]
        print("done")
"""

END = """
import pool_party
def say(x):
    print(x, flush=True)
if __name__ == "__main__":
    pool_party.configure(kind={kind!r}, max_workers=2)
    executor = pool_party.default_executor()
    executor.submit(executor.map, abs, range(3))
    executor.submit(say, "finished")
"""


def run_and_check(program, kind, tmp_path, out):
    """Check that it succeeds silently, and leaves no process."""
    path = tmp_path / "program.py"
    path.write_text(program.format(kind=kind))
    process = fresh.start([path])
    fresh.check(fresh.finish(process), out)

    def is_gone():
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True

    gates.wait_until(is_gone, "no process of the program is left")


def test_a_forked_child_has_workers_of_its_own(kind, tmp_path):
    run_and_check(FORK, kind, tmp_path, "done")


def test_what_was_submitted_is_finished_at_the_end(kind, tmp_path):
    run_and_check(END, kind, tmp_path, "finished")


def test_interpreters_in_use_stay_at_a_fork(default, gate):
    """Only those that nobody uses end, so the call goes on."""
    executor = default("interp", 1)
    future = executor.submit(tasks.pass_gate, gate.path, 1)
    gate.wait_arrived()
    inner = executor._inner
    _default.end_idle_interpreters()
    assert executor._inner is inner
    gate.release()
    assert future.result(TIMEOUT_S) == 1
    _default.end_idle_interpreters()
    assert executor._inner is None and executor.submit(abs, -1).result(TIMEOUT_S) == 1
