"""Copies of unpickled values are what unpickling again would make."""

import collections
import datetime
import decimal
import enum
import fractions
import gc
import pickle
import sys
import uuid
import weakref
import zoneinfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool_party import _native
from pool_party._wire import common


def duplicate(value):
    return _native.duplicate(value, common._constants())


class Color(enum.Enum):
    RED = 1
    BLUE = (2,)


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Day(datetime.date):
    """A subclass may have state of its own."""


class Plain:
    def __init__(self, **attributes):
        vars(self).update(attributes)


class Child(Plain):
    """A plain class may have plain bases."""


class Numbers(list):
    pass


class Slots:
    __slots__ = ("a",)

    def __init__(self):
        self.a = [1]


class WithSlot(Slots):
    """An instance has a slot and a `__dict__`."""


class SetsState(Plain):
    def __setstate__(self, state):
        vars(self).update(state)


class Ends(Plain):
    def __del__(self):
        pass


class Asks(Plain):
    def __getattr__(self, name):
        raise AttributeError(name)


class Made(Plain):
    def __new__(cls, **attributes):
        return object.__new__(cls)


atoms = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3), st.binary(max_size=3)
)
constants = st.one_of(
    *(st.dates(), st.datetimes(timezones=st.none() | st.just(datetime.UTC)), st.times(), st.timedeltas()),
    *(st.decimals(allow_nan=False), st.fractions(), st.uuids(), st.sampled_from([*Color, *Access])),
    *(st.just(~Access.READ), st.just(range(3)), st.just(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))),
)
fixed = st.recursive(
    atoms | constants, lambda parts: st.tuples(parts, parts) | st.frozensets(parts, max_size=2), max_leaves=4
)


def containers(parts):
    some = st.lists(parts, max_size=4)
    return st.one_of(
        some,
        some.map(tuple),
        st.dictionaries(fixed, parts, max_size=3),
        st.sets(fixed, max_size=3),
        st.builds(bytearray, st.binary(max_size=4)),
        st.builds(lambda a, b: Plain(a=a, b=b), parts, parts),
        st.builds(lambda a: Child(a=a), parts),
    )


values = st.recursive(fixed, containers, max_leaves=20)


