"""The options of calls: timeouts, deadlines, retries, and what cancelling does to running tasks.

Limits of time are short where a task never ends by itself, and generous where one is to end in time: no outcome depends
on the speed of the machine.
"""

import asyncio
import concurrent.futures
import functools
import gc
import multiprocessing
import os
import pickle
import signal
import warnings

import fresh
import gates
import properties
import pytest
import tasks

from pool_party import ComposablePool, PoolTerminated, TaskTimeout, WorkerLost

SHORT_S = 0.05  # the limit of tasks that never end by themselves
LONG_S = 300.0  # the limit of tasks that are to end before it


def n_attempts(path):
    return os.path.getsize(path) if os.path.exists(path) else 0


# ---- timeouts ----


def test_a_task_that_takes_too_long_fails_alone(make_pool, kind, gate):
    pool = make_pool(2, kind=kind)
    other = pool.apply_async(tasks.pass_gate, (gate.path, "other"))
    gate.wait_arrived()
    slow = pool.options(timeout_s=SHORT_S).apply_async(tasks.spin_forever, (gate.path,))
    with pytest.raises(TaskTimeout, match=r"ran for more than 0\.05 s") as raised:
        slow.get()
    assert isinstance(raised.value, TimeoutError) and isinstance(raised.value, multiprocessing.TimeoutError)
    assert not other.ready()
    gate.release()
    assert other.get() == "other"
    assert pool.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]
    gates.wait_until(lambda: pool.statistics().n_overdue == 0, "the task was interrupted, or its process has ended")
    assert pool.statistics().n_failed == 1


def test_a_process_is_replaced_with_every_start_method(make_pool, context, gate):
    pool = make_pool(1, kind="process", context=context)
    (before,) = (worker.pid for worker in pool._pool if pool.apply(os.getpid))
    slow = pool.options(timeout_s=SHORT_S).apply_async(tasks.spin_forever, (gate.path,))
    waiting = [pool.apply_async(tasks.square, (n,)) for n in range(20)]  # the worker to be killed is the only one
    with pytest.raises(TaskTimeout):
        slow.get()
    assert [result.get() for result in waiting] == [n * n for n in range(20)]
    assert pool.apply(os.getpid) != before
    assert pool.statistics().n_workers_lost == 1


def hold_one_that_is_overdue(pool, gate):
    """Time out a task that waits inside a C function. On a slow machine it may be interrupted before it gets there."""
    limit_s = SHORT_S
    while True:
        with pytest.raises(TaskTimeout):
            pool.options(timeout_s=limit_s).apply(tasks.pass_gate, (gate.path,))
        gates.wait_until(
            lambda: has_arrived(gate) or pool.statistics().n_overdue == 0, "the task is held, or has ended"
        )
        if pool.statistics().n_overdue:
            return
        limit_s *= 2


def has_arrived(gate):
    try:
        return gate.wait_arrived(timeout=0.001)
    except AssertionError:
        return False


@pytest.mark.parametrize("kind", ["thread", "interp"])
def test_what_nothing_can_interrupt_runs_on_and_is_counted(make_pool, kind, gate):
    pool = make_pool(2, kind=kind)
    hold_one_that_is_overdue(pool, gate)
    assert pool.statistics().n_overdue == 1
    assert pool.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]
    gate.close()
    gates.wait_until(lambda: pool.statistics().n_overdue == 0, "the task has ended")
    assert pool.options(timeout_s=LONG_S).map(tasks.square, range(50)) == [n * n for n in range(50)]


def test_the_time_that_a_task_waits_does_not_count(make_pool, kind, gate):
    pool = make_pool(1, kind=kind)
    first = pool.apply_async(tasks.pass_gate, (gate.path,))
    gate.wait_arrived()
    timed = pool.options(timeout_s=SHORT_S).apply_async(tasks.square, (3,))
    late = pool.options(deadline_s=4 * SHORT_S).apply_async(tasks.square, (3,))
    with pytest.raises(TaskTimeout, match=r"deadline has passed: 0\.2 s after the call"):
        late.get()
    assert not timed.ready() and timed.cancel()
    gate.release()
    first.get()
    assert pool.statistics().n_overdue == 0


