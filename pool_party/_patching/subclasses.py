"""Classes that derive from the standard library's pools: whether one can become ours, and the class for that."""

import functools
from abc import ABCMeta
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any


class LeaveAlone(Exception):
    """The pool is to stay as the standard library makes it. The message is a full sentence that says why."""


# A class with one of these methods sees, or decides, what becomes of attributes that are ours.
_HOOKS = ("__getattr__", "__getattribute__", "__setattr__", "__delattr__", "__init_subclass__")


@functools.cache
def ours_for(cls: type, original: type, ours: type) -> type:
    """Return the class for objects of `cls`, which is `original` or derives from it.

    ours: what is mixed in.

    Raises: LeaveAlone.
    """
    direct = _make(original, (ours, original), type(original))
    if cls is original:
        return direct
    if type(cls) not in (type, ABCMeta):
        raise LeaveAlone(f"Its class {cls.__qualname__} has the metaclass {type(cls).__qualname__}.")
    above = cls.__mro__[: cls.__mro__.index(original)]
    for base in above:
        _check(base, original, ours)
    return _make(cls, (cls, direct), type(cls))


def _make(cls: type, bases: tuple[type, ...], metaclass: type) -> type:
    """Make a class with the names of `cls`, whose objects have the same layout as its own."""
    names = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    made: type = metaclass(cls.__name__, bases, names)
    return made


def _check(base: type, original: type, ours: type) -> None:
    """Raise LeaveAlone if a class relies on what only the standard library's class has, or may confuse ours."""
    for name in _HOOKS:
        if name in vars(base):
            raise LeaveAlone(f"Its class {base.__qualname__} defines {name}.")
    if overridden := sorted(filter(_is_private, vars(base).keys() & private_names(original))):
        raise LeaveAlone(f"Its class {base.__qualname__} overrides the private {overridden[0]}.")
    used = {name for value in vars(base).values() for name in names_in(value)}
    if relied_on := sorted(used & (private_names(original) - {"_max_workers"})):
        raise LeaveAlone(f"Its class {base.__qualname__} uses the private {relied_on[0]}.")
    if shared := sorted((used | vars(base).keys()) & private_names(ours)):
        raise LeaveAlone(f"Its class {base.__qualname__} uses the name {shared[0]}, which is private to pool_party.")


@functools.cache
def private_names(cls: type) -> frozenset[str]:
    """Return the private names of a class's attributes, and those that its methods use."""
    found: set[str] = set()
    for base in cls.__mro__:
        if base is not object:
            found.update(vars(base))
            for value in vars(base).values():
                found.update(names_in(value))
    return frozenset(filter(_is_private, found))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def names_in(value: Any) -> Iterator[str]:
    """Yield the names of globals and attributes that a function, method or property uses."""
    if isinstance(value, property):
        for function in filter(None, (value.fget, value.fset, value.fdel)):
            yield from names_in(function)
    while not isinstance(value, FunctionType):
        value = getattr(value, "__func__", None) or getattr(value, "__wrapped__", None)
        if value is None:
            return
    yield from _names_in_code(value.__code__)
    if (wrapped := getattr(value, "__wrapped__", None)) is not None:
        yield from names_in(wrapped)


def _names_in_code(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in_code(constant)