def parts_of(value):
    """Return all objects in a value, by id, but instances' attributes, which are shared by their names."""
    found, todo = {}, [value]
    while todo:
        value = todo.pop()
        if id(value) in found:
            continue
        found[id(value)] = value
        if isinstance(value, dict):
            todo += [*value, *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            todo += value
        elif isinstance(value, Plain):
            todo += vars(value).values()
    return found


def check(value):
    value = pickle.loads(pickle.dumps(value, 5))
    before = pickle.dumps(value, 5)
    copy = duplicate(value)
    assert type(copy) is type(value) and pickle.dumps(copy, 5) == before == pickle.dumps(value, 5)
    shared = [part for key, part in parts_of(copy).items() if key in parts_of(value)]
    assert not any(isinstance(part, (list, dict, set, bytearray, Plain)) for part in shared)


@settings(deadline=None)
@given(values, st.lists(values, max_size=3), st.booleans())
def test_a_copy_is_what_unpickling_makes(value, more, is_recursive):
    whole = [value, *more, value, more, {"again": more, "value": value}, (value, more), Plain(more=more, value=value)]
    if is_recursive:
        more += [whole, (whole, more), Plain(whole=whole)]
    check(whole)


def test_tuples_may_contain_themselves():
    inner = []
    outer = (inner, [inner])
    inner.append(outer)
    check([outer, inner])
    check([inner, outer])


def test_classes_and_functions_are_shared():
    value = [Plain, len, check, [Plain]]
    assert duplicate(value[:1] + value[2:]) == [Plain, check, [Plain]]
    assert duplicate(value) is None  # a built-in function may be a method of an object in the value


@pytest.mark.parametrize(
    "value",
    [
        Numbers([1]),
        collections.deque([1]),
        Slots(),
        WithSlot(),
        SetsState(a=1),
        Ends(a=1),
        Asks(a=1),
        Made(a=1),
        memoryview(b"a"),
        {Plain(): 1},
        {Plain()},
        frozenset([Plain()]),
        Day(2026, 1, 1),
        [].append,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_copied(value):
    assert duplicate(value) is None
    assert duplicate([1, (2, {"a": [value]})]) is None
    assert duplicate(Plain(a=[], b=value)) is None


CONSTANTS = [
    datetime.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC")),
    *(datetime.timedelta(1), decimal.Decimal(1), fractions.Fraction(1, 2), uuid.UUID(int=1), range(3), *Color),
]


@pytest.mark.parametrize("value", CONSTANTS, ids=lambda value: type(value).__name__)
def test_constants_are_shared(value):
    copy = duplicate([value, {value: [value]}, Plain(a=value)])
    assert copy[0] is value and copy[1].popitem()[1][0] is value and copy[2].a is value
    assert _native.duplicate([value], ()) is None


def test_what_nests_too_deep():
    value = []
    for _ in range(200_000):
        value = [value]
    assert duplicate(value) is None
    while value:  # otherwise its end would nest as deep
        value = value.pop()


def test_nothing_is_retained():
    text = "".join(["a", "text"])
    value = [[text], {"a": [text]}, (text, [text]), Plain(a=[text], b={text})]
    value.append(value)
    n_references = sys.getrefcount(text)
    copy = duplicate(value)
    mark = weakref.ref(copy[3])
    copy.clear()
    value[0].append(memoryview(b"a"))
    assert duplicate(value) is None
    gc.collect()
    assert mark() is None and sys.getrefcount(text) == n_references


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(is_enabled):
    (gc.enable if is_enabled else gc.disable)()
    try:
        for value in ([1, [2]], [1, memoryview(b"a")]):
            duplicate(value)
            assert gc.isenabled() == is_enabled
    finally:
        gc.enable()


def make_rows():
    return pickle.loads(pickle.dumps([[[1.5], {"a": [2.5], "b": ([3.5], 4)}], [bytes(9)], ()], 5))


CHANGES = {
    "an item": lambda rows: rows[0][0].append(1),
    "an equal item": lambda rows: rows[0].__setitem__(0, [float("1.5")]),
    "a swap": lambda rows: rows.reverse(),
    "a value": lambda rows: rows[0][1].update(a=1),
    "the order of keys": lambda rows: rows[0][1].update(a=rows[0][1].pop("a")),
    "a key": lambda rows: rows[0][1].pop("b"),
    "in a tuple": lambda rows: rows[0][1]["b"][0].clear(),
    "one list twice": lambda rows: rows[0].__setitem__(0, rows[0][1]["a"]),
    "the type": lambda rows: rows.__setitem__(1, tuple(rows[1])),
    "a cycle": lambda rows: rows[0].append(rows),
}
needs_gil = pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="copies are not used again")


@needs_gil
def test_an_unchanged_copy_can_be_used_again():
    originals = [make_rows(), "text"]
    copies = duplicate(originals)
    assert _native.is_reusable(copies, originals)
    copies[0][0][0].append(1)
    copies[0][0][0].pop()
    assert _native.is_reusable(copies, originals)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_copy_is_not_used_again(change):
    originals = [make_rows()]
    copies = duplicate(originals)
    change(copies[0])
    assert not _native.is_reusable(copies, originals)


@pytest.mark.parametrize(
    "keep",
    [
        lambda rows: rows,
        lambda rows: rows[0][1]["a"],
        lambda rows: rows[0][1]["b"],
        lambda rows: iter(rows[0]),
        lambda rows: rows[0][1].items(),
        lambda rows: rows[1].append,
        lambda rows: (row for row in rows),
    ],
)
def test_a_copy_that_a_task_has_kept_is_not_used_again(keep):
    originals = [make_rows()]
    copies = duplicate(originals)
    kept = keep(copies[0])
    assert kept is not None and not _native.is_reusable(copies, originals)


def test_a_copy_with_several_references_inside_is_not_used_again():
    first, second = [1], [1]
    originals = pickle.loads(pickle.dumps([[first, first, second, second]], 5))
    copies = duplicate(originals)
    copies[0][:] = [copies[0][0], copies[0][2]] * 2  # the same numbers of references, in other places
    assert not _native.is_reusable(copies, originals)


@settings(deadline=None)
@given(values)
def test_a_copy_that_is_used_again_is_what_unpickling_makes(value):
    originals = pickle.loads(pickle.dumps([value], 5))
    before = pickle.dumps(originals, 5)
    copies = duplicate(originals)
    if _native.is_reusable(copies, originals):
        assert pickle.dumps(copies, 5) == before
