"""A failure says which item of which call it is of. If that is asked, it takes no other item's result with it."""

import asyncio
import functools
import itertools
import operator
import re
from multiprocessing.pool import MaybeEncodingError

import numpy as np
import pytest
import tasks

from pool_party import TaskTimeout, WorkerLost, _native
from pool_party._ground import quoting

N, BAD = 40, 27


fail = functools.partial(tasks.fail_at, BAD)
die = functools.partial(tasks.die_at, BAD)

EACH = {
    "map": lambda pool, fn, items, **more: pool.map(fn, items, **more),
    "map of an iterator": lambda pool, fn, items, **more: pool.map(fn, iter(items), **more),
    "starmap": lambda pool, fn, items, **more: pool.starmap(fn, [(item,) for item in items], **more),
    "map_async": lambda pool, fn, items, **more: pool.map_async(fn, items, **more).get(),
    "imap": lambda pool, fn, items, **more: list(pool.imap(fn, items, **more)),
    "imap of an iterator": lambda pool, fn, items, **more: list(pool.imap(fn, iter(items), **more)),
    "imap_unordered": lambda pool, fn, items, **more: sorted(pool.imap_unordered(fn, items, **more), key=repr),
}
VERBS = pytest.mark.parametrize("verb", EACH)


def notes_of(call, *args, error=ValueError, **options):
    with pytest.raises(error) as raised:
        call(*args, **options)
    return getattr(raised.value, "__notes__", [])


@VERBS
@pytest.mark.parametrize("chunksize", [1, 7])
def test_an_exception_says_of_which_item_it_is(pool, verb, chunksize):
    expected = f"pool_party: in item {BAD} (counted from 0): fail_at({BAD}, {BAD})"
    assert notes_of(EACH[verb], pool, fail, range(N), chunksize=chunksize) == [expected]
    assert notes_of(EACH[verb], pool, lambda item: fail(item), range(N), chunksize=chunksize)[0].endswith(
        f"<lambda>({BAD})"
    )


def test_the_type_and_the_text_of_an_exception_stay(pool):
    with pytest.raises(ValueError, match=f"bad {BAD}") as raised:
        pool.map(fail, range(N))
    assert type(raised.value) is ValueError and raised.value.args == (f"bad {BAD}",)
    with pytest.raises(tasks.WithoutNotes, match="plain"):
        pool.map(tasks.raise_error, [tasks.WithoutNotes("plain")])


def test_a_result_that_does_not_pickle_says_of_which_item_it_is(make_pool, kind):
    pool, task = make_pool(2, kind=kind), functools.partial(tasks.unpicklable_at, BAD)
    if kind == "thread":  # nothing is pickled
        assert type(pool.map(task, range(N), 1)[BAD]).__name__ == "frame"
        return
    notes = notes_of(pool.map, task, range(N), 1, error=MaybeEncodingError)
    assert notes[-1] == f"pool_party: in item {BAD} (counted from 0)"


def test_a_call_has_a_number(pool):
    (note,) = notes_of(pool.apply, tasks.fail_at, (3, 3, "x" * 1000, tasks.Shaped()))
    assert re.match(r"pool_party: in call \d+ of the pool: fail_at\(3, 3, 'xxx", note)
    assert note.endswith("<Shaped of shape (1000, 3) and type float64>)") and len(note) < 400


def test_executors(make_executor, kind):
    executor = make_executor(2, kind=kind)
    assert notes_of(executor.submit(tasks.fail_at, BAD, BAD).result) == [
        f"pool_party: in call 1 of the pool: fail_at({BAD}, {BAD})"
    ]
    for chunksize in (1, 7):
        expected = [f"pool_party: in item {BAD} (counted from 0): fail_at({BAD}, {BAD})"]
        assert notes_of(lambda c=chunksize: list(executor.map(fail, range(N), chunksize=c))) == expected


def test_what_is_quoted_can_be_left_out(make_pool, make_executor, kind):
    pool = make_pool(2, kind=kind, quote_items=False)
    assert notes_of(pool.map, fail, range(N)) == [f"pool_party: in item {BAD} (counted from 0): fail_at"]
    assert notes_of(list, pool.imap(fail, iter(range(N)), 5)) == [
        f"pool_party: in item {BAD} (counted from 0): fail_at"
    ]
    executor = make_executor(2, kind=kind, quote_items=False)
    assert notes_of(executor.submit(fail, BAD).result) == ["pool_party: in call 1 of the pool: fail_at"]