def test_tasks_that_end_in_time(pool):
    timed = pool.options(timeout_s=LONG_S, deadline_s=LONG_S, retries=1)
    assert timed.apply(tasks.echo, (1,), {"timeout_s": 2}) == ((1,), {"timeout_s": 2})
    assert timed.submit(tasks.echo, 1, timeout_s=2).result() == ((1,), {"timeout_s": 2})
    assert timed.map(tasks.square, range(2000)) == [n * n for n in range(2000)]
    assert timed.starmap(tasks.multiply, [(2, 3), [4, 5]]) == [6, 20]
    assert timed.starmap_async(tasks.multiply, [(2, 3)]).get() == [6]
    assert list(timed.imap(tasks.square, range(300))) == [n * n for n in range(300)]
    assert list(timed.imap(tasks.square, iter(range(300)), buffersize=3)) == [n * n for n in range(300)]
    assert sorted(timed.imap_unordered(tasks.square, iter(range(300)))) == [n * n for n in range(300)]
    with pytest.raises(ZeroDivisionError):
        timed.apply(divmod, (1, 0))


async def collect(results):
    return [result async for result in results]


WITH_OPTIONS = {
    "apply": lambda pool, function, x, **options: [pool.apply(function, (x,), **options)],
    "apply_async": lambda pool, function, x, **options: [pool.apply_async(function, (x,), **options).get()],
    "map": lambda pool, function, x, **options: pool.map(function, [x], **options),
    "map_async": lambda pool, function, x, **options: pool.map_async(function, [x], **options).get(),
    "starmap": lambda pool, function, x, **options: pool.starmap(function, [(x,)], **options),
    "starmap_async": lambda pool, function, x, **options: pool.starmap_async(function, [(x,)], **options).get(),
    "imap": lambda pool, function, x, **options: list(pool.imap(function, [x], **options)),
    "imap_unordered": lambda pool, function, x, **options: list(pool.imap_unordered(function, [x], **options)),
    "amap": lambda pool, function, x, **options: asyncio.run(collect(pool.amap(function, [x], **options))),
}


@pytest.mark.parametrize("verb", WITH_OPTIONS)
def test_options_of_one_call(make_pool, kind, tmp_path, verb):
    pool = make_pool(1, kind=kind).options(retries=1)
    task = functools.partial(tasks.fail_until, 3)
    path = str(tmp_path / "attempts")
    with pytest.raises(LookupError, match="attempt 1"):
        WITH_OPTIONS[verb](pool, task, path)  # WorkerLost alone is tried again
    assert WITH_OPTIONS[verb](pool, task, path, retry_on=LookupError) == [3]
    with pytest.raises(TypeError, match="unexpected keyword argument 'timeout'; the options of a call are timeout_s, "):
        WITH_OPTIONS[verb](pool, task, path, timeout=1)
    with pytest.raises(ValueError, match="timeout_s must be more than 0"):
        WITH_OPTIONS[verb](pool, task, path, timeout_s=0)


def test_a_timeout_of_one_call(make_pool, kind, gate):
    pool = make_pool(1, kind=kind)
    with pytest.raises(TaskTimeout):
        pool.apply(tasks.spin_forever, (gate.path,), timeout_s=SHORT_S)
    with pytest.raises(ValueError, match="chunksize must be 1"):
        pool.map(tasks.square, range(4), 2, timeout_s=LONG_S)
    assert pool.map(tasks.square, range(4), 2) == [0, 1, 4, 9]


def test_options_of_an_executor(make_executor, kind, tmp_path):
    executor = make_executor(1, kind=kind)
    task = functools.partial(tasks.fail_until, 2)
    paths = [str(tmp_path / name) for name in "ab"]
    assert list(executor.map(task, paths, retries=1, retry_on=LookupError, progress=lambda done, total: None)) == [2, 2]
    assert executor.submit(tasks.echo, 1, timeout_s=2).result() == ((1,), {"timeout_s": 2})
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        executor.map(task, paths, timeout_ms=1)


