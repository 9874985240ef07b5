"""What pools read of their inputs, and when: inputs in memory are taken at once, all others while tasks run."""

import array
import collections
import functools
import itertools
import multiprocessing
import multiprocessing.pool
import random
import subprocess
import sys
import threading
import weakref

import fresh
import gates
import pytest
import tasks

from pool_party import TaskTimeout
from pool_party._core.submit import Submitter

TIMEOUT_S = 60


class Items:
    """A sequence of a class of the user's: it has a length, and makes its items when it is asked for them.

    length: what `len` says, or an exception that it raises. end: the index of which there is no item; None: it has no
    end. raises_at: the index at which reading fails.
    """

    def __init__(self, length, end, raises_at=None, make=lambda i: i):
        self.length, self.end, self.raises_at, self.make = length, end, raises_at, make
        self.n_read = 0

    def __len__(self):
        if isinstance(self.length, Exception):
            raise self.length
        return self.length

    def __getitem__(self, i):
        if i == self.raises_at:
            raise OSError(f"item {i} cannot be read")
        if self.end is not None and i >= self.end:
            raise IndexError(i)
        self.n_read += 1
        return self.make(i)


class Sized(Items):
    """The same, with an iterator of its own."""

    def __iter__(self):
        return (
            map(self.__getitem__, range(self.end)) if self.end is not None else map(self.__getitem__, itertools.count())
        )


def items_after(gate, n, make=lambda i: i):
    """Items of which all but the first can only be read after a task has arrived at the gate, which then is opened."""

    def make_item(i):
        if i == 1:
            gate.wait_arrived()
            gate.release()
        return make(i)

    return Items(n, n, make=make_item)


# ---- reading goes on while tasks run ----


@pytest.mark.parametrize("verb", ["map", "imap", "imap_unordered"])
def test_the_first_task_begins_before_the_second_item_is_read(make_pool, kind, gate, verb):
    pool = make_pool(2, kind=kind)
    call = functools.partial(tasks.pass_gate_if, gate.path, 0)
    assert sorted(getattr(pool, verb)(call, items_after(gate, 9), 1)) == list(range(9))


def test_starmap_reads_while_tasks_run(make_pool, kind, gate):
    pool = make_pool(2, kind=kind)
    items = items_after(gate, 9, lambda i: (gate.path, 0, i))
    assert pool.starmap(tasks.pass_gate_if, items, 1) == list(range(9))


@pytest.mark.parametrize("verb", ["map_async", "imap"])
def test_reading_stops_a_bounded_number_of_items_ahead(make_pool, kind, gate, verb):
    pool = make_pool(1, kind=kind)
    items = Items(10**6, None)
    result = getattr(pool, verb)(functools.partial(tasks.pass_gate, gate.path), items, 1)
    gate.wait_arrived()
    assert items.n_read <= 64
    assert pool.apply_async(tasks.square, (3,)).ready() is False
    if verb == "map_async":
        assert result.cancel()
    del result
    gate.release(64)


def test_large_items_are_not_read_far_ahead(make_pool, remote_kind, gate):
    pool = make_pool(1, kind=remote_kind)
    items = Items(50, 50, make=lambda i: bytes(4 << 20))
    result = pool.map_async(functools.partial(tasks.pass_gate, gate.path), items, 1)
    gate.wait_arrived()
    gates.wait_until(lambda: items.n_read >= 2, "an item waits for the worker")
    assert items.n_read <= 6
    assert result.cancel()
    gate.release(6)


def test_what_is_read_is_encoded_at_once(remote_pool):
    """Items that are changed by the next step, as of a reader that fills the same buffer, have their values."""
    buffer = [0, 0]

    def fill(i):
        buffer[:] = [i, i]
        return buffer

    expected = [[i, i] for i in range(200)]
    assert remote_pool.map(tasks.identity, Items(200, 200, make=fill), 1) == expected
    assert remote_pool.map(tasks.identity, Items(200, 200, make=lambda i: list(fill(i))), 7) == expected
    assert list(remote_pool.imap(tasks.identity, Items(200, 200, make=fill))) == expected


# ---- lengths ----


