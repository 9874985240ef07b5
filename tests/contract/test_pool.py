"""multiprocessing.Pool's contract, line by line, for every kind of worker."""

import functools
import gc
import logging
import multiprocessing
import multiprocessing.pool
import operator
import os
import pickle
import re
import threading
import weakref

import gates
import pytest
import tasks

import pool_party
from pool_party import ComposablePool, InterpreterPool, ProcessPool, ThreadPool

TIMEOUT_S = 30  # for what must come: long enough for a busy machine, and never waited out


# ---- construction ----------------------------------------------------------


def test_default_number_of_workers_is_that_of_usable_cpus(make_pool, kind):
    count = getattr(os, "process_cpu_count", lambda: len(os.sched_getaffinity(0)))()
    assert make_pool(kind=kind).statistics().n_workers == count


def test_default_kind_is_process(make_pool):
    assert make_pool(1).statistics().kind == "process"


@pytest.mark.parametrize(("alias", "canonical"), [("subprocess", "process"), ("subinterpreter", "interp")])
def test_aliases_of_kinds(make_pool, alias, canonical):
    assert make_pool(1, kind=alias).statistics().kind == canonical


@pytest.mark.parametrize(
    ("cls", "name"), [(ThreadPool, "thread"), (ProcessPool, "process"), (InterpreterPool, "interp")]
)
def test_named_pools(cls, name):
    with cls(2) as pool:
        assert isinstance(pool, ComposablePool)
        assert pool.statistics().kind == name
        assert pool.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]


def test_kinds_run_where_they_say(make_pool, kind):
    here, worker = tasks.place(), make_pool(1, kind=kind).apply(tasks.place)
    assert (worker[0] == here[0], worker == here) == {
        "thread": (True, True),
        "process": (False, False),
        "interp": (True, False),
    }[kind]


def test_unknown_kind_is_named(make_pool):
    with pytest.raises(ValueError, match="'fibre'"):
        make_pool(1, kind="fibre")


def test_kind_is_keyword_only():
    with pytest.raises(TypeError):
        ComposablePool(1, None, (), None, None, "thread")


@pytest.mark.parametrize("processes", [0, -1])
def test_no_workers_is_an_error(kind, processes):
    with pytest.raises(ValueError, match="Number of processes must be at least 1"):
        ComposablePool(processes, kind=kind)


@pytest.mark.parametrize("processes", ["2", 2.0])
def test_what_is_no_number_of_workers_is_named(kind, processes):
    with pytest.raises(TypeError, match=f"the number of workers must be an int or None, not {processes!r}"):
        ComposablePool(processes, kind=kind)


@pytest.mark.parametrize("value", [0, -1, 0.5, "12"])
def test_maxtasksperchild_must_be_a_positive_int(kind, value):
    with pytest.raises(ValueError, match="maxtasksperchild must be a positive int or None"):
        ComposablePool(1, maxtasksperchild=value, kind=kind)


def test_initializer_must_be_callable(kind):
    with pytest.raises(TypeError, match="initializer must be a callable"):
        ComposablePool(1, initializer=1, kind=kind)


def test_positional_arguments_in_the_order_of_the_original(make_pool, kind):
    pool = make_pool(1, tasks.set_greeting, ("hello",), 100, None, kind=kind)
    assert pool.apply(tasks.get_greeting) == "hello"


def test_workers_start_eagerly(make_pool, kind):
    assert make_pool(3, kind=kind).statistics().n_workers == 3


def test_private_attributes_that_people_read(make_pool, kind):
    pool = make_pool(3, kind=kind)
    assert pool._processes == len(pool._pool) == 3
    assert pool._state == multiprocessing.pool.RUN
    assert pool._ctx.get_start_method() in multiprocessing.get_all_start_methods()


def test_a_pool_cannot_be_pickled(pool):
    with pytest.raises(NotImplementedError, match="cannot be passed between processes or pickled"):
        pickle.dumps(pool)


# ---- process workers and start methods -------------------------------------


def test_unknown_start_method_is_named(make_pool, kind):
    with pytest.raises(ValueError, match="cannot find context for 'frok'"):
        make_pool(1, kind=kind, context="frok")


def test_start_method_of_the_context_is_used(make_pool, start_method, context):
    pool = make_pool(2, context=context, kind="process")
    assert pool._ctx.get_start_method() == start_method
    name, identity, daemon = pool.apply(tasks.process_name)
    prefix = {"fork": "Fork", "forkserver": "ForkServer", "spawn": "Spawn"}[start_method]
    assert re.fullmatch(prefix + r"PoolWorker-[\d:]+", name)
    assert all(isinstance(number, int) for number in identity) and identity
    assert daemon is False


