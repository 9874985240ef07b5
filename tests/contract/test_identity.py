"""An object that a value contains twice arrives as one object, as with pickle."""

import array

import pytest
import tasks

TEXT, BLOB = "some text", b"some bytes"
LARGE_TEXT, LARGE_BLOB = "t" * 100_000, b"b" * 100_000
PAIR, LIST, DICT = (1, "one"), [1, 2.5], {"a": [1]}
OBJECTS = {
    "text": TEXT,
    "bytes": BLOB,
    "large text": LARGE_TEXT,
    "large bytes": LARGE_BLOB,
    "tuple": PAIR,
    "list": LIST,
    "dict": DICT,
    "floats": [0.5] * 10_000,
    "array": array.array("d", [1.0] * 9000),
    "set": {1, 2},
}


def fresh(value):
    """A copy to which only its value refers, besides this test."""
    return type(value)(value) if isinstance(value, (list, dict, set)) else value


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("shape", ["pair", "list", "nested", "beside", "dict"])
def test_identity_inside_a_value_is_kept(remote_pool, name, shape):
    x = fresh(OBJECTS[name])
    value = {
        "pair": lambda: (x, x),
        "list": lambda: [x, 1, x],
        "nested": lambda: ((1, (x,)), [[x]]),
        "beside": lambda: ((LARGE_BLOB, x), {"k": x}),
        "dict": lambda: {"first": x, "second": [x]},
    }[shape]()
    back = remote_pool.apply(tasks.identity, (value,))
    assert back == value
    first, second = {
        "pair": lambda v: v,
        "list": lambda v: (v[0], v[2]),
        "nested": lambda v: (v[0][1][0], v[1][0][0]),
        "beside": lambda v: (v[0][1], v[1]["k"]),
        "dict": lambda v: (v["first"], v["second"][0]),
    }[shape](back)
    assert first is second


def test_different_objects_stay_different(remote_pool):
    lists = [[1], [1], {"a": [1]}, {"a": [1]}, LARGE_BLOB]
    back = remote_pool.apply(tasks.identity, (lists,))
    assert back == lists and len(set(map(id, back))) == 5


def test_cycles(remote_pool):
    cycle = [LARGE_BLOB]
    cycle.append(cycle)
    back = remote_pool.apply(tasks.identity, (cycle,))
    assert back[1] is back and back[0] == LARGE_BLOB
    inner = []
    pair = (inner, LARGE_BLOB)
    inner.append(pair)
    back = remote_pool.apply(tasks.identity, (pair,))
    assert back[0][0] is back
