"""`NamedTuple`, `TypedDict` and `Generic` like those of `typing`, which takes long to import.

Modules that use them begin with `from __future__ import annotations`. Type checkers see those of `typing`.

`tell_names` lets `typing.get_type_hints` evaluate the annotations of such a module's public functions, although many
names in them are imported for type checkers only.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeVar
    from typing import Generic as Generic
    from typing import NamedTuple as NamedTuple
    from typing import TypedDict as TypedDict
    from typing import overload as overload

    R = TypeVar("R")
    R_co = TypeVar("R_co", covariant=True)
else:
    from collections import namedtuple
    from types import GenericAlias

    class _Record(type):
        def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> Any:
            fields = list(members["__annotations__"])
            defaults = [members.pop(field) for field in fields if field in members]
            base = namedtuple(name, fields, defaults=defaults)
            base.__new__.__annotations__ = members["__annotations__"]  # for `inspect.signature`
            return type(name, (base,), {**members, "__slots__": ()})

    NamedTuple = type.__new__(_Record, "NamedTuple", (), {})

    class TypedDict(dict):
        """The base of a class whose annotations name the keys of dicts."""

        def __init_subclass__(cls, total: bool = True) -> None:
            pass

    def overload(function):  # the last definition of a function's name is what is called
        return function

    class Generic:
        """The base of a class with type parameters. Layouts of C may be beside it, since it has no fields."""

        __slots__ = ()
        __class_getitem__ = classmethod(GenericAlias)

    def _of_parameters[R, R_co]() -> None:
        """Have type parameters, which a class statement with some could make only by importing `typing`."""

    R, R_co = _of_parameters.__type_params__


# ---- annotations -----------------------------------------------------------


def _tell(namespace: dict[str, Any]) -> None:
    from pool_party._ground import hints

    hints.fill(namespace)


class _Annotate:
    """Makes a function's annotations, which are strings, and finds the names in them. For Python 3.14 and later."""

    __slots__ = ("_function", "_made_by", "_namespace")

    def __init__(self, function: Any, namespace: dict[str, Any]) -> None:
        self._function = function
        self._made_by = function.__annotate__
        self._namespace = namespace

    def __call__(self, format: int) -> Any:
        if format == 2:  # that of `annotationlib` alone, which then asks for the others
            raise NotImplementedError
        _tell(self._namespace)
        return self._made_by(1)

    def __reduce__(self) -> Any:
        return getattr, (self._function, "__annotate__")


class _Hints(dict[str, object]):
    """A function's annotations, which are strings. Whoever reads them finds the names in its module. Before 3.14."""

    __slots__ = ("_namespace",)

    def __init__(self, annotations: dict[str, object], namespace: dict[str, Any]) -> None:
        super().__init__(annotations)
        self._namespace = namespace

    # `dict(annotations)` calls `keys`, since `__iter__` is not that of dicts.

    def __iter__(self) -> Iterator[str]:
        _tell(self._namespace)
        return super().__iter__()

    def keys(self) -> Any:
        _tell(self._namespace)
        return super().keys()

    def values(self) -> Any:
        _tell(self._namespace)
        return super().values()

    def items(self) -> Any:
        _tell(self._namespace)
        return super().items()

    def __getitem__(self, name: str) -> object:
        _tell(self._namespace)
        return super().__getitem__(name)

    def get(self, name: str, default: object = None) -> object:
        _tell(self._namespace)
        return super().get(name, default)

    def copy(self) -> dict[str, object]:
        return dict(self)

    def __reduce_ex__(self, protocol: object) -> Any:
        return dict, (dict(self),)  # a copy, also one in another process, is a plain dict


def tell_names(namespace: dict[str, Any]) -> None:
    """Have `typing.get_type_hints` find the names in the annotations of a module's public functions and methods.

    The module calls this at its end with its `globals()`. It took 20 us for that of pools.
    """
    here = namespace["__name__"]
    for name, value in namespace.items():
        if name[0] == "_" or getattr(value, "__module__", None) != here:
            continue
        if isinstance(value, type):
            for member_name, member in value.__dict__.items():
                if member_name[0] != "_" or member_name[-2:] == "__":
                    _tell_names(getattr(member, "__func__", None) or getattr(member, "fget", None) or member, namespace)
        else:
            _tell_names(value, namespace)


_Function: Any = type(tell_names)
_makes_annotations = hasattr(tell_names, "__annotate__")  # when they are read: from Python 3.14 on


def _tell_names(function: Any, namespace: dict[str, Any]) -> None:
    while type(function) is _Function:
        if _makes_annotations:
            if function.__annotate__ is not None and type(function.__annotate__) is not _Annotate:
                function.__annotate__ = _Annotate(function, namespace)
        elif function.__annotations__ and type(function.__annotations__) is dict:
            function.__annotations__ = _Hints(function.__annotations__, namespace)
        function = getattr(function, "__wrapped__", None)