def test_every_verb_under_every_start_method(make_pool, context):
    pool = make_pool(2, context=context, kind="process")
    assert pool.apply(tasks.multiply, (6,), {"y": 7}) == 42
    assert pool.map(tasks.square, range(20)) == [x * x for x in range(20)]
    assert pool.starmap(tasks.multiply, [(1, 2), (3, 4)]) == [2, 12]
    assert list(pool.imap(tasks.square, range(20), 3)) == [x * x for x in range(20)]
    assert sorted(pool.imap_unordered(tasks.square, range(20))) == [x * x for x in range(20)]
    offset = 5
    assert pool.map(lambda x: x + offset, range(5)) == [5, 6, 7, 8, 9]


def test_initializer_and_replacement_under_every_start_method(make_pool, context):
    pool = make_pool(1, tasks.set_greeting, ("hello",), 1, context, kind="process")
    answers = [pool.apply(tasks.get_greeting_and_pid) for _ in range(3)]
    assert [greeting for greeting, _ in answers] == ["hello"] * 3
    assert len({pid for _, pid in answers}) == 3


def test_error_under_every_start_method(make_pool, context):
    pool = make_pool(2, context=context, kind="process")
    with pytest.raises(ValueError, match="wrong"):
        pool.apply(tasks.raise_named, ("ValueError", "wrong"))
    with pytest.raises(pool_party.WorkerLost):
        pool.apply(tasks.exit_now, (3,))
    assert pool.apply(tasks.square, (3,)) == 9


def test_process_workers_may_have_children(make_pool, context):
    pool = make_pool(1, context=context, kind="process")
    assert pool.apply(tasks.run_child_process, (7,)) == 49


# ---- repr and statistics ---------------------------------------------------

REPR = re.compile(
    r"<\w+ kind=(?P<kind>\w+) state=(?P<state>\w+) workers=(?P<workers>\d+)"
    r" pending=(?P<pending>\d+) completed=(?P<completed>\d+)>"
)


def read_repr(pool):
    match = REPR.fullmatch(repr(pool))
    assert match, repr(pool)
    return match.groupdict()


def test_repr_shows_kind_state_and_counts(make_pool, kind):
    pool = make_pool(2, kind=kind)
    for i in range(10):
        pool.apply(tasks.square, (i,))
    assert read_repr(pool) == {
        "kind": kind,
        "state": "RUN",
        "workers": "2",
        "pending": "0",
        "completed": "10",
    }


def test_repr_follows_the_state(make_pool, kind):
    pool = make_pool(1, kind=kind)
    assert read_repr(pool)["state"] == "RUN"
    pool.close()
    assert read_repr(pool)["state"] == "CLOSE"
    pool.terminate()
    assert read_repr(pool)["state"] == "TERMINATE"


def test_repr_shows_what_is_pending(make_pool, kind, gate):
    pool = make_pool(1, kind=kind)
    results = [pool.apply_async(tasks.pass_gate, (gate.path, i)) for i in range(3)]
    gate.wait_arrived()
    assert read_repr(pool)["pending"] == "3"
    gate.release(3)
    assert [result.get(TIMEOUT_S) for result in results] == [0, 1, 2]
    assert read_repr(pool)["pending"] == "0"


def test_statistics_count_every_call(make_pool, kind):
    pool = make_pool(2, kind=kind)
    for i in range(3):
        pool.apply(tasks.square, (i,))
    for _ in range(2):
        with pytest.raises(ValueError):
            pool.apply(tasks.raise_named, ("ValueError",))
    stats = pool.statistics()
    assert (stats.kind, stats.n_workers, stats.n_workers_started) == (kind, 2, 2)
    assert (stats.n_submitted, stats.n_failed, stats.n_pending) == (5, 2, 0)
    assert stats.n_completed in (3, 5)
    assert stats.n_workers_lost == 0


def test_statistics_are_a_frozen_snapshot(make_pool, kind):
    pool = make_pool(1, kind=kind)
    before = pool.statistics()
    pool.apply(tasks.square, (2,))
    assert before.n_submitted == 0
    with pytest.raises(AttributeError):
        before.n_submitted = 5


# ---- apply and apply_async -------------------------------------------------


def test_apply(pool):
    assert pool.apply(tasks.square, (5,)) == 25
    assert pool.apply(tasks.square, (), {"x": 3}) == 9
    assert pool.apply(tasks.multiply, [4], {"y": 5}) == 20
    assert pool.apply(func=tasks.affine, args=(2,), kwds={"a": 3, "b": 1}) == 7


def test_apply_async(pool):
    results = [pool.apply_async(tasks.square, (i,)) for i in range(100)]
    assert [result.get(TIMEOUT_S) for result in results] == [i * i for i in range(100)]