@pytest.mark.parametrize("verb", ["map", "imap", "imap_unordered", "of_an_iterator"])
def test_one_item_of_many_takes_too_long(make_pool, kind, gate, verb):
    pool = make_pool(2, kind=kind)
    timed = pool.options(timeout_s=1.0)  # the other items take a thousandth of that
    task = functools.partial(tasks.spin_if, 3, gate.path)
    assert pool.map(task, [0] * 50, 1) == [0] * 50  # so that no worker has to import the function later
    if verb == "map":
        with pytest.raises(TaskTimeout):
            timed.map(task, range(8))
        return
    results = {
        "imap": lambda: timed.imap(task, range(8)),
        "imap_unordered": lambda: timed.imap_unordered(task, range(8)),
        "of_an_iterator": lambda: timed.imap(task, iter(range(8)), buffersize=2),
    }[verb]()
    values = []
    n_timeouts = 0
    for _ in range(8):
        try:
            values.append(next(results))
        except TaskTimeout:
            n_timeouts += 1
    assert n_timeouts == 1 and sorted(values) == [0, 1, 2, 4, 5, 6, 7]
    with pytest.raises(StopIteration):
        next(results)


def test_a_task_that_refuses_sigterm_is_killed(make_pool, gate):
    pool = make_pool(1, kind="process")
    before = pool.apply(os.getpid)
    result = pool.options(timeout_s=10 * SHORT_S).apply_async(tasks.ignore_sigterm, (gate.path,))
    with pytest.raises(TaskTimeout):
        result.get()
    assert pool.apply(os.getpid) != before


def test_an_executor_raises_timeouts_from_futures(make_executor, kind, gate):
    executor = make_executor(2, kind=kind)
    timed = executor.options(timeout_s=SHORT_S)
    slow = timed.submit(tasks.spin_forever, gate.path)
    assert isinstance(slow.exception(), TaskTimeout)
    done, _ = concurrent.futures.wait([slow])
    assert done == {slow} and not slow.cancelled()
    assert list(executor.options(timeout_s=LONG_S).map(tasks.square, range(20), buffersize=3)) == [
        n * n for n in range(20)
    ]


# ---- deadlines ----


def test_a_running_task_whose_deadline_passes(make_pool, kind, gate):
    pool = make_pool(1, kind=kind)
    with pytest.raises(TaskTimeout, match="deadline"):
        pool.options(deadline_s=SHORT_S).apply(tasks.spin_forever, (gate.path,))
    assert pool.apply(tasks.square, (3,)) == 9


def test_a_map_fails_as_a_whole_at_its_deadline(make_pool, kind, gate):
    pool = make_pool(2, kind=kind)
    call = pool.options(deadline_s=SHORT_S).map_async(functools.partial(tasks.spin_if, 3, gate.path), range(4000), 1)
    with pytest.raises(TaskTimeout, match="deadline"):
        call.get()
    assert pool.map(tasks.square, range(100)) == [n * n for n in range(100)]
    gates.wait_until(lambda: pool.statistics().n_pending == 0, "nothing is left of it")


def test_imap_raises_once_at_its_deadline(make_pool, kind, gate):
    pool = make_pool(2, kind=kind)
    results = pool.options(deadline_s=SHORT_S).imap(functools.partial(tasks.spin_if, 0, gate.path), range(10))
    with pytest.raises(TaskTimeout):
        next(results)
    with pytest.raises(StopIteration):
        next(results)
    assert pool.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]