def test_an_item_whose_repr_raises(pool):
    notes = notes_of(pool.map, tasks.raise_error, [tasks.WithoutRepr("x")], error=tasks.WithoutRepr)
    (note,) = notes
    assert note.startswith("pool_party: in item 0 (counted from 0): raise_error(<WithoutRepr instance at 0x")


def test_one_exception_that_many_tasks_raise(make_pool):
    pool, error = make_pool(2, kind="thread"), ValueError("the same")

    def raise_it(item):
        raise error

    for first in range(30):
        with pytest.raises(ValueError, match="the same"):
            pool.map(raise_it, range(first, first + 3), 1)
    assert 0 < len(error.__notes__) <= quoting.MAX_NOTES


def test_a_pool_in_a_task(make_pool, kind):
    notes = notes_of(make_pool(1, kind=kind).map, tasks.map_there, [(tasks.fail_at, BAD)])
    assert notes[0] == "pool_party: in item 0 (counted from 0): fail_at(27, 27)"
    assert notes[1].startswith("pool_party: in item 0 (counted from 0): map_there((<function fail_at")


@VERBS
def test_a_lost_worker_says_which_items_are_lost(make_pool, verb):
    pool = make_pool(2, kind="process")
    for chunksize, items in ((1, f"item {BAD} "), (10, "items 20 to 29 ")):
        with pytest.raises(WorkerLost) as raised:
            EACH[verb](pool, die, range(N), chunksize=chunksize)
        text = str(raised.value)
        assert f"while it ran this task: {items}(counted from 0): die_at" in text
        assert ("all 10 results of this task are lost, and options(retries=...)" in text) == (chunksize == 10)
        if verb in ("map", "map_async") and chunksize == 1:  # whose items are kept, since they are plain
            assert f"die_at({BAD})" in text


def test_a_lost_worker_of_an_executor(make_executor):
    executor = make_executor(2, kind="process")
    with pytest.raises(WorkerLost, match=r"this task: call 1 of the pool: die_at\. The pool"):
        executor.submit(die, BAD).result()
    with pytest.raises(WorkerLost, match=r"items 20 to 29 \(counted from 0\): die_at; all 10 results"):
        list(executor.map(die, range(N), chunksize=10))


def test_a_timeout_says_which_item_took_too_long(make_pool, kind, gate):
    results = make_pool(2, kind=kind).map(tasks.spin_forever, [gate.path] * 3, timeout_s=0.05, errors="return")
    for n, error in enumerate(results):
        assert isinstance(error, TaskTimeout)
        assert str(error).startswith(f"the task ran for more than 0.05 s: item {n} (counted from 0): spin_forever('")


# ---- exceptions in the place of results ----


@VERBS
def test_exceptions_in_the_place_of_results(pool, verb):
    items, n_before = [*range(N), BAD], pool.statistics().n_failed
    results = EACH[verb](pool, fail, items, errors="return")
    failed = [result for result in results if isinstance(result, ValueError)]
    assert [str(error) for error in failed] == [f"bad {BAD}"] * 2
    assert sorted(result for result in results if result not in failed) == [n * 2 for n in range(N) if n != BAD]
    assert sorted(error.__notes__ for error in failed) == [
        [f"pool_party: in item {n} (counted from 0): fail_at({BAD}, {BAD})"] for n in (BAD, N)
    ]
    if verb != "imap_unordered":
        assert [n for n, result in enumerate(results) if result in failed] == [BAD, N]
    assert pool.statistics().n_failed == n_before + 2


@VERBS
def test_lost_workers_in_the_place_of_results(make_pool, verb):
    pool = make_pool(2, kind="process")
    results = EACH[verb](pool, die, range(N), errors="return")
    (lost,) = [result for result in results if not isinstance(result, int)]
    assert isinstance(lost, WorkerLost) and f"item {BAD} " in str(lost)
    assert sorted(result for result in results if result is not lost) == [n * 2 for n in range(N) if n != BAD]


def test_retries_come_first(make_pool, kind, tmp_path):
    pool = make_pool(2, kind=kind)
    paths = [str(tmp_path / str(n)) for n in range(3)]
    task = functools.partial(tasks.fail_at_first, n_failures=1, how="raise", value=2)
    assert pool.map(task, paths, retries=1, retry_on=ValueError, errors="return") == [2, 2, 2]
    task = functools.partial(tasks.fail_at_first, n_failures=9, how="raise")
    results = pool.map(task, [path + "b" for path in paths], retries=1, retry_on=ValueError, errors="return")
    assert [type(result) for result in results] == [ValueError] * 3