def test_apply_async_takes_its_arguments_by_position_and_name(pool):
    assert pool.apply_async(tasks.affine, (2,), {"a": 3}, None, None).get(TIMEOUT_S) == 6
    result = pool.apply_async(func=tasks.square, args=(2,), kwds={}, callback=None, error_callback=None)
    assert result.get(timeout=TIMEOUT_S) == 4


def test_result_protocol_before_and_after(make_pool, kind, gate):
    pool = make_pool(1, kind=kind)
    result = pool.apply_async(tasks.pass_gate, (gate.path, "through"))
    gate.wait_arrived()
    assert not result.ready()
    with pytest.raises(ValueError, match="not ready"):
        result.successful()
    assert result.wait(0.01) is None
    assert not result.ready()
    gate.release()
    result.wait(TIMEOUT_S)
    assert result.ready() and result.successful()
    assert result.get() == result.get(0) == "through"


def test_result_of_a_failed_call(pool):
    result = pool.apply_async(tasks.raise_named, ("ValueError", "no"))
    result.wait(TIMEOUT_S)
    assert result.ready() and not result.successful()
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            result.get()


@pytest.mark.parametrize("timeout", [0, 0.01, -1])
def test_get_times_out_with_multiprocessings_error_and_can_be_repeated(make_pool, kind, gate, timeout):
    pool = make_pool(1, kind=kind)
    result = pool.apply_async(tasks.pass_gate, (gate.path, 1))
    gate.wait_arrived()
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(timeout)
    gate.release()
    assert result.get(TIMEOUT_S) == 1


@pytest.mark.parametrize(
    ("func", "args", "expected"),
    [
        pytest.param(len, ([1, 2, 3],), 3, id="builtin"),
        pytest.param(int, ("42",), 42, id="class"),
        pytest.param(functools.partial(tasks.multiply, 3), (4,), 12, id="partial"),
        pytest.param(tasks.Adder(10), (5,), 15, id="callable-object"),
        pytest.param(tasks.Adder(10).add, (5,), 15, id="bound-method"),
        pytest.param(tasks.Adder.make, (5,), 5, id="class-method"),
        pytest.param(tasks.Adder.twice, (5,), 10, id="static-method"),
        pytest.param(operator.itemgetter(1), ("abc",), "b", id="itemgetter"),
        pytest.param("{}-{}".format, (1, 2), "1-2", id="method-of-a-string"),
        pytest.param(lambda x: x + 1, (1,), 2, id="lambda"),
        pytest.param(lambda x, y=5: x * y, (2,), 10, id="lambda-with-default"),
    ],
)
def test_callables_of_every_sort(pool, func, args, expected):
    assert pool.apply(func, args) == expected
    assert pool.starmap(func, [args] * 3) == [expected] * 3


def test_arguments_of_no_initializer_are_not_looked_at(kind, make_pool, make_executor):
    """As with the standard library's pools, where wrappers pass None for both."""
    assert make_pool(1, None, None, kind=kind).map(tasks.square, [3]) == [9]
    assert list(make_executor(1, initializer=None, initargs=None, kind=kind).map(tasks.square, [3])) == [9]


def test_closures_and_nested_functions(pool):
    factor = 7

    def scale(x):
        return helper(x) * factor

    def helper(x):
        return x + 1

    assert pool.map(scale, range(4)) == [7, 14, 21, 28]


def test_recursive_closure(pool):
    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)

    assert pool.apply(factorial, (10,)) == 3628800


def test_something_not_callable_fails_its_own_call(pool):
    with pytest.raises(TypeError, match="not callable"):
        pool.apply_async(5, ()).get(TIMEOUT_S)
    assert pool.apply(tasks.square, (2,)) == 4


async def asynchronous(x):
    return x


async def generating(x):
    yield x