def test_a_deadline_tells_why_earlier_attempts_failed(make_pool, kind, tmp_path):
    pool = make_pool(1, kind=kind)
    pool.apply(abs, (1,))  # the worker has started
    for deadline_s in (1.0, 10.0, 60.0):  # on a busy machine, no attempt may end within the first
        patient = pool.options(deadline_s=deadline_s, retries=10**6, retry_on=ValueError)
        with pytest.raises((TaskTimeout, ValueError)) as raised:
            patient.apply(tasks.fail_at_first, (str(tmp_path / str(deadline_s)), 10**9, "raise"))
        assert isinstance(raised.value, TaskTimeout)
        if hasattr(raised.value, "__notes__"):
            break
    assert raised.value.__notes__[0].endswith("ValueError('attempt 1')")


# ---- chunks ----


def test_each_item_is_a_task_if_it_is_timed(pool):
    before = pool.statistics().n_submitted
    assert pool.options(timeout_s=LONG_S).map(tasks.square, range(40)) == [n * n for n in range(40)]
    assert pool.statistics().n_submitted == before + 40


@pytest.mark.parametrize("options", [{"timeout_s": 1}, {"retries": 1}])
def test_chunks_are_refused_if_items_are_timed(pool, make_executor, options):
    for verb in (pool.options(**options).map, pool.options(**options).imap, pool.options(**options).map_async):
        with pytest.raises(ValueError, match="chunksize must be 1, not 2"):
            verb(tasks.square, range(4), 2)
    with pytest.raises(ValueError, match="chunksize must be 1, not 2"):
        make_executor(1, kind="thread").options(**options).map(tasks.square, range(4), chunksize=2)


def test_a_deadline_allows_chunks(pool):
    assert pool.options(deadline_s=LONG_S).map(tasks.square, range(40), 7) == [n * n for n in range(40)]
    assert list(pool.options(deadline_s=LONG_S).imap(tasks.square, iter(range(40)), 7)) == [n * n for n in range(40)]


# ---- retries ----

VERBS = {
    "apply": lambda pool, paths: [pool.apply(tasks.fail_at_first_star, (args,)) for args in paths],
    "submit": lambda pool, paths: [f.result() for f in [pool.submit(tasks.fail_at_first, *args) for args in paths]],
    "map": lambda pool, paths: pool.map(tasks.fail_at_first_star, paths),
    "starmap": lambda pool, paths: pool.starmap(tasks.fail_at_first, paths),
    "imap": lambda pool, paths: list(pool.imap(tasks.fail_at_first_star, paths)),
    "imap_of_an_iterator": lambda pool, paths: list(pool.imap(tasks.fail_at_first_star, iter(paths), buffersize=2)),
    "imap_unordered": lambda pool, paths: sorted(pool.imap_unordered(tasks.fail_at_first_star, iter(paths))),
    "amap": lambda pool, paths: asyncio.run(_amap(pool, tasks.fail_at_first_star, paths)),
    "a_function_without_a_name": lambda pool, paths: pool.map(lambda args: tasks.fail_at_first(*args), paths),
}


async def _amap(pool, function, items):
    return [value async for value in pool.amap(function, items)]


FAILURES = [
    *(("raise", kind, verb) for kind in ("thread", "process", "interp") for verb in VERBS),
    *(("die", "process", verb) for verb in ("apply", "map", "imap_of_an_iterator")),
]


@pytest.mark.parametrize(("how", "kind", "verb"), FAILURES)
def test_failed_tasks_are_tried_again(make_pool, kind, verb, how, tmp_path):
    pool = make_pool(2, kind=kind)
    options = {"retries": 2} if how == "die" else {"retries": 2, "retry_on": ValueError}
    items = [(str(tmp_path / str(n)), n % 3, how, n) for n in range(6)]
    assert VERBS[verb](pool.options(**options), items) == list(range(6))
    assert [n_attempts(path) for path, *_ in items] == [1 + n % 3 for n in range(6)]
    assert pool.statistics().n_retried == 6
    statistics = pool.statistics()
    assert (statistics.n_failed, statistics.n_submitted, statistics.n_pending) == (0, 6, 0)


def test_a_worker_dies_in_the_attempt_after_one_that_it_has_answered(make_pool, tmp_path):
    pool = make_pool(1, kind="process")
    view = pool.options(retries=2, retry_on=(ValueError, WorkerLost))
    path = str(tmp_path / "attempts")
    assert view.apply_async(tasks.follow_script, (path, ["raise", "die", "end"])).get(LONG_S) == 3


