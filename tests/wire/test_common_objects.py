"""An object of any type that several tasks of one call name is pickled once, and no task notices."""

import collections
import copyreg
import datetime
import enum
import multiprocessing
import pathlib
import pickle
import weakref
from decimal import Decimal
from fractions import Fraction

import commons
import gates
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_common import CAN_SET_APART

from pool_party._wire import common

N_TASKS = 8
N = 600  # texts in an object whose pickle is large enough


def text(i):
    return f"text {i} " + "-" * 500


OBJECTS = {
    "list of ints": lambda: list(range(40_000)),
    "list of strings": lambda: [text(i) for i in range(N)],
    "list of lists": lambda: [[i, text(i)] for i in range(N)],
    "tuple": lambda: tuple(text(i) for i in range(N)),
    "dict": lambda: {text(i): i for i in range(N)},
    "dict of lists": lambda: {i: [text(i)] for i in range(N)},
    "dates": lambda: [(text(i), datetime.datetime(2026, 1, 1) + datetime.timedelta(i), Decimal(i)) for i in range(N)],
    "set": lambda: {text(i) for i in range(N)},
    "instance": lambda: commons.Plain([text(i) for i in range(N)]),
    "subclass of list": lambda: commons.Numbers(text(i) for i in range(N)),
    "deque": lambda: collections.deque(text(i) for i in range(N)),
    "with a buffer": lambda: [commons.Buffer(bytearray(100_000)), [text(i) for i in range(N)]],
}


class Color(enum.Enum):
    RED = 1


class Reduced(enum.Enum):
    RED = 1

    def __reduce_ex__(self, protocol):
        return Color, (1,)


class Day(datetime.date):
    """It may have attributes."""


class Zone(datetime.tzinfo):
    """It may have attributes, too."""


@pytest.mark.parametrize("kind", [datetime.datetime, datetime.timedelta, Decimal, Fraction, range, Color])
def test_workers_unpickle_constants_once(kind, monkeypatch):
    assert common._is_copied(kind)
    monkeypatch.setitem(copyreg.dispatch_table, kind, lambda value: (str, ("whatever it returns",)))
    assert not common._is_copied(kind)


@pytest.mark.parametrize("kind", [Day, Zone, Reduced, pathlib.PosixPath, collections.deque])
def test_workers_unpickle_what_may_change_for_each_task(kind):
    assert not common._is_copied(kind)


@pytest.fixture(params=[1, 3])
def chunk(request):
    return request.param


@pytest.mark.parametrize("name", sorted(OBJECTS.keys() - {"tuple"}))
def test_what_a_task_changes_no_other_sees(remote_pool, name, chunk):
    value = OBJECTS[name]()
    before = pickle.dumps(value, 5)
    seen = remote_pool.starmap(commons.change, [(value, i) for i in range(12)], chunk)
    assert seen == [i % chunk for i in range(12)]  # the items of a chunk are one object, as with multiprocessing.Pool
    assert pickle.dumps(value, 5) == before


@pytest.mark.parametrize("name", OBJECTS)
def test_it_arrives_whole(remote_pool, name):
    value = OBJECTS[name]()
    found = remote_pool.starmap(commons.content, [(value, i) for i in range(N_TASKS)], 1)
    assert found == [commons.content(value, i) for i in range(N_TASKS)]


def test_it_is_pickled_once(remote_pool):
    value = commons.Counted([text(i) for i in range(N)])
    assert remote_pool.starmap(commons.length, [(value, i) for i in range(30)], 1) == [N] * 30
    assert value.n_pickled == (2 if CAN_SET_APART else 30)  # with the first task, and for all others


def test_a_whole_argument_is_pickled_once(remote_pool):
    value = commons.Counted([text(i) for i in range(N)])
    assert remote_pool.map(len, [value] * 30, 1) == [N] * 30
    assert value.n_pickled == (2 if CAN_SET_APART else 30)


def test_code_of_objects_runs_only_when_they_are_pickled(remote_pool):
    value = commons.Particular([text(i) for i in range(N)])
    assert remote_pool.starmap(commons.length, [(value, i) for i in range(9)], 1) == [N] * 9


def test_objects_by_turns(remote_pool):
    values = [commons.Counted([text(1000 * i + n) for n in range(N)]) for i in range(3)]
    items = [(values[i % 3], i) for i in range(30)]
    assert remote_pool.starmap(commons.first, items, 1) == [value.parts[0] for value, _ in items]
    if CAN_SET_APART:
        assert [value.n_pickled for value in values] == [2] * 3


@pytest.mark.parametrize("size", ["large", "small"])
def test_a_stream_takes_it_as_it_is_when_it_is_read(remote_pool, size):
    value = [0] + [text(i) for i in range(N if size == "large" else 10)]

    def read():
        for i in range(10):
            value[0] = i
            yield value

    assert list(remote_pool.imap(commons.first_item, read())) == list(range(10))


