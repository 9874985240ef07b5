"""Values arrive as they were sent: sizes, buffers, shapes, exceptions, and values that cannot travel."""

import array
import collections
import datetime
import decimal
import functools
import multiprocessing.pool
import pickle
import random
import re
import sys

import pytest
import tasks

import pool_party

KiB, MiB = 1 << 10, 1 << 20
# Sizes around powers of two, where a transport changes its method or wraps around.
BOUNDARY_SIZES = sorted(
    {0, 1, 7, 8, 9}
    | {
        base + delta
        for base in (
            *(1 << k for k in range(6, 21)),
            3 * 64 * KiB,
            5 * 64 * KiB,
        )
        for delta in (-64, -9, -8, -1, 0, 1, 8, 9, 64)
    }
)


# ---- bytes of every size ---------------------------------------------------


@pytest.mark.parametrize("make", [bytes, bytearray], ids=["bytes", "bytearray"])
def test_sizes_around_boundaries_as_arguments(remote_pool, make):
    values = [make(tasks.pattern(n, n)) for n in BOUNDARY_SIZES]
    assert remote_pool.map(tasks.checksum, values, 1) == list(map(tasks.checksum, values))


@pytest.mark.parametrize("chunksize", [1, 5])
def test_sizes_around_boundaries_as_results(remote_pool, chunksize):
    pairs = [(n, n) for n in BOUNDARY_SIZES]
    results = remote_pool.starmap(tasks.make_pattern, pairs, chunksize)
    for (n, seed), result in zip(pairs, results, strict=True):
        assert result == tasks.pattern(n, seed), n


def test_sizes_around_boundaries_there_and_back_one_by_one(remote_pool):
    for n in BOUNDARY_SIZES:
        value = tasks.pattern(n, n)
        assert remote_pool.apply(tasks.identity, (value,)) == value, n


def test_random_sizes_mixed_in_flight(remote_pool):
    rng = random.Random(20261120)
    sizes = [int(2 ** rng.uniform(0, 20)) for _ in range(300)]
    values = [tasks.pattern(n, i) for i, n in enumerate(sizes)]
    results = [remote_pool.apply_async(tasks.identity, (value,)) for value in values]
    for value, result in zip(values, results, strict=True):
        assert result.get(60) == value


@pytest.mark.parametrize("n_mib", [2, 16, 64])
def test_large_bytes_there_and_back(remote_pool, n_mib):
    value = tasks.pattern(n_mib * MiB, n_mib)
    assert remote_pool.apply(tasks.checksum, (value,)) == tasks.checksum(value)
    assert remote_pool.apply(tasks.make_pattern, (n_mib * MiB, 3)) == tasks.pattern(n_mib * MiB, 3)


@pytest.mark.parametrize("n_bytes", [32 * KiB, 256 * KiB, 40 * MiB])
def test_bytes_that_their_sender_keeps(remote_pool, n_bytes):
    value = tasks.pattern(n_bytes, 1)
    assert remote_pool.map(tasks.identity, [value] * 3, 1) == [value] * 3
    assert remote_pool.apply(tasks.identity, ((value, [value, value]),)) == (value, [value, value])
    assert remote_pool.starmap(tasks.keep_and_return, [(value, i) for i in range(4)], 1) == [value] * 4
    for kept in remote_pool.map(tasks.take_kept, [n_bytes] * 4, 1):
        assert kept == [value] * len(kept)
    assert value == tasks.pattern(n_bytes, 1)