def test_the_last_error_has_the_earlier_ones_as_notes(pool, tmp_path):
    path = str(tmp_path / "attempts")
    with pytest.raises(ValueError, match="attempt 3") as raised:
        pool.options(retries=2, retry_on=(KeyError, ValueError)).apply(tasks.fail_at_first, (path, 9, "raise"))
    assert raised.value.__notes__[1:] == [
        "attempt 1 of 3 failed: ValueError('attempt 1')",
        "attempt 2 of 3 failed: ValueError('attempt 2')",
    ]
    assert n_attempts(path) == 3


@pytest.mark.parametrize("options", [{"retries": 3}, {"retries": 3, "retry_on": KeyError}, {"retry_on": ValueError}])
def test_other_errors_are_not_tried_again(pool, tmp_path, options):
    path = str(tmp_path / "attempts")
    with pytest.raises(ValueError, match="attempt 1") as raised:
        pool.options(**options).apply(tasks.fail_at_first, (path, 9, "raise"))
    assert not [note for note in raised.value.__notes__ if note.startswith("attempt")]
    assert n_attempts(path) == 1


def test_a_task_that_took_too_long_is_tried_again(make_pool, kind, tmp_path):
    pool = make_pool(2, kind=kind)
    timed = pool.options(timeout_s=1.0, retries=2, retry_on=TaskTimeout)
    assert (
        pool.starmap(tasks.multiply, [(2, 3)] * 50, 1) == [6] * 50
    )  # so that no worker has to import the module later
    items = [(str(tmp_path / str(n)), int(n == 1), "spin", n) for n in range(4)]
    assert timed.starmap(tasks.fail_at_first, items) == [0, 1, 2, 3]
    assert n_attempts(items[1][0]) >= 2
    assert pool.statistics().n_failed == 0


@pytest.mark.parametrize("verb", ["apply", "imap"])
def test_the_attempt_that_took_too_long_has_no_say_any_more(make_pool, gate, verb):
    """It ends while the next attempt runs, and its outcome, a failure or not, is not the task's."""
    pool = make_pool(2, kind="thread")
    begun = []

    def task(_):
        begun.append(None)
        if len(begun) == 1:
            tasks.pass_gate(gate.path)  # it cannot be interrupted, and is interrupted at the end of it
        return tasks.pass_gate(gate.path, "second")

    timed = pool.options(timeout_s=SHORT_S, retries=1, retry_on=TaskTimeout)
    with pytest.raises(TaskTimeout) as raised:
        timed.apply(task, (0,)) if verb == "apply" else next(timed.imap(task, [0]))
    assert len(raised.value.__notes__) == 1 and len(begun) <= 2
    gate.close()
    gates.wait_until(lambda: pool.statistics().n_overdue == 0, "both attempts have ended")
    assert pool.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]


def test_a_closed_pool_still_tries_again(make_pool, tmp_path):
    pool = make_pool(1, kind="process")
    results = [
        pool.options(retries=2).apply_async(tasks.fail_at_first, (str(tmp_path / str(n)), 2, "die", n))
        for n in range(3)
    ]
    pool.close()
    pool.join()
    assert [result.get() for result in results] == [0, 1, 2]


def test_arguments_that_do_not_pickle_again_are_the_outcome(make_pool, tmp_path):
    pool = make_pool(1, kind="process")
    paths = [str(tmp_path / "attempts"), 1, "die"]
    result = pool.options(retries=1).apply_async(tasks.fail_at_first_star, (_PicklesOnce(paths),))
    with pytest.raises(ValueError, match="once is enough"):
        result.get()
    assert pool.apply(tasks.square, (3,)) == 9


class _PicklesOnce:
    def __init__(self, value):
        self.value = value
        self.n = 0

    def __reduce__(self):
        self.n += 1
        if self.n > 1:
            raise ValueError("once is enough")
        return tuple, (self.value,)


