"""`NamedTuple` and `TypedDict` like those of `typing`, which takes long to import.

Modules that use them begin with `from __future__ import annotations`. Type checkers see those of `typing`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
    from typing import NamedTuple as NamedTuple
    from typing import TypedDict as TypedDict
else:
    from collections import namedtuple

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