def test_sequences_without_an_end(pool):
    """Data sets often have a length and no IndexError."""
    assert pool.map(tasks.square, Items(10, None)) == [i * i for i in range(10)]
    assert pool.map(tasks.square, Sized(10, None), 3) == [i * i for i in range(10)]
    assert list(itertools.islice(pool.imap(tasks.square, Items(10, None)), 10)) == [i * i for i in range(10)]
    assert list(itertools.islice(pool.imap(tasks.square, range(10**30)), 10)) == [i * i for i in range(10)]


@pytest.mark.parametrize("chunksize", [None, 1, 4])
@pytest.mark.parametrize("make", [Items, Sized])
def test_an_input_that_is_shorter_than_its_length(pool, make, chunksize):
    """multiprocessing.Pool waits for the missing results for ever."""
    for end in (0, 1, 5, 8, 99):
        assert pool.map(tasks.square, make(100, end), chunksize) == [i * i for i in range(end)]
    assert list(pool.imap(tasks.square, make(100, 5), chunksize or 1)) == [0, 1, 4, 9, 16]


def test_all_results_are_there_before_it_is_known_that_the_input_was_short(pool, monkeypatch):
    put = Submitter._put_chunk

    def put_and_wait(self, job, fn, index, items, star):
        put(self, job, fn, index, items, star)
        gates.wait_until(lambda: job.n_delivered > index, "delivered")

    monkeypatch.setattr(Submitter, "_put_chunk", put_and_wait)
    assert pool.map(tasks.square, Sized(10, 9), 4) == [i * i for i in range(9)]


def test_a_length_that_cannot_be_told(pool):
    """`len` of a tqdm over a generator raises TypeError, for example. Other exceptions reach the caller."""
    for length in (TypeError("unknown"), TypeError("unknown")):
        assert pool.map(tasks.square, Sized(length, 5)) == [0, 1, 4, 9, 16]
        assert list(pool.imap(tasks.square, Sized(length, 5))) == [0, 1, 4, 9, 16]
    with pytest.raises(OSError, match="no length"):
        pool.map(tasks.square, Sized(OSError("no length"), 5))


def test_an_empty_sequence_is_not_read(pool):
    items = Items(0, None)
    called = []
    result = pool.map_async(tasks.square, items, callback=called.append)
    assert result.get(TIMEOUT_S) == []
    assert items.n_read == 0
    assert called == []  # as in multiprocessing.Pool


# ---- exceptions ----


@pytest.mark.parametrize("chunksize", [1, 3])
@pytest.mark.parametrize("raises_at", [0, 1, 7, 19])
def test_an_input_that_raises(pool, raises_at, chunksize):
    """Its exception is that of the call, once all tasks that were submitted have run. None runs afterwards."""
    result = pool.map_async(tasks.square, Items(20, 20, raises_at), chunksize)
    with pytest.raises(OSError, match=f"item {raises_at} cannot be read"):
        result.get(TIMEOUT_S)
    assert not result.successful()
    assert pool.statistics().n_pending == 0
    errors = []
    pool.map_async(tasks.square, Items(20, 20, raises_at), chunksize, error_callback=errors.append).wait(TIMEOUT_S)
    gates.wait_until(lambda: errors, "the callback was called")
    assert str(errors[0]) == f"item {raises_at} cannot be read"


def test_the_first_failure_to_arrive_is_that_of_the_call(make_pool, kind, gate):
    pool = make_pool(1, kind=kind)

    def make(i):
        if i == 1:
            gates.wait_until(lambda: pool.statistics().n_failed, "the task has failed")
        return i

    with pytest.raises(ValueError, match="0"):
        pool.map(raise_value_error, Items(3, 3, raises_at=2, make=make), 1)


def raise_value_error(x):
    raise ValueError(x)


def test_an_input_that_raises_after_tasks_wait_for_them(make_pool, kind, gate):
    pool = make_pool(1, kind=kind)
    result = pool.map_async(functools.partial(tasks.pass_gate, gate.path), Items(3, 3, raises_at=1), 1)
    gate.wait_arrived()
    assert not result.ready()
    gate.release()
    with pytest.raises(OSError, match="item 1"):
        result.get(TIMEOUT_S)


# ---- options and ends ----


