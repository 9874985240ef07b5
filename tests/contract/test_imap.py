"""imap and imap_unordered: order, time-outs at any chunksize, errors, bounded read-ahead."""

import functools
import itertools
import multiprocessing
import threading

import gates
import pytest
import tasks

import pool_party

TIMEOUT_S = 30
VERBS = ("imap", "imap_unordered")


@pytest.fixture(params=VERBS)
def verb(request):
    return request.param


def in_comparable_order(verb, values):
    return list(values) if verb == "imap" else sorted(values)


# ---- values and order ------------------------------------------------------


@pytest.mark.parametrize("chunksize", [1, 2, 7, 100])
@pytest.mark.parametrize("n", [0, 1, 10, 101])
def test_every_item_gives_its_result(pool, verb, n, chunksize):
    expected = [x * x for x in range(n)]
    sized = getattr(pool, verb)(tasks.square, range(n), chunksize)
    assert in_comparable_order(verb, sized) == expected
    unsized = getattr(pool, verb)(tasks.square, (x for x in range(n)), chunksize=chunksize)
    assert in_comparable_order(verb, unsized) == expected


def test_long_generator(pool, verb):
    values = getattr(pool, verb)(tasks.square, (x for x in range(20_000)))
    assert in_comparable_order(verb, values) == [x * x for x in range(20_000)]


def test_iterator_protocol(pool, verb):
    iterator = getattr(pool, verb)(tasks.square, [3])
    assert iter(iterator) is iterator
    assert iterator.next(TIMEOUT_S) == 9
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)
        with pytest.raises(StopIteration):
            iterator.next(timeout=0)


def test_imap_keeps_order_when_the_first_is_slow(make_pool, kind, gate):
    pool = make_pool(2, kind=kind)
    iterator = pool.imap(functools.partial(tasks.pass_gate_if, gate.path, 0), range(10))
    gate.wait_arrived()
    gate.release()
    assert list(iterator) == list(range(10))


def test_imap_unordered_yields_what_comes_first(make_pool, kind, gate):
    pool = make_pool(2, kind=kind)
    iterator = pool.imap_unordered(functools.partial(tasks.pass_gate_if, gate.path, 0), range(10))
    gate.wait_arrived()
    assert sorted(iterator.next(TIMEOUT_S) for _ in range(9)) == list(range(1, 10))
    gate.release()
    assert iterator.next(TIMEOUT_S) == 0


def test_results_come_while_the_input_goes_on(pool, verb):
    may_go_on = threading.Event()

    def source():
        yield 1
        assert may_go_on.wait(TIMEOUT_S)
        yield 2

    iterator = getattr(pool, verb)(tasks.square, source())
    assert iterator.next(TIMEOUT_S) == 1
    may_go_on.set()
    assert iterator.next(TIMEOUT_S) == 4


# ---- time-outs -------------------------------------------------------------


@pytest.mark.parametrize("chunksize", [1, 3])
def test_next_times_out_at_any_chunksize_and_can_be_repeated(make_pool, kind, gate, verb, chunksize):
    pool = make_pool(1, kind=kind)
    task = functools.partial(tasks.pass_gate, gate.path)
    iterator = getattr(pool, verb)(task, range(6), chunksize)
    gate.wait_arrived()
    for timeout in (0, 0.01):
        with pytest.raises(multiprocessing.TimeoutError):
            iterator.next(timeout)
        with pytest.raises(multiprocessing.TimeoutError):
            iterator.next(timeout=timeout)
    gate.release(6)
    assert in_comparable_order(verb, (iterator.next(TIMEOUT_S) for _ in range(6))) == list(range(6))
    with pytest.raises(StopIteration):
        iterator.next(TIMEOUT_S)


def test_next_times_out_while_the_generator_is_slow(pool, verb):
    may_go_on = threading.Event()

    def source():
        assert may_go_on.wait(TIMEOUT_S)
        yield 5

    iterator = gates.call_in_thread(getattr(pool, verb), tasks.square, source()).result(TIMEOUT_S)
    try:
        with pytest.raises(multiprocessing.TimeoutError):
            gates.call_in_thread(iterator.next, 0.01).result(TIMEOUT_S / 2)
    finally:
        may_go_on.set()
    assert iterator.next(TIMEOUT_S) == 25