def test_a_stream_pickles_what_cannot_change_once(remote_pool):
    value = tuple((text(i), i) for i in range(N))
    made = []
    original = common._Base.__init__
    try:
        common._Base.__init__ = lambda *args: (made.append(1), original(*args))[1]
        assert list(remote_pool.imap(commons.length_of, (value for _ in range(12)))) == [N] * 12
    finally:
        common._Base.__init__ = original
    assert len(made) == (1 if CAN_SET_APART else 0)


@pytest.mark.parametrize(
    "part", [list, collections.deque, lambda texts: commons.Plain(texts)], ids=["list", "deque", "instance"]
)
def test_parts_are_of_one_task(remote_pool, part):
    value = [part([text(i)]) for i in range(N)]
    assert remote_pool.starmap(commons.change_part, [(value, i) for i in range(12)], 1) == [1] * 12


def test_what_a_reducer_returns_is_made_for_each_task(remote_pool):
    value = commons.Numbered([text(i) for i in range(N)])
    numbers = remote_pool.map(commons.first_item, [value] * 30, 1)
    n_workers = remote_pool.statistics().n_workers
    assert max(collections.Counter(numbers).values()) <= n_workers


@pytest.mark.parametrize("which", ["part", "text", "twice", "itself", "in a dict", "parent", "item"])
def test_identity_inside_a_task_is_kept(remote_pool, which, chunk):
    value = [[text(i)] for i in range(N)]
    items = {
        "part": lambda i: (value, value[3], i),
        "text": lambda i: (value, value[3][0], i),
        "twice": lambda i: (value, value, i),
        "itself": lambda i: (value, {"inner": value}, i),
        "in a dict": lambda i: ({"a": value}, {"b": [value]}, i),
        "parent": lambda i: (value, [value[0], value[-1]], i),
        "item": lambda _: (value, value[1], value),
    }[which]
    if which == "itself":
        value.append(value)
    tasks = [items(i) for i in range(9)]
    assert remote_pool.map(commons.shape, tasks, chunk) == [commons.shape(task) for task in tasks]


def test_a_reducer_runs_no_more_often_than_with_a_pool(remote_pool, chunk):
    value, inner = commons.Counted([text(i) for i in range(N)]), commons.Counted(["a"])
    items = [(value, inner, i) for i in range(9)]
    remote_pool.map(commons.length_of, items, chunk)
    n_chunks = 9 // chunk
    assert value.n_pickled <= n_chunks and inner.n_pickled <= n_chunks


def test_what_one_receiver_may_load_is_pickled_for_each(remote_pool):
    ours, theirs = multiprocessing.Pipe()
    value = [theirs, [text(i) for i in range(N)]]
    try:
        assert remote_pool.starmap(commons.send_through, [(value, i) for i in range(9)], 1) == [N] * 9
        assert sorted(ours.recv() for _ in range(9)) == list(range(9))
    finally:
        ours.close()
        theirs.close()


def test_the_rest_may_need_another_pickler(remote_pool):
    value = [text(i) for i in range(N)]
    items = [(value, (lambda x, i=i: x + i) if i > 3 else abs) for i in range(9)]
    assert remote_pool.starmap(commons.call_with_length, items, 1) == [N] * 4 + [N + i for i in range(4, 9)]


def test_the_error_of_the_rest_names_its_part(remote_pool):
    value = [text(i) for i in range(N)]
    generator = (i for i in ())
    items = [(value, generator if i == 6 else i) for i in range(9)]
    with pytest.raises(TypeError, match="generator") as caught:
        remote_pool.starmap(commons.length, items, 1)
    assert any("[1] does not pickle" in note for note in caught.value.__notes__)


def test_the_caller_does_not_keep_it_for_the_call(remote_pool):
    value = commons.Numbers(text(i) for i in range(N))
    mark = weakref.ref(value)
    items = [(value, i) for i in range(9)]
    remote_pool.starmap(commons.length, items, 1)
    del items, value
    gates.wait_until(lambda: mark() is None, "the caller's object is let go")
    gates.wait_until(lambda: not remote_pool._engine._channel.has_pins, "nothing is retained")


atoms = st.sampled_from(["shared", "part", "text", "small", 1, None])
trees = st.recursive(atoms, lambda t: st.lists(t, min_size=1, max_size=3) | st.tuples(t, t), max_leaves=6)


def build(tree, objects):
    if isinstance(tree, (list, tuple)):
        return type(tree)(build(part, objects) for part in tree)
    return objects.get(tree, tree)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    items=st.lists(trees, min_size=3, max_size=10),
    chunk=st.integers(1, 3),
    name=st.sampled_from([*OBJECTS]),
    cycle=st.booleans(),
)
def test_any_mixture_arrives_as_pickle_would_send_it(remote_pool, items, chunk, name, cycle):
    shared, part, small = OBJECTS[name](), ["a part"], commons.Plain("small")
    if type(shared) is list:
        shared.append(part)
        if cycle:
            shared.append(shared)
    objects = {"shared": shared, "part": part, "text": "some text", "small": small}
    values = [(build(tree, objects), shared) for tree in items]
    expected = [commons.shape(value) for value in values]
    assert remote_pool.map(commons.shape, values, chunk) == expected
    assert list(remote_pool.imap(commons.shape, values, chunk)) == expected
