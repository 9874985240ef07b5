"""Describes all objects that values consist of: what they are, and which of them are the same object."""

import enum
import functools
import re
import sys
import types
import typing
from itertools import islice

ATOMS = (int, float, complex, str, bytes, bool, type(None), type(...), type(NotImplemented))
LEFT_OUT = {  # what CPython makes when it needs it, and what has no meaning after the class was made
    *("__dict__", "__weakref__", "_abc_impl", "__slotnames__", "__annotations_cache__", "__classdictcell__"),
    *("__annotate_func__", "__annotate__", "__static_attributes__", "_value2member_map_", "_inverted_"),
}
MAIN = ("__main__", "__mp_main__")
PARAMETERS = tuple(
    getattr(typing, name) for name in ("TypeVar", "ParamSpec", "TypeVarTuple", "TypeAliasType") if hasattr(typing, name)
)


class Walk:
    def __init__(self):
        self.numbers = {}
        self.kept = []
        self.records = []

    def see(self, value):
        """Return what stands for a value: itself if only its content matters, otherwise the number of its record."""
        if type(value) in ATOMS:
            return f"{type(value).__name__} {value!r}"
        if value == () and type(value) is tuple:
            return "()"
        if (name := _imported(value)) is not None:
            return name
        if id(value) not in self.numbers:
            number = self.numbers[id(value)] = len(self.numbers)
            self.kept.append(value)
            self.records.append(None)
            self.records[number] = self.record(value)
        return self.numbers[id(value)]

    def many(self, values):
        return [self.see(value) for value in values]

    def table(self, pairs):
        return [(self.see(key), self.see(value)) for key, value in list(pairs)]

    def record(self, value):
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}".replace("__mp_main__", "__main__")
        if kind in (list, tuple):
            return name, self.many(value)
        if kind is dict or kind is types.MappingProxyType:
            return name, self.table(value.items())
        if kind in (set, frozenset):
            return name, sorted(map(str, self.many(sorted(value, key=repr))))
        if kind is types.FunctionType:
            return self.function(value)
        if isinstance(value, type):
            return self.cls(value)
        if kind is types.CellType:
            return name, self.contents(value)
        if kind is types.ModuleType:
            return name, value.__name__, self.table(item for item in vars(value).items() if item[0][:2] != "__")
        if kind is types.MethodType:
            return name, self.see(value.__func__), self.see(value.__self__)
        if kind is types.BuiltinFunctionType or kind.__name__ == "method-wrapper":
            return name, value.__name__, self.see(value.__self__)
        if kind in (classmethod, staticmethod):
            return name, self.see(value.__func__)
        if kind is property:
            return name, *self.many((value.fget, value.fset, value.fdel, value.__doc__))
        if isinstance(value, functools.partial):
            return name, self.see(value.func), self.many(value.args), self.table(value.keywords.items())
        if kind.__name__ == "_lru_cache_wrapper":
            return name, self.see(value.__wrapped__), str(value.cache_parameters())
        if kind is types.GenericAlias or kind.__name__ in ("_GenericAlias", "Union", "UnionType", "_UnionGenericAlias"):
            return name, self.see(typing.get_origin(value)), self.many(typing.get_args(value))
        if kind in PARAMETERS:
            return self.parameter(value)
        return name, self.see(kind), self.content(value), self.attributes(value)

    def parameter(self, value):
        parts = (
            "__name__",
            "__module__",
            "__bound__",
            "__constraints__",
            "__value__",
            "__type_params__",
            "__covariant__",
        )
        return type(value).__name__, [self.see(_module(getattr(value, part, None))) for part in parts]

    def content(self, value):
        """Return the items of an instance of a subclass of a builtin type."""
        if isinstance(value, dict):
            return self.table(value.items())
        if isinstance(value, (list, tuple)):
            return self.many(list(value))
        if isinstance(value, (set, frozenset)):
            return sorted(map(repr, value))
        for kind in (int, float, str, bytes):
            if isinstance(value, kind):
                return kind.__repr__(value)
        if isinstance(value, BaseException):
            return self.many(value.args)
        return None

    def attributes(self, value):
        found = {}
        try:
            found |= object.__getattribute__(value, "__dict__")
        except AttributeError:
            pass
        for cls in type(value).__mro__:
            for name, member in vars(cls).items():
                if type(member) is types.MemberDescriptorType:
                    try:
                        found[name] = member.__get__(value)
                    except AttributeError:
                        pass
        return self.table((name, part) for name, part in found.items() if name not in LEFT_OUT)

    def contents(self, cell):
        try:
            content = cell.cell_contents
        except ValueError:
            return "empty"
        if type(content) is dict and "__module__" in content and "__qualname__" not in content:
            return "the dict of a class"
        return self.see(content)

    def function(self, f):
        annotate = getattr(f, "__annotate__", None)
        annotations = f.__annotations__ if annotate is None else annotate(1)  # without keeping them
        return (
            *("function", f.__name__, f.__qualname__, _module(f.__module__), f.__doc__, f.__code__.co_firstlineno),
            *(self.see(f.__defaults__), self.see(f.__kwdefaults__), self.table(vars(f).items())),
            *(self.many(f.__closure__ or ()), self.table(annotations.items()), self.many(f.__type_params__)),
        )

    def cls(self, cls):
        members = {name: value for name, value in vars(cls).items() if name not in LEFT_OUT}
        members.pop("__module__", None)
        abstract = sorted(getattr(cls, "__abstractmethods__", ()))
        plain = [name for name in members if name[:2] != "__"]
        described, others = (
            [
                (name, "slot" if "descriptor" in type(members[name]).__name__ else self.see(members[name]))
                for name in names
            ]
            for names in (plain, sorted(members.keys() - set(plain)))
        )
        return (
            *(
                "class",
                cls.__name__,
                cls.__qualname__,
                _module(cls.__module__),
                self.see(type(cls)),
                cls.__flags__ & 0x100000,
            ),
            *(self.many(cls.__bases__), self.many(cls.__mro__[1:]), abstract),
            *(described, others, self.annotations(cls)),
        )

    def member(self, value):
        return "slot" if "descriptor" in type(value).__name__ else self.see(value)

    def annotations(self, cls):
        try:
            annotate = vars(cls).get("__annotate_func__")
            return self.table(
                (vars(cls).get("__annotations__") or {}).items() if annotate is None else annotate(1).items()
            )
        except (NameError, AttributeError) as error:
            return str(error)