def test_a_slow_generator_does_not_hold_up_the_pool(pool, verb):
    may_go_on = threading.Event()

    def source():
        assert may_go_on.wait(TIMEOUT_S)
        yield 5

    iterator = gates.call_in_thread(getattr(pool, verb), tasks.square, source()).result(TIMEOUT_S)
    try:
        assert pool.apply_async(tasks.square, (3,)).get(TIMEOUT_S / 2) == 9
        assert pool.map_async(tasks.square, range(5)).get(TIMEOUT_S / 2) == [0, 1, 4, 9, 16]
        assert list(pool.imap(tasks.square, (x for x in range(3)))) == [0, 1, 4]
    finally:
        may_go_on.set()
    assert list(iterator) == [25]


# ---- errors ----------------------------------------------------------------


def test_iteration_goes_on_after_a_failed_item(pool):
    iterator = pool.imap(tasks.fail_if_odd, range(5))
    seen = []
    while True:
        try:
            seen.append(next(iterator))
        except ValueError as error:
            seen.append(str(error))
        except StopIteration:
            break
    assert seen == [0, "odd 1", 2, "odd 3", 4]


def test_unordered_iteration_goes_on_after_a_failed_item(pool):
    iterator = pool.imap_unordered(tasks.fail_if_odd, range(100))
    values, errors = [], []
    while True:
        try:
            values.append(next(iterator))
        except ValueError as error:
            errors.append(str(error))
        except StopIteration:
            break
    assert sorted(values) == list(range(0, 100, 2))
    assert sorted(errors) == sorted(f"odd {x}" for x in range(1, 100, 2))


def test_a_failed_item_in_a_chunk(pool, verb):
    iterator = getattr(pool, verb)(tasks.fail_if_odd, [0, 2, 4, 6, 1, 8], 2)
    with pytest.raises(ValueError, match="odd 1"):
        for _ in range(6):
            assert iterator.next(TIMEOUT_S) in (0, 2, 4, 6)


def failing_source(n):
    yield from range(n)
    raise tasks.PlainError(f"after {n}")


@pytest.mark.parametrize("chunksize", [1, 4])
@pytest.mark.parametrize("n", [0, 8])
def test_an_error_of_the_generator_comes_after_its_items(pool, n, chunksize):
    iterator = pool.imap(tasks.square, failing_source(n), chunksize)
    assert [iterator.next(TIMEOUT_S) for _ in range(n)] == [x * x for x in range(n)]
    with pytest.raises(tasks.PlainError, match=f"after {n}") as caught:
        iterator.next(TIMEOUT_S)
    assert caught.value.__cause__ is None
    with pytest.raises(StopIteration):
        iterator.next(TIMEOUT_S)


@pytest.mark.parametrize(("chunksize", "n"), [(1, 5), (4, 8), (1, 0)])
def test_an_error_of_the_generator_comes_last_among_the_unordered(pool, chunksize, n):
    """It came first, and a loop that it ended lost the results of items that had been read before."""
    iterator = pool.imap_unordered(tasks.square, failing_source(n), chunksize)
    values = []
    with pytest.raises(tasks.PlainError, match=f"after {n}"):
        while True:
            values.append(iterator.next(TIMEOUT_S))
    assert sorted(values) == [x * x for x in range(n)]
    with pytest.raises(StopIteration):
        iterator.next(TIMEOUT_S)


def test_what_is_not_iterable(pool, verb):
    with pytest.raises(TypeError, match="iterable"):
        getattr(pool, verb)(tasks.square, 5).next(TIMEOUT_S)


def test_an_item_that_cannot_be_pickled_fails_alone(remote_pool):
    iterator = remote_pool.imap(tasks.identity, [1, tasks.make_lock(), 3])
    assert next(iterator) == 1
    with pytest.raises(TypeError, match="pickle"):
        next(iterator)
    assert next(iterator) == 3