def test_retries_of_an_input_that_is_read(make_pool, kind, tmp_path):
    pool = make_pool(2, kind=kind)
    attempts = [(str(tmp_path / str(i)), 1, "raise") for i in range(5)]
    items = Items(5, 5, make=attempts.__getitem__)
    assert len(pool.options(retries=1, retry_on=ValueError).starmap(tasks.fail_at_first, items)) == 5


def test_a_deadline_while_the_input_is_being_read(make_pool, kind, gate):
    pool = make_pool(1, kind=kind)
    may_end = threading.Event()
    items = Items(2, 2, make=lambda i: i if i == 0 else may_end.wait(TIMEOUT_S))
    with pytest.raises(TaskTimeout):
        pool.map(tasks.square, items, 1, deadline_s=0.1)
    may_end.set()
    assert pool.apply(tasks.square, (3,)) == 9


@pytest.mark.parametrize("how", ["terminate", "cancel"])
def test_reading_ends_with_the_call(make_pool, kind, how):
    pool = make_pool(1, kind=kind)
    items = Sized(10**6, None)
    let_go = weakref.ref(items)
    result = pool.map_async(tasks.square, items, 1)
    del items
    pool.terminate() if how == "terminate" else result.cancel()
    gates.wait_until(lambda: let_go() is None, "the thread that reads has ended")


# ---- inputs in memory ----


def test_inputs_in_memory_need_no_thread(pool, monkeypatch):
    monkeypatch.delattr(Submitter, "read")
    inputs = [
        [1, 2],
        (1, 2),
        range(1, 3),
        {1: 0, 2: 0},
        {1, 2},
        {1: 0, 2: 0}.keys(),
        b"\x01\x02",
        collections.deque([1, 2]),
    ]
    for value in inputs:
        assert pool.map(tasks.square, value) == [1, 4]
        assert list(pool.imap(tasks.square, value, 2)) == [1, 4]
    assert pool.map(tasks.identity, "ab") == ["a", "b"]


def test_an_array_of_numbers_is_read_like_other_sequences(pool):
    assert pool.map(tasks.square, array.array("l", [1, 2])) == [1, 4]


@pytest.mark.parametrize("chunksize", [None, 1, 5000])
def test_ranges(pool, chunksize):
    for value in (range(0), range(5), range(10, -10, -3), range(12_000)):
        assert pool.map(tasks.square, value, chunksize) == [x * x for x in value]
        assert list(pool.imap(tasks.square, value, chunksize or 7)) == [x * x for x in value]


def test_an_input_that_is_changed_after_the_call(make_pool, kind, gate):
    """Lists, dicts and arrays of numbers are those of the time of the call, even of tasks that wait for room."""
    numpy = pytest.importorskip("numpy")
    if kind == "interp" and sys.version_info < (3, 14):
        pytest.skip("NumPy is for interpreters on 3.14 and later")
    pool = make_pool(1, kind=kind)
    held = pool.apply_async(tasks.pass_gate, (gate.path,))
    gate.wait_arrived()
    n = 40_000
    values = list(range(n))
    numbers = numpy.arange(n)
    results = [pool.map_async(tasks.square, values, 1), pool.map_async(tasks.square, numbers, 5000)]
    values.clear()
    numbers[:] = 0
    gate.release()
    held.get(TIMEOUT_S)
    for result in results:
        assert result.get(TIMEOUT_S) == [i * i for i in range(n)]


def test_arrays(pool, tmp_path):
    numpy = pytest.importorskip("numpy")
    if pool._engine.kind == "interp" and sys.version_info < (3, 14):
        pytest.skip("NumPy is for interpreters on 3.14 and later")
    table = numpy.arange(12.0).reshape(4, 3)
    for chunksize in (None, 1, 3):
        assert pool.map(sum_of, table, chunksize) == [3.0, 12.0, 21.0, 30.0]
        assert list(pool.imap(sum_of, table[::-1], chunksize or 2)) == [30.0, 21.0, 12.0, 3.0]
        assert pool.map(type_of, table[0], chunksize) == ["float64"] * 3
    with pytest.raises(TypeError):
        pool.map(sum_of, numpy.array(3.0))
    file = numpy.memmap(tmp_path / "file", numpy.float64, "w+", shape=(4, 3))
    file[:] = table
    for mapped in (file, numpy.asarray(file)):
        assert pool.map(sum_of, mapped) == [3.0, 12.0, 21.0, 30.0]


