"""Values in the typed encoding arrive exactly as with pickle: types, bits, and object identity."""

import math
import pickle
import random
import struct
import threading

import properties
import pytest
import tasks

FLOATS = (0.0, -0.0, 1.5, math.inf, -math.inf, 5e-324, 1.7976931348623157e308)
NANS = tuple(
    struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (0x7FF8 << 48, 0xFFF8 << 48 | 1, 0x7FF8 << 48 | 77)
)
INTS = (0, -1, 5, 257, 2**30, -(2**30), 2**31, 2**62, 2**63 - 1, -(2**63))
WIDE_INTS = (2**63, -(2**63) - 1, 2**64, 10**30)
OTHERS = (
    None,
    True,
    False,
    "text",
    "größer",
    b"",
    b"bytes",
    1j,
    tasks.OddFloat(2.5),
    tasks.OddInt(7),
    bytearray(b"x"),
    {},
    {"k": 1},
)

KEYS = ("key", "größe", 0, 1.5, None, b"k", (1, "a"), frozenset((1,)), 2**70)


def picture(value, seen=None):
    """A full picture of a value: types, bits, and which mutable objects in it are the same."""
    seen = {} if seen is None else seen
    if isinstance(value, float):
        return type(value).__name__, struct.pack("<d", value)
    if isinstance(value, list | tuple):
        if isinstance(value, list):
            if id(value) in seen:
                return "again", seen[id(value)]
            seen[id(value)] = len(seen)
        return type(value).__name__, [picture(item, seen) for item in value]
    if isinstance(value, dict):
        if id(value) in seen:
            return "again", seen[id(value)]
        seen[id(value)] = len(seen)
        return type(value).__name__, [(picture(key, seen), picture(item, seen)) for key, item in value.items()]
    return type(value).__name__, repr(value)


def by_pickle(value):
    return picture(pickle.loads(pickle.dumps(value, 5)))


def draw_list(rng):
    size = rng.choice((0, 1, 2, 3, 5, 17, 70, 200, 4_100))
    pool = rng.choice((FLOATS + NANS, INTS, INTS, (True, False), (1, True), (1, 1.0), (*FLOATS, tasks.OddFloat(1))))
    items = [rng.choice(pool) for _ in range(size)]
    for _ in range(rng.choice((0, 0, 0, 1)) if items else 0):
        items[rng.randrange(size)] = rng.choice(OTHERS + WIDE_INTS + (3, 2.5))
    return items


def draw(rng, depth=3):
    kind = rng.choice(("list", "list", "tuple", "nest", "dict", "dict", "scalar", "bytes", "text", "odd"))
    if kind == "list" or depth == 0:
        return draw_list(rng)
    if kind == "scalar":
        return rng.choice(FLOATS + NANS + INTS + WIDE_INTS + OTHERS)
    if kind == "bytes":
        return bytes(rng.choice((0, 100, 33_000, 40_000)))
    if kind == "text":
        return rng.choice("xéλ🎉") * rng.choice((0, 100, 33_000, 40_000))
    if kind == "odd":
        return rng.choice((tasks.OddList, tasks.OddTuple, tasks.make_odd_dict))(draw_list(rng)[:50])
    parts = [draw(rng, depth - 1) for _ in range(rng.choice((0, 1, 2, 3, 5)))]
    if parts and rng.random() < 0.3:
        parts.append(rng.choice(parts))  # the same object twice
    if kind == "dict":
        return dict(zip(rng.sample(KEYS, len(parts)), parts, strict=True))
    return tuple(parts) if kind == "tuple" else parts


@properties.check(n_runs=100)
def test_any_value_arrives_as_by_pickle(remote_pool, rng):
    value = draw(random.Random(rng.getrandbits(32)))
    expected = by_pickle(value)
    assert picture(remote_pool.apply(tasks.identity, (value,))) == expected
    assert [picture(result) for result in remote_pool.map(tasks.identity, [value, value], 1)] == [expected] * 2


@pytest.mark.parametrize("n", [1, 10, 4_095, 4_096, 70_000])
@pytest.mark.parametrize("numbers", [FLOATS + NANS, INTS], ids=["floats", "ints"])
def test_lists_of_numbers_of_every_size(remote_pool, numbers, n):
    values = [numbers[i % len(numbers)] for i in range(n)]
    expected = picture(values)
    assert picture(remote_pool.apply(tasks.identity, (values,))) == expected
    assert [picture(r) for r in remote_pool.map(tasks.identity, [values] * 3, 1)] == [expected] * 3
    assert [picture(r) for r in remote_pool.map(tasks.identity, [values, values[::-1]] * 2, 2)][::2] == [expected] * 2


@pytest.mark.parametrize("odd", [True, tasks.OddFloat(1), 1, None, 2**63], ids=repr)
@pytest.mark.parametrize("place", [0, 1, 4_567, -1])
def test_one_other_item_among_many_floats(remote_pool, odd, place):
    values = [1.5] * 9_999
    values[place] = odd
    assert picture(remote_pool.apply(tasks.identity, (values,))) == picture(values)
    assert picture(remote_pool.map(tasks.identity, [values], 1)[0]) == picture(values)


def test_a_list_that_occurs_twice_is_one_object(remote_pool):
    numbers = [1.5] * 10_000
    for value in ([numbers, numbers], (numbers, (numbers, 1)), [[], numbers, [numbers]]):
        assert picture(remote_pool.apply(tasks.identity, (value,))) == picture(value)
    first, second = remote_pool.apply(tasks.identity, ((numbers, numbers),))
    assert first is second


def test_a_dict_that_occurs_twice_is_one_object(remote_pool):
    for twice in ({}, {"data": bytes(40_000)}, {"few": 1}):
        for value in ((twice, twice), [twice, {"large": [1.5] * 5_000, "again": twice}], {1: [twice], 2: twice}):
            assert picture(remote_pool.apply(tasks.identity, (value,))) == picture(value)


def test_large_keywords(remote_pool):
    data = {"text": "λ" * 50_000, "numbers": [1.5] * 10_000, "small": {"a": 1}}
    assert remote_pool.apply(dict, (), data) == data
    assert remote_pool.apply_async(tasks.identity, (data,)).get(60) == data


def test_a_list_in_itself(remote_pool):
    loop = [1.5]
    loop.append(loop)
    result = remote_pool.apply(tasks.identity, (loop,))
    assert result[0] == 1.5 and result[1] is result


def test_lists_that_another_thread_changes_meanwhile(remote_pool):
    numbers, done = [1.5] * 50_000, threading.Event()

    def change():
        while not done.is_set():
            numbers[777] = None
            numbers.append(1.5)
            numbers[777] = 1.5
            numbers.pop()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for result in remote_pool.map(tasks.identity, [numbers] * 40, 1):
            assert len(result) in (50_000, 50_001)
            assert all(item == 1.5 for i, item in enumerate(result) if i != 777)
    finally:
        done.set()
        thread.join()