# ---- bounded read-ahead ----------------------------------------------------


class CountedSource:
    """An endless or long iterator that records how far it is ahead of its reader."""

    def __init__(self, n=None):
        self.items = itertools.count() if n is None else iter(range(n))
        self.n_pulled = self.n_consumed = self.most_ahead = 0

    def __iter__(self):
        return self

    def __next__(self):
        item = next(self.items)
        self.n_pulled += 1
        self.most_ahead = max(self.most_ahead, self.n_pulled - self.n_consumed)
        return item


@pytest.mark.parametrize(("buffersize", "chunksize"), [(1, 1), (4, 1), (50, 1), (8, 4)])
def test_buffersize_bounds_the_read_ahead(pool, verb, buffersize, chunksize):
    source = CountedSource(500)
    iterator = getattr(pool, verb)(tasks.identity, source, chunksize, buffersize=buffersize)
    values = []
    for value in iterator:
        source.n_consumed += 1
        values.append(value)
    assert in_comparable_order(verb, values) == list(range(500))
    # One item may be between the reader and its count, and one between the source and the pool.
    assert source.most_ahead <= buffersize * chunksize + 2


def test_buffersize_holds_for_sized_input_too(make_pool, kind, gate, verb):
    pool = make_pool(1, kind=kind)
    task = functools.partial(tasks.pass_gate, gate.path)
    iterator = getattr(pool, verb)(task, list(range(100)), 1, buffersize=3)
    gate.wait_arrived()
    assert pool.statistics().n_pending <= 100
    assert pool.statistics().n_submitted <= 4
    gate.release(100)
    assert len(list(iterator)) == 100


def test_read_ahead_of_a_generator_is_bounded_by_default(make_pool, kind, gate, verb):
    pool = make_pool(2, kind=kind)
    too_far = threading.Event()

    def source():
        for i in itertools.count():
            if i == 200_000:
                too_far.set()
                return
            yield i

    iterator = getattr(pool, verb)(functools.partial(tasks.pass_gate, gate.path), source())
    gate.wait_arrived(2)
    assert not too_far.wait(0.3)
    gate.close()
    assert iterator.next(TIMEOUT_S) >= 0
    pool.terminate()


def test_endless_generator(make_pool, kind, verb):
    pool = make_pool(2, kind=kind)
    source = CountedSource()
    iterator = getattr(pool, verb)(tasks.square, source)
    values = []
    for value in itertools.islice(iterator, 2000):
        source.n_consumed += 1
        values.append(value)
    assert len(values) == 2000
    assert source.most_ahead < 100_000
    pool.terminate()


@pytest.mark.parametrize("buffersize", [0, -1])
def test_buffersize_must_be_positive(pool, verb, buffersize):
    with pytest.raises(ValueError, match="buffersize"):
        getattr(pool, verb)(tasks.square, [1], 1, buffersize)


def test_buffersize_must_be_an_integer(pool, verb):
    with pytest.raises(TypeError, match="buffersize"):
        getattr(pool, verb)(tasks.square, [1], 1, buffersize=1.5)


# ---- the end of the pool ---------------------------------------------------


@pytest.mark.parametrize("make_input", [list, iter], ids=["sized", "generator"])
def test_close_then_iterate(make_pool, kind, verb, make_input):
    pool = make_pool(2, kind=kind)
    iterator = getattr(pool, verb)(tasks.square, make_input(range(3000)))
    pool.close()
    values = gates.call_in_thread(in_comparable_order, verb, iterator).result(TIMEOUT_S)
    assert values == [x * x for x in range(3000)]
    pool.join(timeout=TIMEOUT_S)