# ---- the end of a pool ----


def test_terminating_a_pool_with_timed_calls(make_pool, kind, gate):
    pool = make_pool(1, kind=kind)
    options = {"timeout_s": LONG_S, "deadline_s": LONG_S, "retries": 3, "retry_on": Exception}
    results = [pool.options(**options).apply_async(tasks.spin_forever, (gate.path,)) for _ in range(3)]
    gate.wait_arrived()
    pool.terminate()
    for result in results:
        with pytest.raises(PoolTerminated):
            result.get()
    pool.join(30)
    assert not any(thread.name == "pool_party-supervisor" and thread.is_alive() for thread in _threads_of(pool))


def test_closing_a_pool_waits_for_timed_calls(make_pool, kind, gate):
    pool = make_pool(1, kind=kind)
    slow = pool.options(timeout_s=SHORT_S).apply_async(tasks.spin_forever, (gate.path,))
    late = pool.options(timeout_s=LONG_S).apply_async(tasks.square, (3,))
    pool.close()
    pool.join()
    assert late.get() == 9
    with pytest.raises(TaskTimeout):
        slow.get()


def _threads_of(pool):
    supervisor = pool._engine._supervisor
    return [] if supervisor is None or supervisor._thread is None else [supervisor._thread]


# ---- cancelling ----


def test_a_running_task_is_killed_when_it_is_cancelled(make_pool, gate):
    pool = make_pool(2, kind="process")
    other = pool.apply_async(tasks.pass_gate, (gate.path, "other"))
    result = pool.options(on_cancel="kill").apply_async(tasks.pass_gate, (gate.path,))
    pids = set(gate.wait_arrived(2))
    assert result.cancel() and not result.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        result.get()
    gates.wait_until(lambda: pool.statistics().n_workers_lost == 1, "its process was killed")
    gate.close()
    assert other.get() == "other"
    assert len(pids & {pool.apply(os.getpid) for _ in range(10)}) <= 1


def test_a_running_future_is_killed_when_it_is_cancelled(make_executor, gate):
    executor = make_executor(1, kind="process")
    future = executor.submit(tasks.pass_gate, gate.path)
    waiting = executor.submit(tasks.square, 3)
    gate.wait_arrived()
    assert not future.cancel() and not future.cancel(on_cancel="abandon")
    assert future.cancel(on_cancel="kill") and future.cancelled() and future.cancel()
    assert waiting.result() == 9
    done, _ = concurrent.futures.wait([future])
    assert done == {future}


def test_a_map_is_killed_when_it_is_cancelled(make_pool, gate):
    pool = make_pool(2, kind="process")
    result = pool.options(on_cancel="kill").map_async(functools.partial(tasks.pass_gate, gate.path), range(10))
    gate.wait_arrived(2)
    assert result.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        result.get()
    assert pool.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]


def test_a_running_task_goes_on_by_default(pool, gate):
    result = pool.apply_async(tasks.pass_gate, (gate.path, "passed"))
    gate.wait_arrived()
    assert not result.cancel() and not result.cancel(on_cancel="wait")
    gate.release()
    assert result.get() == "passed"


def test_a_waiting_task_is_withdrawn(pool, gate):
    held = [pool.apply_async(tasks.pass_gate, (gate.path,)) for _ in range(2)]
    gate.wait_arrived(2)
    waiting = pool.apply_async(tasks.exit_now, (1,))
    assert waiting.cancel()
    gate.release(2)
    for result in held:
        result.get()
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.get()


@pytest.mark.parametrize("kind", ["thread", "interp"])
def test_only_processes_can_be_killed(make_pool, kind):
    pool = make_pool(1, kind=kind)
    with pytest.raises(ValueError, match="no worker of kind"):
        pool.options(on_cancel="kill")
    with pytest.raises(ValueError, match="no worker of kind"):
        pool.apply_async(tasks.square, (3,)).cancel(on_cancel="kill")


