"""State of workers: it persists between tasks, is set by the initializer, and ends with the worker."""

import functools
import multiprocessing
import platform
import re

import gates
import pytest
import tasks

import pool_party
from pool_party import ComposablePool

TIMEOUT_S = 30


# ---- persistence -----------------------------------------------------------


@pytest.mark.parametrize("count", [tasks.count_up_local, tasks.count_up_contextvar])
def test_state_of_a_worker_persists_between_tasks(make_pool, kind, count):
    pool = make_pool(1, kind=kind)
    assert [pool.apply(count) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert pool.map(count, range(3), 1) == [6, 7, 8]


def test_module_globals_persist_between_tasks(make_pool, kind):
    pool = make_pool(1, kind=kind)
    first = pool.apply(tasks.count_up)
    assert [pool.apply(tasks.count_up) for _ in range(4)] == list(range(first + 1, first + 5))


def test_interpreters_start_no_program_to_name_the_processor(make_pool):
    """Its process would hold the locks on files of all interpreters for a moment: HDF5's."""
    pool = make_pool(1, kind="interp")
    assert pool.apply(tasks.processor_without_programs) == platform.processor()


def test_module_globals_of_remote_workers_are_their_own(make_pool, remote_kind):
    tasks.counter = 1000
    try:
        assert make_pool(1, kind=remote_kind).apply(tasks.count_up) in (1, 1001)
        assert tasks.counter == 1000
    finally:
        tasks.counter = 0


def test_workers_have_separate_thread_locals(make_pool, kind, gate):
    pool = make_pool(2, kind=kind)

    def count_at_gate(path):
        tasks.pass_gate(path)
        return tasks.count_up_local()

    results = [pool.apply_async(count_at_gate, (gate.path,)) for _ in range(2)]
    gate.wait_arrived(2)
    gate.release(2)
    assert [result.get(TIMEOUT_S) for result in results] == [1, 1]


def test_decimal_context_persists(make_pool, kind):
    pool = make_pool(1, kind=kind)
    pool.apply(tasks.set_decimal_precision, (7,))
    assert pool.apply(tasks.get_decimal_precision) == 7


def test_a_worker_is_one_thread(make_pool, kind):
    pool = make_pool(1, kind=kind)
    assert len({pool.apply(tasks.worker_ident) for _ in range(10)}) == 1


def test_workers_are_as_many_as_asked_for(make_pool, kind, gate):
    pool = make_pool(3, kind=kind)

    def ident_at_gate(path):
        tasks.pass_gate(path)
        return tasks.worker_ident()

    results = [pool.apply_async(ident_at_gate, (gate.path,)) for _ in range(3)]
    gate.wait_arrived(3)
    gate.release(3)
    assert len({result.get(TIMEOUT_S) for result in results}) == 3


# ---- initializer -----------------------------------------------------------


def test_initializer_runs_once_in_every_worker(make_pool, kind, tmp_path):
    log = str(tmp_path / "log")
    pool = make_pool(3, tasks.log_init, (log, "a", 5), kind=kind)
    pool.map(tasks.square, range(100), 1)
    pool.close()
    pool.join(timeout=TIMEOUT_S)
    with open(log) as lines:
        seen = lines.read().splitlines()
    assert len(seen) == len(set(seen)) == 3
    assert all(line.endswith("('a', 5)") for line in seen)


def test_what_the_initializer_set_is_seen_by_every_task(make_pool, kind):
    pool = make_pool(2, tasks.set_local, ("set",), kind=kind)
    assert pool.map(tasks.get_local, range(50), 1) == ["set"] * 50


def test_initializer_may_be_a_closure(make_pool, kind):
    value = "captured"

    def initialize():
        tasks.set_local(value)

    assert make_pool(1, initialize, kind=kind).apply(tasks.get_local) == "captured"


def test_initializer_is_not_a_task(make_pool, kind):
    pool = make_pool(2, tasks.set_local, ("set",), kind=kind)
    pool.apply(tasks.square, (2,))
    assert pool.statistics().n_submitted == pool.statistics().n_completed == 1


def test_failing_initializer_breaks_the_pool(kind, tmp_path):
    log = tmp_path / "log"
    with pytest.raises(pool_party.InitializerFailed) as caught:
        with ComposablePool(2, tasks.failing_init, (str(log), "no such thing"), kind=kind) as pool:
            results = [pool.apply_async(tasks.square, (x,)) for x in range(3)]
            for result in results:
                with pytest.raises(pool_party.InitializerFailed):
                    result.get(TIMEOUT_S)
            pool.map(tasks.square, range(10))
    assert type(caught.value.__cause__) is LookupError
    assert caught.value.__cause__.args == ("no such thing",)
    assert "no such thing" in str(caught.value)
    assert len(log.read_text().splitlines()) <= 4  # workers are not replaced for ever


def test_broken_pool_can_be_ended(kind, tmp_path):
    args = (str(tmp_path / "log"), "no")
    try:
        pool = ComposablePool(2, tasks.failing_init, args, kind=kind)
    except pool_party.InitializerFailed:
        return  # there is no pool to end
    with pytest.raises(pool_party.InitializerFailed):
        pool.apply_async(tasks.square, (1,)).get(TIMEOUT_S)
    with pytest.raises(pool_party.InitializerFailed):
        list(pool.imap(tasks.square, [1]))
    pool.close()
    pool.join(timeout=TIMEOUT_S)


def test_initializer_that_kills_its_process_breaks_the_pool(context, tmp_path):
    log = tmp_path / "log"
    with pytest.raises(pool_party.InitializerFailed):
        with ComposablePool(2, tasks.exiting_init, (str(log), 3), context=context, kind="process") as pool:
            pool.apply_async(tasks.square, (1,)).get(TIMEOUT_S)
    assert len(log.read_text().splitlines()) <= 20


def test_locks_of_multiprocessing_are_refused_by_interpreters_with_advice(make_pool):
    # Of this context, since another one's lock, once it is garbage, calls the resource tracker from the collector. If
    # the tracker is at work then, it warns.
    lock = multiprocessing.get_context("fork").RLock()
    with pytest.raises(RuntimeError, match="through inheritance") as caught:
        make_pool(1, kind="interp", initializer=tasks.square, initargs=(lock,))
    assert any("Manager" in note for note in caught.value.__notes__)


def test_unpicklable_initargs_fail(remote_kind):
    context = "spawn" if remote_kind == "process" else None  # fork does not pickle
    with pytest.raises((TypeError, pool_party.InitializerFailed), match="pickle"):
        with ComposablePool(1, tasks.set_greeting, (tasks.make_lock(),), context=context, kind=remote_kind) as pool:
            pool.apply_async(tasks.square, (1,)).get(TIMEOUT_S)


def test_workers_that_the_pool_ends_are_not_lost(make_pool, kind):
    for _ in range(5):
        pool = make_pool(2, kind=kind)
        assert len(list(pool.imap_unordered(tasks.square, range(1000), 10))) == 1000
        pool.terminate()
        pool.join()
        assert pool.statistics().n_workers_lost == 0


# ---- maxtasksperchild ------------------------------------------------------


@pytest.mark.parametrize(("chunksize", "n_workers"), [(4, 1), (2, 2), (1, 4)])
def test_maxtasksperchild_counts_chunks(make_pool, remote_kind, chunksize, n_workers):
    pool = make_pool(1, maxtasksperchild=2, kind=remote_kind)
    assert len(set(pool.map(tasks.worker_token, range(8), chunksize))) == n_workers


def test_maxtasksperchild_of_one_gives_every_task_a_fresh_worker(make_pool, remote_kind):
    pool = make_pool(2, maxtasksperchild=1, kind=remote_kind)
    assert pool.map(tasks.count_up_local, range(10), 1) == [1] * 10
    stats = pool.statistics()
    assert stats.n_workers_started >= 10 and stats.n_workers_lost == 0


def test_thread_workers_are_replaced_too(make_pool):
    pool = make_pool(1, maxtasksperchild=2, kind="thread")
    assert [pool.apply(tasks.count_up_local) for _ in range(6)] == [1, 2, 1, 2, 1, 2]


def test_replaced_workers_are_initialized(make_pool, kind):
    pool = make_pool(1, tasks.set_local, ("set",), 2, kind=kind)
    assert pool.map(tasks.get_local, range(8), 1) == ["set"] * 8


def test_all_results_come_when_workers_are_replaced(make_pool, kind):
    pool = make_pool(3, maxtasksperchild=10, kind=kind)
    results = [pool.apply_async(tasks.square, (i,)) for i in range(200)]
    assert [result.get(TIMEOUT_S) for result in results] == [i * i for i in range(200)]


def test_close_right_away_with_maxtasksperchild(make_pool, kind):
    pool = make_pool(3, maxtasksperchild=1, kind=kind)
    results = [pool.apply_async(tasks.square, (i,)) for i in range(12)]
    pool.close()
    pool.join(timeout=TIMEOUT_S)
    assert [result.get(0) for result in results] == [i * i for i in range(12)]


def test_large_results_of_replaced_workers(make_pool, remote_kind):
    pool = make_pool(2, maxtasksperchild=1, kind=remote_kind)
    results = pool.starmap(tasks.make_pattern, [(300_000 + i, i) for i in range(12)], 1)
    assert results == [tasks.pattern(300_000 + i, i) for i in range(12)]


def test_statistics_follow_replacement(make_pool, kind):
    pool = make_pool(1, maxtasksperchild=1, kind=kind)
    pool.map(tasks.square, range(4), 1)
    gates.wait_until(
        lambda: re.search(r"workers=1 ", repr(pool)) and pool.statistics().n_workers_started >= 4,
        "the last worker is replaced",
    )
    assert pool.apply(functools.partial(tasks.square, 3)) == 9