@pytest.mark.parametrize("function", [asynchronous, generating])
def test_asynchronous_functions_are_refused(pool, function):
    calls = [
        (pool.apply, function, (1,)),
        (pool.apply_async, function, (1,)),
        (pool.submit, function, 1),
        (pool.map, function, [1]),
        (pool.starmap, function, [(1,)]),
        (pool.imap, function, [1]),
        (pool.imap_unordered, function, [1]),
    ]
    for call, *args in calls:
        with pytest.raises(TypeError, match=f"^{function.__name__} is asynchronous.*asyncio.run"):
            call(*args)
    assert pool.apply(tasks.square, (2,)) == 4


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_workers", "processes"),
        ("n_worker", "processes"),
        ("max_tasks_per_child", "maxtasksperchild"),
        ("knd", "kind"),
    ],
)
def test_the_error_for_an_unknown_argument_says_which_one_is_meant(name, meant):
    with pytest.raises(TypeError, match=f"^ThreadPool has no argument '{name}': did you mean '{meant}'"):
        pool_party.ThreadPool(1, **{name: 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'elephant'"):
        pool_party.ComposablePool(elephant=1)


def test_the_error_for_an_unknown_name_says_which_one_is_meant():
    with pytest.raises(AttributeError, match=r"'Pool': did you mean 'ComposablePool'\?"):
        _ = pool_party.Pool
    with pytest.raises(AttributeError, match=r"'elephant'$"):
        _ = pool_party.elephant


def test_wrong_number_of_arguments_fails_its_own_call(pool):
    with pytest.raises(TypeError, match="argument"):
        pool.apply(tasks.square, (1, 2, 3))


# ---- map, starmap ----------------------------------------------------------


@pytest.mark.parametrize("chunksize", [None, 1, 2, 3, 7, 100])
@pytest.mark.parametrize("n", [0, 1, 2, 10, 101])
def test_map_is_in_order_at_any_chunksize(pool, n, chunksize):
    expected = [x * x for x in range(n)]
    assert pool.map(tasks.square, range(n), chunksize) == expected
    assert pool.map_async(tasks.square, range(n), chunksize=chunksize).get(TIMEOUT_S) == expected


@pytest.mark.parametrize("chunksize", [None, 1, 3, 100])
def test_starmap_is_in_order_at_any_chunksize(pool, chunksize):
    pairs = [(x, x + 1) for x in range(20)]
    expected = [x * y for x, y in pairs]
    assert pool.starmap(tasks.multiply, pairs, chunksize) == expected
    assert pool.starmap_async(tasks.multiply, pairs, chunksize).get(TIMEOUT_S) == expected


@pytest.mark.parametrize(
    ("iterable", "expected"),
    [
        pytest.param("abc", ["a", "b", "c"], id="str"),
        pytest.param({"k": 1, "l": 2}, ["k", "l"], id="dict"),
        pytest.param(iter([1, 2]), [1, 2], id="iterator"),
        pytest.param((), [], id="empty-tuple"),
        pytest.param(frozenset({4}), [4], id="set"),
        pytest.param(zip([1], [2], strict=True), [(1, 2)], id="zip"),
    ],
)
def test_map_takes_any_iterable(make_pool, iterable, expected):
    assert make_pool(2, kind="thread").map(tasks.identity, iterable) == expected


def test_map_takes_a_generator(pool):
    assert pool.map(tasks.square, (x for x in range(50))) == [x * x for x in range(50)]


def test_map_of_what_is_not_iterable_raises_in_the_caller(pool):
    with pytest.raises(TypeError, match="iterable"):
        pool.map_async(tasks.square, 5)


def test_starmap_of_what_is_not_a_tuple_fails(pool):
    with pytest.raises(TypeError):
        pool.starmap(tasks.multiply, [1, 2])
    assert pool.starmap(tasks.multiply, [[1, 2]]) == [2]


def failing_generator(n):
    yield from range(n)
    raise tasks.PlainError("generator failed")


@pytest.mark.parametrize("verb", ["map_async", "starmap_async", "map"])
def test_an_error_of_the_iterable_is_raised_by_the_call_itself(pool, verb):
    with pytest.raises(tasks.PlainError, match="generator failed") as caught:
        getattr(pool, verb)(tasks.square, failing_generator(3), 1)
    assert caught.value.__cause__ is None


def test_empty_map_is_ready_at_once_and_calls_nobody_back(pool):
    called = []
    result = pool.map_async(tasks.square, [], None, called.append, called.append)
    assert result.ready() and result.successful()
    assert result.get(0) == [] and called == []


@pytest.mark.parametrize("chunksize", [0, -1])
@pytest.mark.parametrize(
    "verb",
    ["map", "map_async", "starmap", "starmap_async", "imap", "imap_unordered"],
)
def test_chunksize_must_be_positive(pool, verb, chunksize):
    with pytest.raises(ValueError, match=rf"[Cc]hunksize must be 1\+, not {chunksize}"):
        getattr(pool, verb)(tasks.square, [1, 2], chunksize)


def test_map_raises_only_after_all_its_items_ran(pool, tmp_path):
    log = str(tmp_path / "log")
    task = functools.partial(tasks.log_and_maybe_fail, log, (0,))
    with pytest.raises(ValueError, match="bad item 0"):
        pool.map(task, range(20), chunksize=1)
    with open(log) as lines:
        assert sorted(map(int, lines)) == list(range(20))


def test_map_with_several_failing_items_raises_one_of_them_once(pool):
    errors = []
    result = pool.map_async(tasks.fail_if_odd, range(9), 1, error_callback=errors.append)
    with pytest.raises(ValueError, match=r"odd [1357]"):
        result.get(TIMEOUT_S)
    assert len(errors) == 1


def test_map_async_times_out_and_can_be_got_later(make_pool, kind, gate):
    pool = make_pool(2, kind=kind)
    result = pool.map_async(functools.partial(tasks.pass_gate, gate.path), range(2), 1)
    gate.wait_arrived(2)
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(0.01)
    assert not result.ready()
    gate.release(2)
    assert len(result.get(TIMEOUT_S)) == 2


def test_all_workers_take_part(make_pool, kind, gate):
    pool = make_pool(3, kind=kind)
    result = pool.map_async(functools.partial(tasks.pass_gate, gate.path), range(3), 1)
    gate.wait_arrived(3)  # only possible if three run at the same time
    gate.release(3)
    result.get(TIMEOUT_S)


def test_a_slow_task_does_not_hold_up_the_others(make_pool, kind, gate):
    pool = make_pool(2, kind=kind)
    slow = pool.apply_async(tasks.pass_gate, (gate.path, "slow"))
    gate.wait_arrived()
    assert pool.map(tasks.square, range(500), 1) == [x * x for x in range(500)]
    assert not slow.ready()
    gate.release()
    assert slow.get(TIMEOUT_S) == "slow"


def test_tasks_batched_behind_a_slow_one_go_to_another_worker(make_pool, kind, gate):
    pool = make_pool(2, kind=kind)
    task = functools.partial(tasks.pass_gate_if, gate.path, 0)
    results = [pool.apply_async(task, (x,)) for x in range(200)]
    gate.wait_arrived()
    assert [result.get(TIMEOUT_S) for result in results[1:]] == list(range(1, 200))
    gate.release()
    assert results[0].get(TIMEOUT_S) == 0


def test_many_tasks_in_flight(pool):
    assert pool.map(tasks.square, range(20_000), 1) == [x * x for x in range(20_000)]


def test_calls_of_several_sorts_interleave(pool):
    ordered = pool.imap(tasks.square, range(50))
    mapped = pool.map_async(tasks.square, range(50), 3)
    single = [pool.apply_async(tasks.square, (x,)) for x in range(50)]
    assert next(ordered) == 0
    assert mapped.get(TIMEOUT_S) == [x * x for x in range(50)]
    assert [result.get(TIMEOUT_S) for result in single] == [x * x for x in range(50)]
    assert list(ordered) == [x * x for x in range(1, 50)]


# ---- callbacks -------------------------------------------------------------


def test_callback_has_run_when_get_returns(pool):
    for i in range(50):
        called = []
        assert pool.apply_async(tasks.square, (i,), callback=called.append).get(TIMEOUT_S) == i * i
        assert called == [i * i]


def test_error_callback_has_run_when_get_raises(pool):
    called, wrong = [], []
    result = pool.apply_async(tasks.raise_named, ("ValueError", "x"), {}, wrong.append, called.append)
    with pytest.raises(ValueError) as caught:
        result.get(TIMEOUT_S)
    assert called == [caught.value] and wrong == []


def test_error_callback_is_not_called_on_success(pool):
    called = []
    pool.apply_async(tasks.square, (2,), error_callback=called.append).get(TIMEOUT_S)
    assert called == []


def test_map_calls_back_once_with_the_whole_list(pool):
    called = []
    pool.map_async(tasks.square, range(5), 2, called.append).get(TIMEOUT_S)
    assert called == [[0, 1, 4, 9, 16]]
    pool.starmap_async(tasks.multiply, [(1, 2)], callback=called.append).get(TIMEOUT_S)
    assert called[1:] == [[2]]


def test_callback_may_use_the_pool(pool):
    inner = []
    done = threading.Event()

    def submit_more(value):
        inner.append(pool.apply_async(tasks.square, (value,), callback=lambda _: done.set()))

    pool.apply_async(tasks.square, (2,), callback=submit_more).get(TIMEOUT_S)
    assert done.wait(TIMEOUT_S)
    assert inner[0].get(TIMEOUT_S) == 16


@pytest.mark.parametrize("verb", ["close", "terminate"])
def test_callback_may_end_the_pool(make_pool, kind, verb):
    pool = make_pool(2, kind=kind)
    ended = threading.Event()

    def end(_):
        getattr(pool, verb)()
        ended.set()

    result = pool.apply_async(tasks.square, (3,), callback=end)
    assert ended.wait(TIMEOUT_S)
    assert result.get(TIMEOUT_S) == 9
    pool.join(timeout=TIMEOUT_S)


@pytest.mark.parametrize("error", [ValueError("from a callback"), SystemExit(3)], ids=repr)
def test_a_raising_callback_is_logged_and_the_pool_goes_on(pool, caplog, error):
    def fail(_):
        raise error

    with caplog.at_level(logging.ERROR, logger="pool_party"):
        assert pool.apply_async(tasks.square, (3,), callback=fail).get(TIMEOUT_S) == 9
        with pytest.raises(KeyError):
            pool.apply_async(tasks.raise_error, (KeyError("k"),), error_callback=fail).get(TIMEOUT_S)
        assert pool.map_async(tasks.square, [1, 2], callback=fail).get(TIMEOUT_S) == [1, 4]
    records = [record for record in caplog.records if record.name.startswith("pool_party")]
    assert len(records) == 3
    assert all(record.levelno >= logging.ERROR for record in records)
    assert all(record.exc_info and record.exc_info[1] is error for record in records)
    assert pool.map(tasks.square, range(10)) == [x * x for x in range(10)]


# ---- errors of tasks -------------------------------------------------------


def test_task_error_is_the_original_with_its_remote_traceback(remote_pool):
    with pytest.raises(ValueError) as caught:
        remote_pool.apply(tasks.raise_named, ("ValueError", "wrong", 5))
    assert type(caught.value) is ValueError and caught.value.args == ("wrong", 5)
    cause = caught.value.__cause__
    assert type(cause) is multiprocessing.pool.RemoteTraceback
    assert "in raise_named" in cause.tb and "tasks.py" in cause.tb
    assert cause.tb in str(cause)


def test_map_and_imap_errors_have_the_remote_traceback_too(remote_pool):
    for call in (remote_pool.map, remote_pool.imap, remote_pool.imap_unordered):
        with pytest.raises(ValueError, match="odd 1") as caught:
            list(call(tasks.fail_if_odd, [0, 1]))
        assert "in fail_if_odd" in caught.value.__cause__.tb


def test_remote_traceback_shows_the_chain(remote_pool):
    with pytest.raises(ValueError, match="outer error") as caught:
        remote_pool.apply(tasks.raise_chained)
    assert "inner cause" in caught.value.__cause__.tb


def test_thread_pool_raises_the_very_object(make_pool):
    error = tasks.PlainError("same")
    with pytest.raises(tasks.PlainError) as caught:
        make_pool(1, kind="thread").apply(tasks.raise_error, (error,))
    assert caught.value is error and caught.value.__cause__ is None


@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration", "TimeoutError"])
def test_errors_beside_the_usual_are_their_tasks_errors(pool, name):
    for args in ((), (3,)):
        with pytest.raises(BaseException) as caught:
            pool.apply_async(tasks.raise_named, (name, *args)).get(TIMEOUT_S)
        assert type(caught.value).__name__ == name
        assert caught.value.args == args
    with pytest.raises(BaseException) as caught:
        pool.map_async(functools.partial(tasks.raise_named, name), [1, 2], 1).get(TIMEOUT_S)
    assert type(caught.value).__name__ == name
    assert pool.map(tasks.square, range(8), 1) == [x * x for x in range(8)]
    assert pool.statistics().n_workers_lost == 0


def test_attributes_and_notes_of_an_error_travel(pool):
    with pytest.raises(tasks.AttributeCarryingError) as caught:
        pool.apply(tasks.raise_named, ("AttributeCarryingError", "m"))
    assert caught.value.payload == {"a": [1, 2, 3]}
    with pytest.raises(ValueError) as caught:
        pool.apply(tasks.raise_with_note, ("m", "a note"))
    assert "a note" in caught.value.__notes__


def test_exception_group_travels(pool):
    with pytest.raises(ExceptionGroup) as caught:
        pool.apply(tasks.raise_group)
    assert [type(error) for error in caught.value.exceptions] == [ValueError, KeyError]


def test_large_error_travels(pool):
    with pytest.raises(ValueError) as caught:
        pool.apply(tasks.raise_large, (1 << 20,))
    assert caught.value.args == ("x" * (1 << 20),)


# ---- after the end ---------------------------------------------------------

SUBMITS = {
    "apply": lambda pool: pool.apply(tasks.square, (1,)),
    "apply_async": lambda pool: pool.apply_async(tasks.square, (1,)),
    "map": lambda pool: pool.map(tasks.square, [1]),
    "map of nothing": lambda pool: pool.map(tasks.square, []),
    "map_async": lambda pool: pool.map_async(tasks.square, [1]),
    "starmap": lambda pool: pool.starmap(tasks.multiply, [(1, 2)]),
    "starmap_async": lambda pool: pool.starmap_async(tasks.multiply, [(1, 2)]),
    "imap": lambda pool: pool.imap(tasks.square, [1]),
    "imap in chunks": lambda pool: pool.imap(tasks.square, [1], 2),
    "imap_unordered": lambda pool: pool.imap_unordered(tasks.square, [1]),
    "with": lambda pool: pool.__enter__(),
}


@pytest.mark.parametrize("end", ["close", "terminate"])
def test_use_after_the_end_is_a_value_error(make_pool, kind, end):
    pool = make_pool(1, kind=kind)
    getattr(pool, end)()
    for name, submit in SUBMITS.items():
        with pytest.raises(pool_party.PoolClosed, match="Pool not running") as caught:
            submit(pool)
        assert isinstance(caught.value, ValueError), name
    pool.join(timeout=TIMEOUT_S)
    with pytest.raises(ValueError, match="Pool not running"):
        pool.apply(tasks.square, (1,))


def test_errors_have_one_root():
    for name in (
        "PoolClosed",
        "PoolTerminated",
        "WorkerLost",
        "InitializerFailed",
        "RemoteError",
    ):
        assert issubclass(getattr(pool_party, name), pool_party.PoolPartyError)


# ---- close, join, terminate, with ------------------------------------------


def test_join_of_a_running_pool_is_an_error(pool):
    with pytest.raises(ValueError, match="Pool is still running"):
        pool.join()


def test_close_lets_queued_work_finish(make_pool, kind, gate):
    pool = make_pool(1, kind=kind)
    held = pool.apply_async(tasks.pass_gate, (gate.path, "held"))
    queued = pool.map_async(tasks.square, range(100), 1)
    gate.wait_arrived()
    pool.close()
    pool.close()
    gate.release()
    pool.join(timeout=TIMEOUT_S)
    assert held.get(0) == "held"
    assert queued.get(0) == [x * x for x in range(100)]


def test_join_can_be_repeated(make_pool, kind):
    pool = make_pool(2, kind=kind)
    pool.close()
    pool.join()
    pool.join()
    pool.terminate()
    pool.join()


def test_join_times_out_while_work_goes_on(make_pool, kind, gate):
    pool = make_pool(1, kind=kind)
    result = pool.apply_async(tasks.pass_gate, (gate.path, 5))
    gate.wait_arrived()
    pool.close()
    with pytest.raises(multiprocessing.TimeoutError):
        pool.join(timeout=0.05)
    with pytest.raises(multiprocessing.TimeoutError):
        pool.join(0)
    gate.release()
    pool.join(timeout=TIMEOUT_S)
    assert result.get(0) == 5


def test_join_from_several_threads(make_pool, kind, gate):
    pool = make_pool(1, kind=kind)
    pool.apply_async(tasks.pass_gate, (gate.path,))
    gate.wait_arrived()
    pool.close()
    joins = [gates.call_in_thread(pool.join) for _ in range(3)]
    gate.release()
    for join in joins:
        join.result(TIMEOUT_S)


def test_terminate_fails_what_is_pending(make_pool, kind, gate):
    pool = make_pool(1, kind=kind)
    running = pool.apply_async(tasks.pass_gate, (gate.path,))
    errors = []
    queued = pool.apply_async(tasks.square, (2,), error_callback=errors.append)
    mapped = pool.map_async(tasks.square, range(10))
    iterator = pool.imap(tasks.square, range(10))
    gate.wait_arrived()
    gates.call_in_thread(pool.terminate).result(TIMEOUT_S)
    for result in (running, queued, mapped):
        with pytest.raises(pool_party.PoolTerminated):
            result.get(TIMEOUT_S)
    with pytest.raises(pool_party.PoolTerminated):
        iterator.next(TIMEOUT_S)
    assert [type(error) for error in errors] == [pool_party.PoolTerminated]
    gate.release()
    pool.join(timeout=TIMEOUT_S)


def test_terminate_wakes_a_blocked_get(make_pool, kind, gate):
    pool = make_pool(1, kind=kind)
    waiting = [gates.call_in_thread(pool.apply, tasks.pass_gate, (gate.path,))]
    gate.wait_arrived()
    waiting.append(gates.call_in_thread(pool.map, tasks.square, range(3)))
    gates.wait_until(lambda: pool.statistics().n_pending >= 2, "both calls are in")
    gates.call_in_thread(pool.terminate).result(TIMEOUT_S)
    for call in waiting:
        with pytest.raises(pool_party.PoolTerminated):
            call.result(TIMEOUT_S)


def test_terminate_keeps_results_that_came_before(make_pool, kind):
    pool = make_pool(1, kind=kind)
    result = pool.apply_async(tasks.square, (4,))
    result.wait(TIMEOUT_S)
    pool.terminate()
    assert result.get(0) == 16


def test_terminate_can_be_repeated_and_follows_close(make_pool, kind):
    pool = make_pool(2, kind=kind)
    pool.close()
    pool.terminate()
    pool.terminate()
    pool.join(timeout=TIMEOUT_S)


def test_a_worker_may_be_told_to_end_when_its_pool_has_ended(make_pool, kind):
    pool = make_pool(2, kind=kind)
    workers = pool._pool
    pool.terminate()
    pool.join(timeout=30)
    for worker in workers:
        worker.terminate()
        assert not worker.is_alive()


def test_terminate_from_several_threads(make_pool, kind):
    pool = make_pool(2, kind=kind)
    for call in [gates.call_in_thread(pool.terminate) for _ in range(4)]:
        call.result(TIMEOUT_S)
    pool.join(timeout=TIMEOUT_S)


def test_terminate_kills_running_process_workers(make_pool, context, gate):
    pool = make_pool(2, context=context, kind="process")
    for _ in range(2):
        pool.apply_async(tasks.stay_forever, (gate.path,))
    gate.wait_arrived(2)
    pool.terminate()
    pool.join(timeout=TIMEOUT_S)
    assert not any(worker.is_alive() for worker in pool._pool)


def test_with_terminates(kind):
    with ComposablePool(2, kind=kind) as pool:
        assert isinstance(pool, ComposablePool)
        assert pool.map(tasks.square, [1, 2]) == [1, 4]
    with pytest.raises(ValueError, match="Pool not running"):
        pool.map(tasks.square, [1])
    pool.join(timeout=TIMEOUT_S)


def test_with_lets_an_error_out(kind):
    with pytest.raises(tasks.PlainError), ComposablePool(1, kind=kind):
        raise tasks.PlainError("in the body")


def test_forgotten_running_pool_warns(kind):
    pool = ComposablePool(1, kind=kind)
    pool.apply(tasks.square, (2,))
    with pytest.warns(ResourceWarning, match="unclosed running"):
        del pool
        gc.collect()


@pytest.mark.parametrize("end", ["close", "terminate"])
@pytest.mark.filterwarnings("error::ResourceWarning")
def test_ended_pool_does_not_warn_and_can_be_collected(kind, end):
    pool = ComposablePool(1, kind=kind)
    pool.apply(tasks.square, (2,))
    getattr(pool, end)()
    pool.join(timeout=TIMEOUT_S)
    reference = weakref.ref(pool)
    del pool
    gc.collect()
    gates.wait_until(lambda: reference() is None, "the pool is collected")


@pytest.mark.filterwarnings("ignore:unclosed running:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("verb", ["apply_async", "submit"])
def test_a_result_keeps_its_pool_alive_until_done(kind, gate, verb):
    def start():
        pool = ComposablePool(1, kind=kind)
        if verb == "submit":
            return pool.submit(tasks.pass_gate, gate.path, 9).result, weakref.ref(pool)
        return pool.apply_async(tasks.pass_gate, (gate.path, 9)).get, weakref.ref(pool)

    def is_gone():
        gc.collect()
        return pool() is None

    wait_for_result, pool = start()
    gc.collect()
    gate.wait_arrived()
    gate.release()
    assert wait_for_result(TIMEOUT_S) == 9
    del wait_for_result
    gates.wait_until(is_gone, "the pool is collected")  # in this test, which ignores the warning about it


# ---- references ------------------------------------------------------------


def test_arguments_and_results_are_let_go(make_pool, kind):
    pool = make_pool(2, kind=kind)
    values = [tasks.Tracked(i) for i in range(10)]
    references = [weakref.ref(value) for value in values]
    results = pool.map(tasks.identity, values)
    references += [weakref.ref(result) for result in results]
    pool.apply(tasks.identity, (values[0],))
    del values, results

    def all_gone():
        gc.collect()
        return all(reference() is None for reference in references)

    gates.wait_until(all_gone, "arguments and results are collected")


def test_callbacks_are_let_go(make_pool, kind):
    pool = make_pool(1, kind=kind)

    class Callback:
        def __call__(self, _):
            pass

    callback = Callback()
    reference = weakref.ref(callback)
    pool.apply_async(tasks.square, (1,), callback=callback).get(TIMEOUT_S)
    del callback

    def is_gone():
        gc.collect()
        return reference() is None

    gates.wait_until(is_gone, "the callback is collected")


def test_thread_pool_passes_by_reference(make_pool):
    value = tasks.Tracked()
    assert make_pool(1, kind="thread").apply(tasks.identity, (value,)) is value


# ---- threads of the caller -------------------------------------------------


def test_pool_is_used_from_many_threads(pool):
    def use(seed):
        for i in range(20):
            assert pool.apply(tasks.multiply, (seed, i)) == seed * i
            assert pool.map(tasks.square, range(seed, seed + 5), 2) == [x * x for x in range(seed, seed + 5)]
            assert list(pool.imap(tasks.square, (seed, i))) == [seed**2, i**2]

    for call in [gates.call_in_thread(use, seed) for seed in range(8)]:
        call.result(60)