def sum_of(row):
    return float(row.sum())


def type_of(x):
    return type(x).__name__


# ---- compared with multiprocessing.Pool ----


def odd_square(x):
    if x % 17 == 16:
        raise ZeroDivisionError(x)
    return x * x


def outcome_of(call, *args):
    """Return what a call returned or raised, as comparable values."""
    try:
        return call(*args)
    except Exception as error:
        return type(error).__name__, str(error)


def consume(iterator):
    """Return the results of an iterator up to its end, or its first failure."""
    got = []
    try:
        for value in iterator:
            got.append(value)
    except Exception as error:
        got.append((type(error).__name__, str(error)))
    return got


def make_input(rng, verb):
    """Return a function that makes an input, with which multiprocessing.Pool neither hangs nor reads without end."""
    n = rng.choice([0, 1, 2, 5, 16, 33, 100])
    raises_at = rng.choice([None, None, rng.randrange(n + 1)])
    how = rng.choice(["list", "tuple", "range", "generator", "items", "sized", "deque"])
    if how in ("items", "sized") and verb in ("map", "starmap"):
        raises_at = None
    star = (lambda i: (i,)) if verb == "starmap" else (lambda i: i)

    def generate():
        for i in range(n):
            if i == raises_at:
                raise OSError(f"item {i} cannot be read")
            yield star(i)

    if how == "range" and verb != "starmap":
        return lambda: range(n)
    makers = {
        "generator": generate,
        "items": lambda: Items(n, n, raises_at, star),
        "sized": lambda: Sized(n, n, raises_at, star),
        "deque": lambda: collections.deque(map(star, range(n))),
        "tuple": lambda: tuple(map(star, range(n))),
    }
    return makers.get(how, lambda: list(map(star, range(n))))


def compare(seed, pool, reference):
    """Run a random call on both pools, and return both outcomes."""
    rng = random.Random(seed)
    verb = rng.choice(["map", "starmap", "imap", "imap_unordered"])
    function = rng.choice([tasks.square, odd_square])
    make = make_input(rng, verb)
    chunksize = rng.choice([1, 2, 3, 10, 1000] + [None] * (verb in ("map", "starmap")))
    found = []
    for subject in (pool, reference):
        call = getattr(subject, verb)
        if verb in ("map", "starmap"):
            found.append(outcome_of(call, function, make(), chunksize))
        elif verb == "imap":
            found.append(consume(call(function, make(), chunksize)))
        else:
            got = consume(call(function, make(), chunksize))
            is_failed = any(isinstance(value, tuple) for value in got)
            found.append([] if is_failed else sorted(got))  # which of them come before the failure is chance
    return (verb, chunksize, *found)


def normalized(outcome):
    """Return an outcome of which the failure that arrived first may have been another one of the tasks'."""
    if isinstance(outcome, tuple) and outcome[0] == "ZeroDivisionError":
        return "ZeroDivisionError"
    return outcome


def test_the_same_as_in_the_pools_of_the_standard_library(pool):
    with multiprocessing.pool.ThreadPool(2) as reference:
        for seed in range(60):
            verb, chunksize, ours, theirs = compare(seed, pool, reference)
            assert normalized(ours) == normalized(theirs), (seed, verb, chunksize)


# ---- memory ----

PEAK = """
import sys, multiprocessing
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
if __name__ == "__main__":
    if sys.argv[1] == "standard library":
        pool = multiprocessing.get_context("fork").Pool(2)
    else:
        from pool_party import ComposablePool
        pool = ComposablePool(2, kind="process")
    pool.map(abs, range(10))
    before = peak()
    pool.map(abs, range(2_000_000))
    print(peak() - before)
    pool.terminate()
"""


def test_a_map_of_a_range_needs_no_more_memory_than_in_the_standard_library(tmp_path):
    program = tmp_path / "peak.py"
    program.write_text(PEAK)
    grown = [
        int(
            subprocess.run(
                [sys.executable, program, which], env=fresh.environment(), stdout=subprocess.PIPE, check=True
            ).stdout
        )
        for which in ("ours", "standard library")
    ]
    assert grown[0] <= grown[1] + 16384  # KiB; guess: what is on its way when memory is highest
