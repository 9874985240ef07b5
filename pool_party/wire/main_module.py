"""Pickles values that plain pickle refuses, and definitions of `__main__`, which `definitions` sends when needed.

What needs cloudpickle is in `by_value`, which few programs need: functions of `__main__` and simple classes do not.
"""

from __future__ import annotations

import _pickle
import builtins
import copyreg
import io
import itertools
import os
import sys
import types
import weakref
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping

from pool_party import _native
from pool_party._core.records import NamedTuple
from pool_party.wire.beside import collector, keep_in_pickle, load, names_of
from pool_party.wire.namespace import (
    MODULES,
    attribute,
    digest,
    find,
    get,
    is_cache,
    is_of_main,
    look_at,
    make_cache,
    make_class,
    make_function,
    make_singledispatch,
    module,
    namespace,
    new_class,
    new_enum,
    set_class_state,
    set_enum_state,
    set_function_state,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pool_party.wire.by_value import Reducer

_tokens: weakref.WeakKeyDictionary[type, object] = weakref.WeakKeyDictionary()
_numbers = itertools.count()


def _token_of(cls: type) -> object:
    """Return an identifier of a class of this process."""
    if cls not in _tokens:
        _tokens[cls] = (os.getpid(), next(_numbers))
    return _tokens[cls]


def _is_singledispatch(function: types.FunctionType) -> bool:
    return function.__code__.co_qualname == "singledispatch.<locals>.wrapper" and hasattr(function, "registry")


def _reduce_singledispatch(generic: Any) -> tuple[Any, ...]:
    implementations = dict(generic.registry)
    default = implementations.pop(object)
    return make_singledispatch, (default, list(implementations.items()))


def _module_of(function: types.FunctionType) -> str | None:
    """Return the module of a function's globals, if it is `__main__` or one that every worker can import."""
    name = function.__globals__.get("__name__")
    if function.__globals__ is namespace():
        return "__main__"
    if not isinstance(name, str) or name.partition(".")[0] not in sys.stdlib_module_names:
        return None
    module = sys.modules.get(name)
    return name if module is not None and module.__dict__ is function.__globals__ else None


def _content(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _members(function: types.FunctionType) -> dict[str, Any]:
    names = ["__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__"]
    names.append("__annotate__" if getattr(function, "__annotate__", None) else "__annotations__")
    members = {name: getattr(function, name) for name in names if getattr(function, name)}
    if members.get("__module__") in MODULES:
        members["__module__"] = "__main__"  # the same in every process
    return members


# ---- reducers ----

_CLOUDPICKLE = "cloudpickle.cloudpickle"


def _reduce_method(method: types.MethodType) -> tuple[Any, ...]:
    return types.MethodType, (method.__func__, method.__self__)


def _reduce_wrapper(wrapper: Any) -> tuple[Any, ...]:
    return type(wrapper), (wrapper.__func__,)


def _reduce_property(wrapped: property) -> tuple[Any, ...]:
    return property, (wrapped.fget, wrapped.fset, wrapped.fdel, wrapped.__doc__)


def _reduce_mapping_proxy(proxy: types.MappingProxyType[Any, Any]) -> tuple[Any, ...]:
    return types.MappingProxyType, (dict(proxy),)


def _reduce_sentinel(sentinel: Any) -> tuple[Any, ...]:
    return attribute, ("dataclasses", getattr(sentinel, "name", "MISSING"))


# Types that cloudpickle has reducers for, and we have not.
_OF_CLOUDPICKLE = frozenset(
    "_io.TextIOWrapper logging.Logger logging.RootLogger _weakrefset.WeakSet typing.TypeVar "
    "abc.abstractclassmethod abc.abstractstaticmethod abc.abstractproperty builtins.memoryview builtins.cell "
    "builtins.code builtins.getset_descriptor builtins.module builtins.dict_keys builtins.dict_values "
    "builtins.dict_items builtins.odict_keys builtins.odict_values builtins.odict_items".split()
)


class _Reducers(dict[type, object]):
    """Our reducers, then cloudpickle's. It is imported for the types that it handles, and not before."""

    def __missing__(self, cls: type) -> Any:
        if cls.__module__ == "dataclasses" and cls.__name__ in ("_FIELD_BASE", "_MISSING_TYPE"):
            return _reduce_sentinel
        if _CLOUDPICKLE not in sys.modules and f"{cls.__module__}.{cls.__qualname__}" not in _OF_CLOUDPICKLE:
            raise KeyError(cls)
        from cloudpickle import Pickler

        return Pickler.dispatch_table[cls]


_own: dict[type, Any] = {
    types.MethodType: _reduce_method,
    classmethod: _reduce_wrapper,
    staticmethod: _reduce_wrapper,
    property: _reduce_property,
    types.MappingProxyType: _reduce_mapping_proxy,
}
BY_VALUE: ChainMap[type, Any] = ChainMap(_Reducers(_own), copyreg.dispatch_table)


def _is_importable(obj: Any) -> bool:
    """Return whether a function or class is what its module has under its name."""
    home, qualname = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if not isinstance(home, str) or not isinstance(qualname, str):
        return False  # for example, the cache of a `partial` has no name
    found = sys.modules.get(home)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found is obj


def _goes_by_name(obj: Any) -> bool:
    """Return whether receivers can import a module, or a function or class that is not `__main__`'s."""
    if _CLOUDPICKLE in sys.modules:  # the program may have registered modules to be pickled by value
        from cloudpickle.cloudpickle import _should_pickle_by_reference

        return bool(_should_pickle_by_reference(obj))
    return obj.__name__ in sys.modules if isinstance(obj, types.ModuleType) else _is_importable(obj)


def _name_in_types(cls: type) -> str | None:
    """Return the name that the module `types` has for a type that `builtins` does not have, such as functions'."""
    if cls.__module__ != "builtins" or getattr(builtins, cls.__qualname__, None) is cls:
        return None
    return next((name for name, value in vars(types).items() if value is cls), None)


_MADE_BY_TYPE = ("__dict__", "__weakref__", "__annotate_func__")  # the last is about the class's own dict
_MADE_BY_ENUM = (
    *("__new__", "_new_member_", "__new_member__", "_use_args_", "_member_names_", "_member_map_", "_member_type_"),
    *("_value2member_map_", "_hashable_values_", "_unhashable_values_", "_unhashable_values_map_", "_value_repr_"),
    *("_ignore_", "_order_", "_boundary_", "_flag_mask_", "_singles_mask_", "_all_bits_", "_inverted_"),
)
_OWN_NEW = {"_new_member_", "__new_member__", "_use_args_"}  # set if an enumeration defines `__new__`
_OF_MEMBERS = ("_value_", "_name_", "__objclass__", "_sort_order_", "_inverted_")


def _reduce_simple_class(name: str, cls: type) -> tuple[Any, ...]:
    """Reduce a class of `__main__` to a call of `make_class`, as `by_value.reduce_definition` does."""
    args = name, new_class, type, cls.__name__, cls.__bases__, {"__module__": "__main__"}
    return make_class, args, (_own_members(cls), {}), None, None, set_class_state


def _own_members(cls: type, left_out: Collection[str] = ()) -> dict[str, Any]:
    inherited = {key: value for base in reversed(cls.__bases__) for key, value in vars(base).items()}
    members = {
        "".join(key): value  # a new string: pickles of equal classes have equal bytes whatever is interned
        for key, value in sorted(vars(cls).items())
        if key not in left_out and key not in _MADE_BY_TYPE and not (key in inherited and inherited[key] is value)
    }
    members["__module__"] = "__main__"
    return members


def _reduce_enum(name: str, cls: Any) -> tuple[Any, ...]:
    """Reduce an enumeration of `__main__`. Its members are made again from their values, without its own code."""
    members = [("".join(key), member._value_) for key, member in cls._member_map_.items()]
    made = {*_MADE_BY_ENUM, *cls._member_map_}
    if "__new_member__" in vars(cls):
        made -= _OWN_NEW
    attributes = {
        "".join(key): {name: value for name, value in vars(member).items() if name not in _OF_MEMBERS}
        for key, member in cls._member_map_.items()
    }
    args = name, new_enum, cls.__name__, cls.__bases__, members, vars(cls).get("_boundary_")
    return make_class, args, (_own_members(cls, made), attributes), None, None, set_enum_state


def _is_simple_enum(cls: Any) -> bool:
    """Return whether the members of an enumeration can be made again from their values."""
    enum = sys.modules.get("enum")
    if enum is None or type(cls) is not enum.EnumType or "__orig_bases__" in vars(cls):
        return False
    if cls.__bases__[-1].__init__ is not enum.Enum.__init__:
        return False
    if any("__new_member__" in vars(base) and base.__module__ != "enum" for base in cls.__mro__[1:]):
        return False
    made_from = cls._member_type_
    return made_from is object or (
        made_from in (int, str)
        and "__new_member__" not in vars(cls)
        and all(type(member._value_) is made_from for member in cls._member_map_.values())
    )


def _is_simple(cls: type) -> bool:
    """Return whether a class has no metaclass, and nothing that its creation must know but its bases."""
    members = vars(cls)
    is_special = "__slots__" in members or "__orig_bases__" in members or isinstance(members.get("__dict__"), property)
    return type(cls) is type and not is_special


class Pickler(_pickle.Pickler):
    """A pickler with our rules for `__main__`, and cloudpickle's for everything else that plain pickle refuses.

    table: the reducers, which include `BY_VALUE`.
    name, definition: an object of `__main__` that is pickled as a definition; all others are pickled by name.
    read, named: the globals of `__main__` that pickled functions read, and all names in their code.
    """

    _reducer: Reducer | None = None  # of what cloudpickle has to reduce, if anything

    def __init__(
        self, file: Any, buffer_callback: Any, table: Mapping[type, Any], name: str = "", definition: Any = None
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.dispatch_table = table
        self._name, self._definition = name, definition
        self.read: set[str] = set()
        self.named: set[str] = set()

    def dump(self, value: object) -> None:
        try:
            super().dump(value)
        except RecursionError as error:
            raise _pickle.PicklingError("the value is nested too deeply to be pickled") from error

    @classmethod
    def dumps(
        cls, value: object, buffer_callback: Callable[[Any], Any] | None, table: Mapping[type, Any]
    ) -> tuple[bytes, set[str], set[str]]:
        """Return the value's pickle (protocol 5), `read` and `named`. Large buffers go to `buffer_callback`."""
        with io.BytesIO() as file:
            pickler = cls(file, buffer_callback, table)
            pickler.dump(value)
            return file.getvalue(), pickler.read, pickler.named

    def reducer_override(self, obj: Any) -> Any:
        if obj is self._definition and self._name:
            return self._reduce_definition(obj)
        if type(obj) is memoryview and _native.is_shared(obj):  # cloudpickle turns any other view into bytes
            from pool_party.wire.shared import reduce_view  # which workers need not have imported

            return reduce_view(obj)
        if is_of_main(obj) and self._is_found(obj.__qualname__, obj):
            return get, (obj.__qualname__,)
        return self._reduce_by_value(obj)

    def _is_found(self, qualname: str, obj: object) -> bool:
        return find(qualname) is obj and not (self._name and qualname.startswith(f"{self._name}."))

    def _reduce_definition(self, obj: Any) -> Any:
        if not is_of_main(obj):
            return copyreg.__newobj__, (type(obj),), obj.__getstate__()  # type: ignore[attr-defined]
        if not isinstance(obj, type):
            return self._reduce_by_value(obj)
        if _is_simple(obj):
            return _reduce_simple_class(self._name, obj)
        if _is_simple_enum(obj):
            return _reduce_enum(self._name, obj)
        from pool_party.wire.by_value import reduce_definition

        return reduce_definition(self._name, obj)

    def _reduce_by_value(self, obj: Any) -> Any:
        if is_cache(obj) and (is_of_main(obj) or not _is_importable(obj)):
            parameters = obj.cache_parameters()
            return make_cache, (parameters["maxsize"], parameters["typed"], obj.__wrapped__)
        if isinstance(obj, type):
            return self._reduce_class(obj)
        if isinstance(obj, types.FunctionType):
            return self._reduce_function(obj)
        if isinstance(obj, types.ModuleType) and _goes_by_name(obj):
            return module, (obj.__name__,)
        return NotImplemented

    def _reduce_class(self, cls: type) -> Any:
        if is_of_main(cls):
            from pool_party.wire.by_value import reduce_class

            return reduce_class(cls)
        if (name := _name_in_types(cls)) is not None:
            return attribute, ("types", name)
        return NotImplemented if _goes_by_name(cls) else self._by_cloudpickle().reduce(cls)

    def _by_cloudpickle(self) -> Reducer:
        if self._reducer is None:
            from pool_party.wire.by_value import Reducer

            self._reducer = Reducer()
        return self._reducer

    def _reduce_function(self, function: types.FunctionType) -> Any:
        if not is_of_main(function) and _goes_by_name(function):
            return NotImplemented
        if _is_singledispatch(function):
            return _reduce_singledispatch(function)
        scope = _module_of(function)
        if scope is None:
            return self._by_cloudpickle().reduce_function(function)
        code, read, named = look_at(function.__code__)
        if scope in MODULES:
            self.read |= read
            self.named |= named
        closure = function.__closure__
        contents = [_content(cell) for cell in closure or ()]
        args = (code, function.__name__, None if closure is None else len(closure), scope)
        state = (_members(function), function.__dict__, contents)
        return make_function, args, state, None, None, set_function_state


class Apart(NamedTuple):
    """A definition, or a value that functions read, in a pickle of its own.

    mark: its hash. token: for a class, its identifier. body: the pickle, or None if `error` prevented it.
    read, named: the globals that functions in it read, and all names in their code. shared: the shared memory that it
    names.
    """

    mark: bytes
    token: object
    body: bytes | None
    error: Exception | None
    read: set[str]
    named: set[str]
    shared: list[memoryview]


class _WithShared:
    """Stands for the value of a pickle with parts in shared memory; unpickling it gives that value."""

    def __init__(self, pickle: bytes, names: list[bytes]) -> None:
        self._parts = pickle, names

    def __reduce__(self) -> tuple[Any, ...]:
        return load, self._parts


def _lasting_table(is_local: bool) -> Mapping[type, Any]:
    if "multiprocessing.reduction" not in sys.modules:
        return BY_VALUE
    from multiprocessing.reduction import ForkingPickler

    from pool_party.wire.fd_handle import lasting_reducers

    registered: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    return ChainMap(lasting_reducers(is_local), registered, *BY_VALUE.maps)


def _pickle_apart(value: object, is_local: bool, has_our_memory: bool, name: str = "", definition: Any = None) -> Apart:
    from pool_party.wire.interrupts import is_from_handler

    shared: list[Any] = []
    token = _token_of(definition) if isinstance(definition, type) else None
    with io.BytesIO() as file:
        collect = collector(shared) if has_our_memory else keep_in_pickle
        pickler = Pickler(file, collect, _lasting_table(is_local), name, definition)
        try:
            pickler.dump(value)
        except Exception as error:
            if is_from_handler(error):
                raise
            return Apart(digest(repr(error).encode()), token, None, error, pickler.read, pickler.named, [])
        pickle = file.getvalue()
    names = names_of(shared)
    mark = digest(pickle + b"".join(name[: -_native.PLACE_BYTES] for name in names))  # places may change
    body = _pickle.dumps(_WithShared(pickle, names), 5) if names else pickle
    return Apart(mark, token, body, None, pickler.read, pickler.named, shared)


def pickle_definition(name: str, value: Any, is_local: bool = False, has_our_memory: bool = True) -> Apart:
    """Pickle a definition for `Receivers.define`.

    is_local: whether the receivers are interpreters of this process. has_our_memory: whether they open shared memory
    by its name; otherwise they get copies.
    """
    part = _pickle_apart(value, is_local, has_our_memory, sys.intern(name), value)
    if part.error is not None:
        part.error.add_note(f"pool_party: {name!r} of __main__ does not pickle, and the workers do not have it")
    return part


def pickle_global(
    name: str, value: Any, named: Iterable[str], is_local: bool = False, has_our_memory: bool = True
) -> Apart:
    """Pickle a value that functions of `__main__` read; a package includes imported submodules that are named.

    is_local, has_our_memory: as in `pickle_definition`.
    """
    parts = [value, *_submodules(value, set(named))] if isinstance(value, types.ModuleType) else [value]
    part = _pickle_apart(parts, is_local, has_our_memory)
    if part.error is not None:
        part.error.add_note(f"pool_party: the global {name!r} of __main__, which a function reads, does not pickle")
    return part


def _submodules(package: types.ModuleType, named: set[str]) -> list[types.ModuleType]:
    prefix = f"{package.__name__}."
    names = [name for name in list(sys.modules) if name.startswith(prefix)]
    found = [sys.modules[name] for name in names if set(name.removeprefix(prefix).split(".")) <= named]
    return [module for module in found if isinstance(module, types.ModuleType)]