def test_single_calls_return_their_exception(pool, make_executor, kind):
    view = pool.options(errors="return")
    assert view.apply(fail, (1,)) == 2
    assert isinstance(view.apply(fail, (BAD,)), ValueError)
    assert isinstance(view.apply_async(fail, (BAD,)).get(), ValueError)
    future = make_executor(2, kind=kind).options(errors="return").submit(fail, BAD)
    assert future.result() is future.exception() and isinstance(future.result(), ValueError)


def test_executors_return_exceptions(make_executor, kind):
    results = list(make_executor(2, kind=kind).map(fail, range(N), errors="return"))
    assert isinstance(results.pop(BAD), ValueError)
    assert results == [n * 2 for n in range(N) if n != BAD]


def test_asyncio_gets_exceptions_as_results(pool):
    async def collect():
        there = [result async for result in pool.options(errors="return").amap(fail, range(N))]
        return there, await pool.options(errors="return").map_async(fail, range(N))

    for results in asyncio.run(collect()):
        assert isinstance(results.pop(BAD), ValueError)
        assert results == [n * 2 for n in range(N) if n != BAD]


def test_callbacks_get_the_list(pool):
    got = []
    result = pool.options(errors="return").map_async(fail, range(N), callback=got.append, error_callback=got.append)
    assert result.get() is got[0] or result.get() == got[0]
    assert result.successful() and isinstance(got[0][BAD], ValueError) and got[0][BAD] is result.get()[BAD]


def test_what_fails_the_whole_call_is_raised(pool, make_pool, kind, gate):
    def broken():
        yield from range(3)
        raise LookupError("the input")

    with pytest.raises(LookupError, match="the input"):
        pool.map(fail, broken(), errors="return")
    iterator = pool.imap(fail, broken(), errors="return")
    assert [next(iterator) for _ in range(3)] == [0, 2, 4]
    with pytest.raises(LookupError, match="the input") as raised:
        next(iterator)
    assert not hasattr(raised.value, "__notes__")
    held = make_pool(1, kind=kind).options(errors="return", deadline_s=0.05)
    with pytest.raises(TaskTimeout, match="deadline"):
        held.map(tasks.spin_forever, [gate.path])


def test_bad_values_of_errors(pool):
    with pytest.raises(ValueError, match='errors must be "raise" or "return"'):
        pool.map(fail, range(3), errors="ignore")
    with pytest.raises(ValueError, match="chunksize must be 1"):
        pool.map(fail, range(3), 2, errors="return")
    assert pool.map(fail, range(3), errors="raise") == [0, 2, 4]


def test_results_that_are_exceptions_are_results(pool):
    n_before = pool.statistics().n_failed
    assert [type(result) for result in pool.map(ValueError, range(5), errors="return")] == [ValueError] * 5
    assert pool.statistics().n_failed == n_before


# ---- quoting ----


def test_a_partial_that_contains_itself():
    """Calling it may crash CPython. Naming it does not."""
    endless, job = functools.partial(len), _native.Job()
    endless.__setstate__((endless, (), {}, {}))
    job.called = endless
    assert job.called == "partial"
    assert quoting.quote(endless, ([],), {}) == "partial([])"


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "text"),
    [
        (tasks.fail_at, (1, 2), {}, "fail_at(1, 2)"),
        (tasks.fail_at, (), {"n": 1}, "fail_at(n=1)"),
        (fail, (3,), {"x": "y"}, "fail_at(27, 3, x='y')"),
        (int, ("7",), {}, "int('7')"),
        (tasks.Adder(1), (2,), {}, "Adder(2)"),
        (len, (list(range(10**6)),), {}, "len([0, 1, 2, 3, 4, 5, ...])"),
        (len, (np.zeros(10),), {}, "len(<ndarray of shape (10,) and type float64>)"),
    ],
)
def test_quoting(fn, args, kwargs, text):
    assert quoting.quote(fn, args, kwargs) == text


def test_quotes_are_short():
    values = ["x" * 10**6, b"y" * 10**6, 10**5000, {n: n for n in range(10**5)}, *itertools.repeat("z" * 100, 100)]
    assert len(quoting.quote(len, values, {"a" * 10: values})) < 400


def test_the_helpers_of_the_pool_are_not_named():
    assert quoting.unwrapped(quoting.call_star, (len, ([1],))) == (len, ([1],))
    assert quoting.unwrapped(quoting.call_each, (len, [[1]])) == (len, ([[1]],))
    assert quoting.unwrapped(operator.call, (len, [1])) == (len, ([1],))
    assert quoting.unwrapped(operator.neg, (3,)) == (operator.neg, (3,))