def test_awaiting_follows_the_option(make_pool, gate):
    pool = make_pool(1, kind="process")

    async def main():
        result = pool.options(on_cancel="kill").apply_async(tasks.pass_gate, (gate.path,))
        awaiting = asyncio.ensure_future(result.outcome())
        await asyncio.sleep(0)  # so that it has begun: from Python 3.14 on the next line may return at once
        await asyncio.to_thread(gate.wait_arrived)
        awaiting.cancel()
        await asyncio.wait([awaiting])
        assert awaiting.cancelled()

    asyncio.run(main())
    assert pool.apply(tasks.square, (3,)) == 9
    assert pool.statistics().n_workers_lost == 1


# ---- views ----


def test_views_add_options(pool):
    view = pool.options(timeout_s=1).options(retries=2)
    assert (view._options.timeout_s, view._options.retries) == (1, 2)
    assert view.options(timeout_s=None)._options.timeout_s is None
    assert pool._options is None
    assert isinstance(view, ComposablePool) and view.kind == pool.kind


def test_a_view_keeps_its_pool_alive():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        view = ComposablePool(1, kind="thread").options(timeout_s=LONG_S)
        gc.collect()
        assert view.apply(tasks.square, (3,)) == 9
        view.options(retries=1)
        gc.collect()
        with view:
            assert view.apply(tasks.square, (4,)) == 16
        view.join()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"timeout_s": 0}, ValueError),
        ({"timeout_s": -1}, ValueError),
        ({"timeout_s": float("nan")}, ValueError),
        ({"timeout_s": "1"}, TypeError),
        ({"timeout_s": True}, TypeError),
        ({"deadline_s": 0}, ValueError),
        ({"retries": -1}, ValueError),
        ({"retries": 1.5}, TypeError),
        ({"retries": None}, TypeError),
        ({"retry_on": ValueError("x")}, TypeError),
        ({"retry_on": [ValueError]}, TypeError),
        ({"retry_on": (ValueError, int)}, TypeError),
        ({"on_cancel": "perhaps"}, ValueError),
        ({"timeout": 1}, TypeError),
    ],
)
def test_wrong_options(pool, options, error):
    with pytest.raises(error):
        pool.options(**options)


def test_endless_limits(pool):
    endless = pool.options(timeout_s=float("inf"), deadline_s=1e300)
    assert endless.map(tasks.square, []) == endless.map(tasks.square, []) == []
    assert endless.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]


def test_the_error_can_be_pickled():
    error = pickle.loads(pickle.dumps(TaskTimeout("too long")))
    assert type(error) is TaskTimeout and str(error) == "too long" and isinstance(error, Exception)


# ---- what it costs ----


def test_calls_without_limits_start_no_thread(make_pool, kind):
    pool = make_pool(1, kind=kind)
    assert pool.options(retries=2, on_cancel="wait").apply(tasks.square, (3,)) == 9
    assert _threads_of(pool) == []
    assert pool.options(timeout_s=LONG_S).apply(tasks.square, (3,)) == 9
    assert len(_threads_of(pool)) == 1


def test_nothing_is_watched_once_no_timed_call_is_left(make_pool):
    pool = make_pool(1, kind="thread")
    pool.options(timeout_s=0.2, deadline_s=LONG_S).map_async(tasks.square, range(5)).wait()
    supervisor = pool._engine._supervisor
    gates.wait_until(lambda: supervisor._shortest_s == float("inf"), "the supervisor looks no more")
    gates.wait_until(lambda: not supervisor._deadlines, "the deadline is forgotten")


def test_signal_handlers_may_submit_timed_calls(make_pool, kind):
    pool = make_pool(1, kind=kind)
    results = []
    before = signal.signal(
        signal.SIGUSR1, lambda *_: results.append(pool.options(timeout_s=LONG_S).apply_async(tasks.square, (3,)))
    )
    try:
        for _ in range(20):
            os.kill(os.getpid(), signal.SIGUSR1)
            pool.options(timeout_s=LONG_S).apply(tasks.square, (2,))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert results and all(result.get() == 9 for result in results)