@pytest.mark.parametrize("letter", ["x", "é", "λ", "🎉", "\ud800", "\0"], ids=ascii)
def test_text_of_every_kind_around_boundaries(remote_pool, letter):
    texts = [letter * (n // size) for size in (1, 2, 4) for n in (32 * KiB - 4, 32 * KiB, 32 * KiB + 4, MiB)]
    texts += [sys.intern(f"{letter}{i}" * 20_000) for i in range(3)]
    for text in texts:
        text.encode("utf-8", "surrogatepass"), hash(text)  # so that the object caches its UTF-8 form and its hash
        assert remote_pool.apply(tasks.identity, (text,)) == text
    assert remote_pool.map(tasks.identity, texts, 1) == texts
    assert remote_pool.map(tasks.identity, texts, 4) == texts
    assert remote_pool.apply(tasks.identity, ((texts[-1], [texts[0], texts[3]]),)) == (texts[-1], [texts[0], texts[3]])
    interned, there = remote_pool.apply(tasks.intern_and_keep, (texts[-1],))
    assert interned == texts[-1] and there
    assert remote_pool.map(sys.intern, texts[-3:] * 4, 1) == texts[-3:] * 4


def test_large_text_and_containers(remote_pool):
    text = "größer " * 100_000
    assert remote_pool.apply(tasks.identity, (text,)) == text
    numbers = list(range(200_000))
    assert remote_pool.apply(tasks.identity, (numbers,)) == numbers
    mapping = {str(i): (i, [i]) for i in range(20_000)}
    assert remote_pool.apply(tasks.identity, (mapping,)) == mapping


def test_large_function_arguments_in_every_place(remote_pool):
    data = tasks.pattern(300 * KiB)
    expected = tasks.checksum(data)
    assert remote_pool.apply(tasks.checksum_kwargs, (), {"data": data, "extra": 1}) == (expected, 1)
    bound = functools.partial(tasks.checksum, data)
    assert remote_pool.starmap(bound, [()] * 5, 1) == [expected] * 5
    assert remote_pool.apply(lambda: len(data)) == len(data)


# ---- out-of-band buffers ---------------------------------------------------


@pytest.mark.parametrize("n_bytes", [0, 1, 4096, 64 * KiB, 256 * KiB + 3, 4 * MiB, 64 * MiB])
def test_buffers_there_and_back(remote_pool, n_bytes):
    blob = tasks.make_blob(n_bytes, 5)
    assert remote_pool.apply(tasks.blob_checksum, (blob,)) == tasks.checksum(blob.data)
    result = remote_pool.apply(tasks.make_blob, (n_bytes, 9))
    assert result == tasks.make_blob(n_bytes, 9)


def test_many_buffers_in_one_value(remote_pool):
    blobs = [tasks.make_blob(n, n) for n in (0, 1, 100, 64 * KiB, 1, 300 * KiB, 0, 2 * MiB)]
    assert remote_pool.apply(tasks.identity, (blobs,)) == blobs
    assert remote_pool.map(tasks.identity, blobs * 4, 3) == blobs * 4


@pytest.mark.parametrize("n_bytes", [100, 64 * KiB, 4 * MiB])
def test_a_task_may_write_to_its_argument_and_nobody_else_sees_it(remote_pool, n_bytes):
    blob = tasks.make_blob(n_bytes)
    before = bytes(blob.data)
    changed = bytearray(before)
    changed[0] = (changed[0] + 1) % 256
    changed[-1] = (changed[-1] + 1) % 256
    answers = remote_pool.map(tasks.overwrite_blob, [blob] * 8, 1)
    assert answers == [tasks.checksum(changed)] * 8
    assert bytes(blob.data) == before


@pytest.mark.parametrize("n_bytes", [100, 64 * KiB, 4 * MiB])
def test_a_result_may_be_written_to_and_stays(remote_pool, n_bytes):
    results = [remote_pool.apply(tasks.make_blob, (n_bytes, seed)) for seed in range(8)]
    for result in results:
        memoryview(result.data)[0] = 0
    for seed, result in enumerate(results):
        assert bytes(result.data)[1:] == tasks.pattern(n_bytes, seed)[1:]


def test_results_outlive_their_pool(make_pool, remote_kind):
    pool = make_pool(2, kind=remote_kind)
    results = pool.starmap(tasks.make_blob, [(n, n) for n in (10, 64 * KiB, 2 * MiB)])
    pool.close()
    pool.join(timeout=30)
    assert results == [tasks.make_blob(n, n) for n in (10, 64 * KiB, 2 * MiB)]


def test_read_only_buffers(remote_pool):
    class ReadOnly:
        def __init__(self, data):
            self.data = data

        def __reduce_ex__(self, protocol):
            return ReadOnly, (pickle.PickleBuffer(self.data),)

    for n_bytes in (10, 2 * MiB):
        value = ReadOnly(tasks.pattern(n_bytes))
        assert remote_pool.apply(lambda v: tasks.checksum(v.data), (value,)) == tasks.checksum(value.data)


def test_array_module(remote_pool):
    values = array.array("d", range(50_000))
    assert remote_pool.apply(tasks.identity, (values,)) == values


# ---- shapes of values ------------------------------------------------------

VALUES = [
    None,
    True,
    -(2**100),
    3.5,
    float("inf"),
    1 + 2j,
    "",
    "é\ud800" + "𝄞",
    b"\0\xff",
    (),
    (1, (2, (3,))),
    [[], [[]]],
    {1: {2: {3: 4}}},
    {1, 2},
    frozenset({"a"}),
    range(3, 10, 2),
    slice(1, 2),
    Ellipsis,
    NotImplemented,
    decimal.Decimal("1.10"),
    re.compile("a+"),
    collections.OrderedDict(b=1, a=2),
    collections.deque([1, 2], maxlen=5),
    collections.Counter("aab"),
    ValueError("as a value", 3),
    int,
    len,
    tasks.square,
    tasks.Adder,
]
if sys.version_info >= (
    3,
    13,
):  # on 3.12, interpreters use datetime's Python version, whose objects have other types
    VALUES.append(datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC))


def are_equal(a, b):
    if isinstance(a, BaseException):
        return type(a) is type(b) and a.args == b.args
    return type(a) is type(b) and a == b


def test_values_of_every_sort(pool):
    for value in VALUES:
        assert are_equal(pool.apply(tasks.identity, (value,)), value), value
    for sent, got in zip(VALUES, pool.map(tasks.identity, VALUES), strict=True):
        assert are_equal(got, sent)


def test_an_exception_as_a_value_is_not_raised(pool):
    value = pool.apply(tasks.identity, (KeyError("k"),))
    assert type(value) is KeyError and value.args == ("k",)


def test_recursive_values(pool):
    ring = []
    ring.append(ring)
    assert (result := pool.apply(tasks.identity, (ring,)))[0] is result
    cycle = tasks.make_cycle()
    assert pool.apply(tasks.is_cycle_kept, (cycle,))
    assert tasks.is_cycle_kept(pool.apply(tasks.make_cycle))


def test_identity_within_one_call_is_kept(pool):
    shared = [1]
    assert pool.apply(tasks.are_same_object, ((shared, shared),))
    assert pool.apply(lambda a, b: a is b, (shared, shared))
    first, second = pool.apply(lambda: (lambda x: (x, x))([5]))
    assert first is second


def test_deeply_nested_value(remote_pool):
    value = None
    for _ in range(200):
        value = [value]
    assert remote_pool.apply(tasks.identity, (value,)) == value


def test_too_deeply_nested_value_fails_its_own_call(remote_pool):
    value = None
    for _ in range(200_000):
        value = [value]
    with pytest.raises(RecursionError):
        remote_pool.apply_async(tasks.identity, (value,)).get(30)
    while value is not None:  # take it apart, since its destruction would recurse as well
        (value,) = value
    assert remote_pool.apply(tasks.square, (2,)) == 4


def test_many_arguments(pool):
    args = tuple(range(500))
    kwargs = {f"k{i}": i for i in range(500)}
    assert pool.apply(tasks.echo, args, kwargs) == (args, kwargs)


# ---- exceptions ------------------------------------------------------------


def test_exception_with_keyword_arguments(pool):
    with pytest.raises(tasks.KeywordError) as caught:
        pool.apply(tasks.raise_keyword_error, ("m",), {"code": 7})
    assert caught.value.args == ("m",) and caught.value.code == 7


def test_exception_with_arguments_of_every_sort(pool):
    error = tasks.PlainError("text", 5, {"a": [1]}, None)
    with pytest.raises(tasks.PlainError) as caught:
        pool.apply(tasks.raise_error, (error,))
    assert caught.value.args == error.args


def test_exception_that_cannot_be_unpickled(remote_pool):
    with pytest.raises(pool_party.RemoteError) as caught:
        remote_pool.apply(tasks.raise_named, ("OddInitError", 5, "bad luck"))
    text = describe(caught.value)
    assert "OddInitError" in text and "5: bad luck" in text and "in raise_named" in text
    with pytest.raises(pool_party.RemoteError) as caught:
        remote_pool.apply(tasks.raise_exploding, ("nowhere else",))
    assert "ExplodingError" in describe(caught.value) and "nowhere else" in describe(caught.value)
    assert remote_pool.map(tasks.square, range(8), 1) == [x * x for x in range(8)]


def describe(error):
    """Everything that a user sees of an error: itself, its notes and its causes."""
    import traceback

    return "".join(traceback.format_exception(error))


def test_exception_that_cannot_be_pickled(remote_pool):
    with pytest.raises((pool_party.RemoteError, multiprocessing.pool.MaybeEncodingError)) as caught:
        remote_pool.apply(tasks.raise_named, ("UnpicklableError", "refuses"))
    assert "UnpicklableError" in describe(caught.value) and "refuses" in describe(caught.value)
    assert remote_pool.apply(tasks.square, (2,)) == 4


def test_one_bad_exception_among_good_results(remote_pool):
    def maybe(x):
        if x == 3:
            raise tasks.OddInitError(x, "odd")
        return x

    iterator = remote_pool.imap(maybe, range(6))
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(pool_party.RemoteError):
        next(iterator)
    assert list(iterator) == [4, 5]


# ---- what cannot travel ----------------------------------------------------


def notes_of(error):
    return "\n".join(getattr(error, "__notes__", ()))


@pytest.mark.parametrize(
    ("args", "kwds", "path"),
    [
        pytest.param((tasks.make_lock(),), {}, "args[0]", id="argument"),
        pytest.param((1, [2, {"x": tasks.make_lock()}]), {}, "args[1][1]['x']", id="nested"),
        pytest.param(({"x": tasks.make_lock()},), {}, "args[0]['x']", id="in-a-dict"),
        pytest.param((), {"k": (tasks.make_lock(),)}, "kwds['k'][0]", id="keyword"),
        pytest.param((tasks.Adder(tasks.make_lock()),), {}, "args[0].n", id="attribute"),
    ],
)
def test_unpicklable_argument_fails_at_once_with_the_path_to_it(remote_pool, args, kwds, path):
    with pytest.raises(TypeError, match=r"cannot pickle '_thread\.lock' object") as caught:
        remote_pool.apply_async(tasks.echo, args, kwds).get(30)
    assert path in notes_of(caught.value).replace("kwargs", "kwds")
    assert remote_pool.apply(tasks.square, (2,)) == 4


def test_unpicklable_item_of_a_map(remote_pool):
    with pytest.raises(TypeError, match="cannot pickle") as caught:
        remote_pool.map_async(tasks.identity, [1, 2, {"x": tasks.make_lock()}], 1).get(30)
    assert "['x']" in notes_of(caught.value)
    assert remote_pool.map(tasks.square, [1, 2]) == [1, 4]


def test_unpicklable_captured_variable(remote_pool):
    lock = tasks.make_lock()
    with pytest.raises(TypeError, match="cannot pickle"):
        remote_pool.apply_async(lambda: lock).get(30)


def test_argument_whose_pickling_raises_keeps_its_error(remote_pool):
    class Refuses:
        def __reduce__(self):
            raise KeyError("cannot be pickled")

    with pytest.raises(KeyError, match="cannot be pickled"):
        remote_pool.apply_async(tasks.identity, (Refuses(),)).get(30)
    with pytest.raises(KeyError, match="cannot be pickled"):
        remote_pool.map(tasks.identity, [Refuses()] * 10)


def test_an_unpicklable_argument_does_not_disturb_others_in_flight(make_pool, remote_kind, gate):
    pool = make_pool(1, kind=remote_kind)
    held = pool.apply_async(tasks.pass_gate, (gate.path, "held"))
    gate.wait_arrived()
    bad = pool.apply_async(tasks.identity, (tasks.make_lock(),))
    good = pool.apply_async(tasks.square, (3,))
    with pytest.raises(TypeError):  # at once, although the only worker is held
        bad.get(30)
    gate.release()
    assert (held.get(30), good.get(30)) == ("held", 9)


def test_argument_that_cannot_be_unpickled_in_the_worker(remote_pool):
    with pytest.raises(Exception, match="cannot be loaded here: ammunition"):
        remote_pool.apply_async(tasks.identity, (tasks.ExplodesElsewhere("ammunition"),)).get(30)
    assert remote_pool.apply(tasks.square, (2,)) == 4
    assert remote_pool.statistics().n_workers_lost == 0


def test_unpicklable_result(remote_pool):
    for _ in range(5):
        errors = []
        result = remote_pool.apply_async(tasks.make_lock, error_callback=errors.append)
        with pytest.raises(multiprocessing.pool.MaybeEncodingError) as caught:
            result.get(30)
        error = caught.value
        assert "lock" in error.value and "pickle" in error.exc
        assert "Error sending result: " in str(error) and "Reason: " in str(error)
        assert errors == [error]
    with pytest.raises(multiprocessing.pool.MaybeEncodingError):
        remote_pool.map(tasks.make_lock, range(4), 2)
    assert remote_pool.map(tasks.square, range(8), 1) == [x * x for x in range(8)]


def test_result_that_cannot_be_unpickled(remote_pool):
    for _ in range(3):
        with pytest.raises(pool_party.RemoteError) as caught:
            remote_pool.apply_async(tasks.make_exploding, ("wrapped gift",)).get(30)
        assert "wrapped gift" in describe(caught.value)
    iterator = remote_pool.imap(tasks.make_exploding, ["a", "b"])
    for _ in range(2):
        with pytest.raises(pool_party.RemoteError):
            next(iterator)
    assert remote_pool.map(tasks.square, range(8), 1) == [x * x for x in range(8)]


def test_result_whose_unpickling_raises_a_base_exception(remote_pool):
    with pytest.raises(BaseException) as caught:
        remote_pool.apply_async(tasks.BombResult).get(30)
    assert isinstance(caught.value, pool_party.RemoteError | SystemExit)
    assert remote_pool.apply(tasks.square, (2,)) == 4


def test_thread_pool_takes_what_cannot_be_pickled(make_pool):
    pool = make_pool(2, kind="thread")
    lock = tasks.make_lock()
    assert pool.apply(tasks.identity, (lock,)) is lock
    assert type(pool.apply(tasks.make_lock)) is type(lock)
    with pytest.raises(tasks.OddInitError, match="5: bad"):
        pool.apply(tasks.raise_named, ("OddInitError", 5, "bad"))


def test_arguments_are_taken_as_they_are_when_the_call_is_made(make_pool, remote_kind, gate):
    pool = make_pool(1, kind=remote_kind)
    held = pool.apply_async(tasks.pass_gate, (gate.path,))
    gate.wait_arrived()
    items = [1, 2]
    result = pool.apply_async(tasks.identity, (items,))
    items.append(3)
    gate.release()
    held.get(30)
    assert result.get(30) == [1, 2]


def test_failure_that_cannot_be_described_still_arrives(make_pool, remote_kind):
    pool = make_pool(1, kind=remote_kind)
    pool.apply(tasks.break_descriptions)
    with pytest.raises(pool_party.RemoteError, match="could not be described"):
        pool.apply_async(tasks.raise_named, ("ValueError",)).get(30)
    assert pool.apply(tasks.square, (3,)) == 9


# ---- files ----


def test_text_files_are_refused(remote_pool):
    """cloudpickle would send their text, and the receiver would get a StringIO."""
    with open(__file__) as file:
        for function, *args in (type, file), (lambda: file.name,):
            with pytest.raises(TypeError, match=r"cannot pickle '_io.TextIOWrapper' instances: open the file"):
                remote_pool.apply(function, args)
        assert file.tell() == 0
    with pytest.raises(multiprocessing.pool.MaybeEncodingError):
        remote_pool.apply(open, (__file__,))


def test_standard_streams_travel_by_name(remote_pool, monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    assert remote_pool.apply(lambda out=sys.__stdout__: out is sys.stdout)