def _module(name):
    return "__main__" if name in MAIN else name


def _imported(value):
    """Return the name of what a module has that is not the program's."""
    if type(value) is types.ModuleType:
        return f"module {value.__name__}" if sys.modules.get(value.__name__) is value else None
    if isinstance(value, enum.Enum) and type(value).__module__ not in MAIN:
        return repr(value)
    home, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if (
        isinstance(value, types.BuiltinFunctionType)
        and value.__self__ is not None
        and type(value.__self__) is not types.ModuleType
    ):
        return None if not isinstance(value.__self__, type) else f"builtin {value.__self__.__name__}.{value.__name__}"
    if not isinstance(home, str) or not isinstance(qualname, str) or home in MAIN:
        return None
    found = sys.modules.get(home)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    if found is value:
        return f"{home}.{qualname}"
    return f"{home}.{qualname}" if isinstance(value, type) and value.__flags__ & 0x100 else None


def describe(values):
    """Return the records of all objects that the values of a dict consist of."""
    walk = Walk()
    try:
        roots = [(name, walk.see(value)) for name, value in values.items()]
    except RecursionError:
        return "too deep"
    return [repr(roots), *map(repr, walk.records)]


def differences(expected, found):
    """Return the first records that differ, as text; None if there are none."""
    if expected == found:
        return None
    if not isinstance(found, list) or not isinstance(expected, list):
        return f"expected {str(expected)[:300]}\nfound    {str(found)[:1500]}"
    pairs = [pair for pair in zip(range(-1, len(expected)), expected, found, strict=False) if pair[1] != pair[2]]
    deepest = (pair for pair in pairs[1:] if _without_numbers(pair[1]) != _without_numbers(pair[2]))
    for number, one, other in [*islice(deepest, 1), *pairs[1:], *pairs][:1]:
        return f"record {number}:\nexpected {one[:1500]}\nfound    {other[:1500]}"
    return f"{len(expected)} records expected, {len(found)} found"


def _without_numbers(record):
    return re.sub(r"(?<![\w'])\d+", "#", record)