FORKING = """
import os
import tasks
from pool_party import ComposablePool, PoolPartyError, TaskTimeout

def times_out(pool):
    try:
        pool.options(timeout_s=0.05).apply(tasks.spin_forever, ("",))
    except TaskTimeout:
        return True

with ComposablePool(1, kind="thread") as pool:
    assert times_out(pool)  # so that the supervisor's thread exists, which the child does not have
    child = os.fork()
    if child == 0:
        try:
            pool.options(timeout_s=0.05).apply(abs, (-1,))
        except PoolPartyError:
            with ComposablePool(1, kind="thread") as own:
                os._exit(7 if times_out(own) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert times_out(pool)
"""


def test_a_forked_child_may_time_its_own_calls():
    completed = fresh.run(["-c", FORKING])
    assert completed.returncode == 0, completed


# ---- random programs ----

ERRORS = {"raise": ValueError, "die": WorkerLost, "spin": TaskTimeout}


def possible_outcomes(script, options):
    """What may become of a task, by a model that knows no pool: a set of (its error or None, the number of attempts).

    A limit of time may end any attempt, since a machine may be slow, even before the attempt is counted.
    """
    found = set()
    states = [(1, 0)]  # an attempt that may be under way, and how many were counted before it
    for attempt, n_counted in states:
        how = script[min(n_counted, len(script) - 1)]
        endings = {(ERRORS.get(how), n_counted + 1)}
        if "timeout_s" in options:
            endings |= {(TaskTimeout, n_counted), (TaskTimeout, n_counted + 1)}
        for error, n in endings:
            if error is not None and issubclass(error, options["retry_on"]) and attempt <= options["retries"]:
                states.append((attempt + 1, n))
            else:
                found.add((error, n))
    return found


def make_task(rng, kind):
    failures = ["raise", "spin", "die"] if kind == "process" else ["raise", "spin"]
    script = [rng.choice([*failures, "end"]) for _ in range(rng.randint(0, 3))] + ["end"]
    options = {"retries": rng.randint(0, 3), "retry_on": tuple(e for e in ERRORS.values() if rng.random() < 0.7)}
    if "spin" in script or rng.random() < 0.3:
        options["timeout_s"] = rng.choice([0.02, 0.05])
    if kind == "process" and rng.random() < 0.3:
        options["on_cancel"] = "kill"
    return script, options, rng.random() < 0.2


def error_of(result):
    try:
        result.get()
    except Exception as error:
        return type(error)
    return None


@properties.check(n_runs=8)
def test_each_task_has_one_outcome_of_those_that_are_possible(rng, make_pool, kind, tmp_path_factory):
    pool = make_pool(2, kind=kind)
    made = [make_task(rng, kind) for _ in range(8)]
    folder = tmp_path_factory.mktemp("attempts")
    called, results, cancelled = [[] for _ in made], [], set()
    for n, (script, options, _) in enumerate(made):
        view = pool.options(**options)
        args = str(folder / str(n)), script
        results.append(view.apply_async(tasks.follow_script, args, {}, called[n].append, called[n].append))
    for n, (_, _, is_cancelled) in enumerate(made):
        if is_cancelled and results[n].cancel():
            cancelled.add(n)
    for n, (script, options, _) in enumerate(made):
        error, path = error_of(results[n]), folder / str(n)
        assert len(called[n]) == 1
        assert (error is concurrent.futures.CancelledError) == (n in cancelled)
        if n not in cancelled:
            possible = possible_outcomes(script, options)
            assert error in {one for one, _ in possible}, (script, options)
            if "timeout_s" not in options:  # otherwise an attempt may still be counted after its time was up
                assert (error, n_attempts(path)) in possible, (script, options)
            assert n_attempts(path) <= 1 + options["retries"]
    gates.wait_until(lambda: pool.statistics().n_overdue == 0, "every task has ended")
    assert pool.map(tasks.square, range(20)) == [n * n for n in range(20)]
    pool.terminate()