@pytest.mark.parametrize("make_input", [list, iter], ids=["sized", "generator"])
def test_close_and_join_then_iterate(make_pool, kind, verb, make_input):
    pool = make_pool(2, kind=kind)
    iterator = getattr(pool, verb)(tasks.square, make_input(range(5000)))
    pool.close()
    pool.join(timeout=TIMEOUT_S)
    values = gates.call_in_thread(in_comparable_order, verb, iterator).result(TIMEOUT_S)
    assert values == [x * x for x in range(5000)]


def test_an_abandoned_iterator_does_not_block_close_and_join(make_pool, kind, verb):
    pool = make_pool(2, kind=kind)
    iterator = getattr(pool, verb)(tasks.square, iter(range(1000)), 1, buffersize=4)
    next(iterator)
    del iterator
    assert pool.apply(tasks.square, (5,)) == 25
    pool.close()
    pool.join(timeout=TIMEOUT_S)


def test_terminate_ends_iteration(make_pool, kind, gate, verb):
    pool = make_pool(1, kind=kind)
    iterator = getattr(pool, verb)(functools.partial(tasks.pass_gate, gate.path), itertools.count())
    gate.wait_arrived()
    waiting = gates.call_in_thread(next, iterator)
    gates.call_in_thread(pool.terminate).result(TIMEOUT_S)
    with pytest.raises(pool_party.PoolTerminated):
        waiting.result(TIMEOUT_S)


def test_terminate_while_the_generator_is_blocked(make_pool, kind, verb):
    pool = make_pool(1, kind=kind)
    started, may_go_on = threading.Event(), threading.Event()

    def source():
        started.set()
        may_go_on.wait(60)
        yield 1

    iterator = gates.call_in_thread(getattr(pool, verb), tasks.square, source()).result(TIMEOUT_S)
    waiting = gates.call_in_thread(next, iterator)
    assert started.wait(TIMEOUT_S)
    try:
        gates.call_in_thread(pool.terminate).result(TIMEOUT_S)
        with pytest.raises(pool_party.PoolTerminated):
            waiting.result(TIMEOUT_S)
    finally:
        may_go_on.set()


# ---- exceptions that mean something to an iterator -------------------------


class EndsEarly(StopIteration):
    """One of the user's."""


def end_at_two(x, error):
    if x == 2:
        raise error
    return x


@pytest.mark.parametrize("chunksize", [1, 2])
@pytest.mark.parametrize("error", [StopIteration("over"), EndsEarly("over")], ids=["StopIteration", "subclass"])
@pytest.mark.parametrize("make_input", [list, iter])
def test_a_task_that_raises_stop_iteration_does_not_end_the_iteration(pool, verb, error, chunksize, make_input):
    """It is a RuntimeError, as in a generator (PEP 479)."""
    iterator = getattr(pool, verb)(
        functools.partial(end_at_two, error=error), make_input([0, 1, 2, 3, 4, 5]), chunksize
    )
    got, errors = [], []
    for _ in range(7 - chunksize // 2):
        try:
            got.append(next(iterator))
        except RuntimeError as caught:
            errors.append(caught)
        except StopIteration:
            break
    assert sorted(got) == ([0, 1, 3, 4, 5] if chunksize == 1 else [0, 1, 4, 5])
    assert [(type(caught.__cause__), str(caught.__cause__)) for caught in errors] == [(type(error), "over")]
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("error", [GeneratorExit, StopAsyncIteration, IndexError, SystemExit, KeyboardInterrupt])
def test_other_exceptions_that_end_loops_reach_the_caller(pool, verb, error):
    iterator = getattr(pool, verb)(functools.partial(end_at_two, error=error("over")), [2, 3])
    outcomes = []
    for _ in range(2):
        try:
            outcomes.append(next(iterator))
        except error as caught:
            outcomes.append(str(caught))
    assert sorted(map(str, outcomes)) == ["3", "over"]


def test_an_item_whose_pickling_raises_stop_iteration(remote_pool, verb):
    iterator = getattr(remote_pool, verb)(tasks.identity, iter([EndsWhenPickled()]))
    with pytest.raises(RuntimeError):
        next(iterator)


class EndsWhenPickled:
    def __reduce__(self):
        raise StopIteration
