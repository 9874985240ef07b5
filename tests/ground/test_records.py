"""The stand-ins for `typing`'s named tuples and typed dicts."""

from __future__ import annotations

import copy
import pickle

import pytest

from pool_party._ground.records import NamedTuple, TypedDict


class Point(NamedTuple):
    """A point."""

    x: int
    y: int = 5

    @property
    def sum(self) -> int:
        return self.x + self.y


class Keys(TypedDict, total=False):
    one: int


class MoreKeys(Keys, total=False):
    two: int


def test_a_named_tuple_is_as_typings():
    point = Point(1)
    assert point == (1, 5) and point.sum == 6 and point._replace(y=2) == Point(x=1, y=2) == (1, 2)
    assert repr(point) == "Point(x=1, y=5)" and point._fields == ("x", "y")
    assert (Point.__name__, Point.__doc__, Point.__module__) == ("Point", "A point.", __name__)
    assert type(pickle.loads(pickle.dumps(point))) is Point and copy.copy(point) == point
    with pytest.raises(TypeError, match="argument"):
        Point()
    with pytest.raises(AttributeError):
        point.z = 1


def test_a_typed_dict_names_its_keys():
    assert Keys.__annotations__.keys() == {"one"} and MoreKeys.__annotations__.keys() == {"two"}
