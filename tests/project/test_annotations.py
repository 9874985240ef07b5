"""The annotations of public functions: strings for those who read them as they are, and types for `get_type_hints`."""

import collections.abc
import copy
import functools
import inspect
import pickle
import sys
import typing
from concurrent.futures import Future

import pytest
import test_docstrings

import pool_party
from pool_party._core.awaiting import Opening
from pool_party._ground import hints, records
from pool_party._pool import ComposablePool


def functions_of(thing):
    if not inspect.isclass(thing):
        return [thing]
    members = [getattr(thing, name) for name in vars(thing) if name[0] != "_" or name.endswith("__")]
    members = [getattr(member, "fget", None) or getattr(member, "__func__", member) for member in members]
    return [member for member in members if inspect.isfunction(member)]


FUNCTIONS = [function for thing in [*test_docstrings.PUBLIC, Opening] for function in functions_of(thing)]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__qualname__)
def test_annotations_are_evaluated(function):
    names = {"return", *inspect.signature(function).parameters} - {"self", "cls"}
    assert typing.get_type_hints(function).keys() == inspect.get_annotations(function).keys() <= names
    assert inspect.signature(function, eval_str=True).parameters.keys() == inspect.signature(function).parameters.keys()


def test_there_are_many():
    assert len(FUNCTIONS) > 100


def test_annotations_are_as_they_were_written():
    signature = inspect.signature(ComposablePool.map)
    assert signature.parameters["func"].annotation == "Callable[[T], R]"
    assert ComposablePool.map.__annotations__["return"] == "list[R]"
    assert typing.get_type_hints(pool_party.map)["return"].__origin__ is list


def test_copies_of_annotations_are_plain():
    annotations = ComposablePool.map.__annotations__
    assert type(annotations) is (records._Hints if sys.version_info < (3, 14) else dict)
    made = [copy.copy(annotations), copy.deepcopy(annotations), pickle.loads(pickle.dumps(annotations))]
    for one in [*made, annotations.copy(), dict(annotations), {**annotations}]:
        assert type(one) is dict
        assert one == annotations and list(one) == list(annotations)
    assert annotations.get("func") == annotations["func"] in annotations.values()
    assert annotations.get("no") is None


def test_a_wrapper_has_the_annotations():
    @functools.wraps(ComposablePool.map)
    def wrapper(*args, **kwargs):
        """Be in the place of `map`."""

    assert typing.get_type_hints(wrapper) == typing.get_type_hints(ComposablePool.map)
    assert inspect.signature(wrapper) == inspect.signature(ComposablePool.map)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="functions have no __annotate__")
def test_what_makes_annotations_makes_them_in_all_formats():
    annotate = ComposablePool.map.__annotate__
    assert annotate(1) == annotate(3) == annotate(4) == ComposablePool.map.__annotations__
    with pytest.raises(NotImplementedError):
        annotate(2)
    assert pickle.loads(pickle.dumps(annotate)) is annotate


def test_a_name_that_cannot_be_imported_stays_missing(monkeypatch):
    monkeypatch.setattr(hints, "HOMES", {"no_such_module": ("NotThere",), "concurrent.futures": ("Future",)})
    namespace = {"Iterable": collections.abc.Iterable}
    hints.fill(namespace)
    assert "NotThere" not in namespace and namespace["Future"] is Future
    assert namespace["Iterable"] is collections.abc.Iterable and namespace["T"].__name__ == "T"


def test_classes_have_parameters():
    names = ("AsyncResult", "MapResult", "IMapIterator", "PoolFuture")
    for cls in (getattr(pool_party, name) for name in names):
        assert typing.get_origin(cls[int]) is cls and typing.get_args(cls[int]) == (int,)
    assert issubclass(pool_party.MapResult, pool_party.AsyncResult) and issubclass(pool_party.PoolFuture, Future)
    assert issubclass(pool_party.IMapIterator, collections.abc.Iterator)


def test_the_alias_can_be_evaluated():
    assert bool in typing.get_args(pool_party.Progress.__value__)
