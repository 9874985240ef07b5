"""Pickles values that plain pickle refuses, and definitions of `__main__`, which `definitions` sends when needed.

What needs cloudpickle is in `by_value`, which few programs need: functions and classes of `__main__` do not.
"""

from __future__ import annotations

import _pickle
import builtins
import copyreg
import io
import operator
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping

from pool_party import _native
from pool_party._ground.records import NamedTuple
from pool_party._wire.beside import collector, keep_in_pickle, names_of
from pool_party._wire.making import (
    KEPT_MAX,
    MEMBERS,
    attribute,
    class_dict,
    get,
    is_of_library,
    make_alias,
    make_cache,
    make_cell,
    make_class,
    make_function,
    make_member,
    make_partialmethod,
    make_scope,
    make_singledispatch,
    make_type_parameter,
    module,
    scope_token,
    set_cell,
    set_class_state,
    set_function_state,
    set_member_state,
    token_of,
    without_tokens,
)
from pool_party._wire.namespace import MODULES, digest, find, is_cache, is_of_main, look_at, named_values, namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pool_party._wire.by_value import Reducer


def _is_singledispatch(function: types.FunctionType) -> bool:
    return function.__code__.co_qualname == "singledispatch.<locals>.wrapper" and hasattr(function, "registry")


def _reduce_singledispatch(generic: Any) -> tuple[Any, ...]:
    implementations = dict(generic.registry)
    default = implementations.pop(object)
    attributes = {name: value for name, value in vars(generic).items() if name not in _OF_SINGLEDISPATCH}
    attributes |= {name: getattr(generic, name) for name in ("__name__", "__qualname__", "__doc__")}
    return make_singledispatch, (default, list(implementations.items()), attributes)


_OF_SINGLEDISPATCH = ("register", "dispatch", "registry", "_clear_cache", "__wrapped__")


def _has_token(value: Any) -> bool:
    """Return whether a global is a function or class that is changed in place where another process has it."""
    if isinstance(value, types.FunctionType):
        return is_of_main(value) and not _is_singledispatch(value)
    return isinstance(value, type) and is_of_main(value)


def _module_of(function: types.FunctionType) -> str | None:
    """Return the module of a function's globals, if it is `__main__` or one that every worker can import."""
    name = function.__globals__.get("__name__")
    if function.__globals__ is namespace():
        return "__main__"
    if not isinstance(name, str) or name.partition(".")[0] not in sys.stdlib_module_names:
        return None
    module = sys.modules.get(name)
    return name if module is not None and module.__dict__ is function.__globals__ else None


def _own_module(name: object) -> object:
    return "__main__" if name in MODULES else name  # the same in every process


def _members(function: types.FunctionType) -> tuple[Any, ...]:
    members = {name: getattr(function, name) for name in MEMBERS}
    members["__module__"] = _own_module(members["__module__"])
    return tuple(members.values())


def _annotations(function: Any) -> tuple[Any, Any]:
    """Return the function that makes the annotations, or these if they have been made. Nothing is evaluated."""
    if sys.version_info < (3, 14):
        return None, function.__annotations__ or None
    found = _native.annotations_of(function)
    return (function.__annotate__, None) if found is None else (None, found)


def _content(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


# ---- reducers ----

_CLOUDPICKLE = "cloudpickle.cloudpickle"


def _reduce_method(method: types.MethodType) -> tuple[Any, ...]:
    return types.MethodType, (method.__func__, method.__self__)


def _reduce_wrapper(wrapper: Any) -> tuple[Any, ...]:
    if getattr(wrapper, "__module__", None) not in (None, *MODULES) and _is_importable(
        wrapper
    ):  # such as `typing._proto_hook`
        return attribute, (wrapper.__module__, wrapper.__name__)
    return type(wrapper), (wrapper.__func__,)


def _reduce_property(wrapped: property) -> tuple[Any, ...]:
    return property, (wrapped.fget, wrapped.fset, wrapped.fdel, wrapped.__doc__)


def _reduce_mapping_proxy(proxy: types.MappingProxyType[Any, Any]) -> tuple[Any, ...]:
    return types.MappingProxyType, (dict(proxy),)


def _reduce_text_file(file: Any) -> tuple[Any, ...]:
    """Refuse a file, as the standard library does. cloudpickle would send its text."""
    for name in ("stdout", "stderr"):
        if file is getattr(sys, name):
            return attribute, ("sys", name)
    raise TypeError(
        f"cannot pickle '{type(file).__module__}.{type(file).__qualname__}' instances: open the file in the task"
    )


def _reduce_sentinel(sentinel: Any) -> tuple[Any, ...]:
    return attribute, ("dataclasses", getattr(sentinel, "name", "MISSING"))


def _reduce_partialmethod(method: Any) -> tuple[Any, ...]:
    return make_partialmethod, (method.func, method.args, method.keywords)


def _reduce_singledispatchmethod(method: Any) -> Any:
    made = method.__reduce_ex__(5)
    if "_method_cache" not in vars(method):
        return made
    return *made[:2], vars(method) | {"_method_cache": None}  # of CPython 3.13, with weak references; None: no cache


def _reduce_type_parameter(parameter: Any) -> tuple[Any, ...]:
    kind, args, keywords = type(parameter).__name__, (), {}
    if kind == "TypeVar":
        args = parameter.__constraints__
        bound = parameter.__bound__
        keywords = {"infer_variance": True} if parameter.__infer_variance__ else {}
        keywords |= {} if bound is None else {"bound": bound}
    if kind != "TypeVarTuple":
        keywords |= {way: True for way in ("covariant", "contravariant") if getattr(parameter, f"__{way}__")}
    if getattr(parameter, "has_default", bool)():
        keywords["default"] = parameter.__default__
    owner = _own_module(parameter.__module__)
    return make_type_parameter, (token_of(parameter), kind, parameter.__name__, owner, (args, keywords))


def _reduce_alias(alias: Any) -> tuple[Any, ...]:
    return make_alias, (alias.__name__, _own_module(alias.__module__), alias.__value__, alias.__type_params__)


# Types that cloudpickle has reducers for, and we have not.
_OF_CLOUDPICKLE = frozenset(
    "logging.Logger logging.RootLogger _weakrefset.WeakSet "
    "abc.abstractclassmethod abc.abstractstaticmethod abc.abstractproperty builtins.memoryview "
    "builtins.code builtins.getset_descriptor builtins.module builtins.dict_keys builtins.dict_values "
    "builtins.dict_items builtins.odict_keys builtins.odict_values builtins.odict_items".split()
)
_OURS = {
    "_io.TextIOWrapper": _reduce_text_file,
    "functools.partialmethod": _reduce_partialmethod,
    "functools.singledispatchmethod": _reduce_singledispatchmethod,
    "dataclasses._FIELD_BASE": _reduce_sentinel,
    "dataclasses._MISSING_TYPE": _reduce_sentinel,
    "typing.TypeVar": _reduce_type_parameter,
    "typing.ParamSpec": _reduce_type_parameter,
    "typing.TypeVarTuple": _reduce_type_parameter,
    "typing.TypeAliasType": _reduce_alias,
}


class _Reducers(dict[type, object]):
    """Our reducers, then cloudpickle's. It is imported for the types that it handles, and not before."""

    def __missing__(self, cls: type) -> Any:
        name = f"{cls.__module__}.{cls.__qualname__}"
        if name in _OURS:
            return _OURS[name]
        if _CLOUDPICKLE not in sys.modules and name not in _OF_CLOUDPICKLE:
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


def _is_handle(value: object) -> bool:
    if "multiprocessing.reduction" not in sys.modules:
        return False
    from pool_party._wire.fd_handle import is_handle

    return is_handle(value)


def _is_importable(obj: Any) -> bool:
    """Return whether a function or class is what its module has under its name."""
    home, qualname = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if not isinstance(home, str) or not isinstance(qualname, str):
        return False  # for example, the cache of a `partial` has no name
    found = sys.modules.get(home)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found is obj


def goes_by_name(obj: Any) -> bool:
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


# ---- classes ----

_reduce: Any = object.__reduce__

_IMMUTABLE = 1 << 8  # tp_flags of classes that no Python code has made

_SHARED = ("__dict__", "__weakref__")  # whose descriptors belong to `object` from 3.15 on
_MADE_BY_TYPE = ("__slotnames__", "_abc_impl", "__classcell__", "__classdictcell__")
_SET_LATER = ("__abstractmethods__",)  # which has an effect only if it is set
_SET_FIRST = ("__orig_bases__", "__type_params__")  # which `typing.Generic` looks at
_AT_CREATION = (
    *(types.FunctionType, classmethod, staticmethod, property),
    *(int, float, complex, bool, str, bytes, type(None)),
)
_LEFT_EMPTY = frozenset(  # which have no meaning until they have their values
    "__new__ __init__ __del__ __getattribute__ __setattr__ __delattr__ __setstate__ __hash__ __eq__".split()
)


def _own_members(cls: Any) -> dict[str, Any]:
    """Return what the body of a class, and everything after it, has put into the class."""
    slots = (types.MemberDescriptorType, types.GetSetDescriptorType)
    members = {
        name: value
        for name, value in vars(cls).items()
        if name not in _MADE_BY_TYPE
        and not (isinstance(value, slots) and (name in _SHARED or value.__objclass__ is cls))
    }
    if members.get("__annotate_func__") is not None and not members.get("__annotations_cache__"):
        members.pop("__annotations_cache__", None)
    if "__module__" in members:
        members["__module__"] = _own_module(members["__module__"])
    return members


def _slots(cls: Any) -> tuple[str, ...] | None:
    if "__slots__" not in vars(cls):
        return None
    made = [name for name in ("__dict__", "__weakref__") if name in vars(cls)]
    slots = [name for name, value in vars(cls).items() if isinstance(value, types.MemberDescriptorType)]
    return (*slots, *made)


def _for_creation(cls: Any, members: dict[str, Any]) -> dict[str, Any]:
    """Return what a class is created with: each name in its place, with the value if that cannot need the class."""
    maker = next(base for base in type(cls).__mro__ if "__new__" in vars(base) and base.__module__ not in MODULES)
    is_whole = is_of_library(maker)  # whose metaclass looks at them
    given = {
        name: value if is_whole or type(value) in _AT_CREATION or name in _SET_FIRST else None
        for name, value in members.items()
        if is_whole or type(value) in _AT_CREATION or name not in _LEFT_EMPTY
    }
    for name in _SET_LATER:
        given.pop(name, None)
    if given.get("__doc__", "") is None:
        del given["__doc__"]  # which its creation adds as the last
    if (slots := _slots(cls)) is not None:
        given["__slots__"] = slots
    return {"__qualname__": cls.__qualname__, **given}


def _registered(cls: Any) -> list[Any]:
    abc = sys.modules.get("abc")
    if abc is None or not isinstance(cls, abc.ABCMeta) or "_abc_impl" not in vars(cls):
        return []
    found = [reference() for reference in abc._get_dump(cls)[0]]
    return sorted((other for other in found if other is not None), key=lambda other: str(other.__qualname__))


def _is_enum(cls: Any) -> bool:
    enum = sys.modules.get("enum")
    return enum is not None and isinstance(cls, enum.EnumType)


def _only_members(cls: Any, state: dict[str, Any]) -> None:
    """Leave out what an enumeration has made when it was used: combinations of flags."""
    members = state.get("_member_map_")
    if members is not None:
        ids = set(map(id, members.values()))
        for name in ("_value2member_map_", "_hashable_values_", "_unhashable_values_map_"):
            found = state.get(name)
            if name == "_value2member_map_" and isinstance(found, dict):
                state[name] = {value: member for value, member in found.items() if id(member) in ids}


def _reduce_member(member: Any) -> tuple[Any, ...]:
    """Reduce a member of an enumeration to a call that does not need the whole enumeration."""
    cls = type(member)
    base = cls._member_type_
    args: Any = ()
    if base is not object:
        reduced: Any = base.__reduce__(member) if base.__reduce__ is not _reduce else None
        if not isinstance(reduced, tuple):
            reduced = object.__reduce_ex__(member, 2) if cls.__reduce__ is _reduce else (None, ())
        args = reduced[1][1:] if reduced[0] is copyreg.__newobj__ else reduced[1]  # type: ignore[attr-defined]
    state = object.__getstate__(member)
    if isinstance(state, dict):
        state = {name: value for name, value in state.items() if name != "_inverted_"}
    return make_member, (cls, member._name_, base, args), state, None, None, set_member_state


class _Get:
    """Stands for a value that `__main__` has, within a value that is pickled."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return get, (self._name,)


def _without_what_type_made(members: dict[str, Any]) -> dict[str, Any]:
    slots = (types.MemberDescriptorType, types.GetSetDescriptorType)
    left_out = (*_MADE_BY_TYPE, "__annotations_cache__")
    return {name: value for name, value in members.items() if name not in left_out and not isinstance(value, slots)}


class _ClassDict:
    """Stands for the dict of a class, to which its annotations refer."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __reduce__(self) -> tuple[Any, ...]:
        return class_dict, (self._cls,)


class _Scope:
    """Stands for a namespace of functions that is not `__main__`'s."""

    def __init__(self, scope: dict[str, Any]) -> None:
        names = {name: scope.get(name) for name in ("__name__", "__file__", "__package__")}
        self._parts = scope_token(scope), {name: value for name, value in names.items() if isinstance(value, str)}

    def __reduce__(self) -> tuple[Any, ...]:
        return make_scope, self._parts


class Pickler(_pickle.Pickler):
    """A pickler with our rules for `__main__`, and cloudpickle's for everything else that plain pickle refuses.

    table: the reducers, which include `BY_VALUE`.
    read, named: the globals of `__main__` that pickled functions read, and all names in their code.
    """

    _reducer: Reducer | None = None  # of what cloudpickle has to reduce, if anything

    def __init__(self, file: Any, buffer_callback: Any, table: Mapping[type, Any]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.dispatch_table = table
        self.read: set[str] = set()
        self.named: set[str] = set()
        self._dicts: dict[int, type] = {}  # the classes that were pickled by value, by the ids of their dicts
        self._enums: set[int] = set()  # the ids of enumerations that were pickled by value
        self._cells: set[int] = set()  # the ids of cells whose contents come with a function
        self._scopes: dict[int, _Scope] = {}
        self._values: Mapping[int, str] | None = None  # names of the globals, by id

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
        if type(obj) is memoryview and _native.is_shared(obj):  # cloudpickle turns any other view into bytes
            from pool_party._wire.shared import reduce_view  # which workers need not have imported

            return reduce_view(obj)
        if is_of_main(obj) and self._goes_by_name(obj):
            return get, (obj.__qualname__,)
        if id(type(obj)) in self._enums and getattr(obj, "_name_", None) in type(obj)._member_map_:
            return _reduce_member(obj)
        return self._reduce_by_value(obj)

    def _goes_by_name(self, obj: Any) -> bool:
        if find(obj.__qualname__) is not obj:
            return False
        self.read.add(obj.__qualname__.partition(".")[0])
        return True

    def _stand_in(self, value: Any) -> Any:
        """Return what is pickled for a part of a function: a value that is also a global is one object there, too.

        Connections and sockets come with each call, since a process gets none of the globals that are one.
        """
        if isinstance(value, _NOT_PLACED) or is_of_main(value):
            return value
        if self._values is None:
            self._values = named_values()
        if (name := self._values.get(id(value))) is None or _is_handle(value):
            return value
        self.read.add(name)
        return _Get(name)

    def _reduce_by_value(self, obj: Any) -> Any:
        if is_cache(obj) and (is_of_main(obj) or not _is_importable(obj)):
            parameters = obj.cache_parameters()
            return make_cache, (parameters["maxsize"], parameters["typed"], obj.__wrapped__)
        if isinstance(obj, type):
            return self._reduce_class(obj)
        if isinstance(obj, types.FunctionType):
            return self._reduce_function(obj)
        if isinstance(obj, types.CellType):
            content = () if id(obj) in self._cells else _content(obj)
            return make_cell, (), content or None, None, None, set_cell
        if isinstance(obj, types.ModuleType) and goes_by_name(obj):
            return module, (obj.__name__,)
        return NotImplemented

    def _reduce_class(self, cls: Any) -> Any:
        if not is_of_main(cls):
            if (name := _name_in_types(cls)) is not None:
                return attribute, ("types", name)
            if cls.__flags__ & _IMMUTABLE or goes_by_name(cls):
                return NotImplemented
        self._dicts[id(class_dict(cls))] = cls
        if _is_enum(cls):
            self._enums.add(id(cls))
        token, members = token_of(cls), _own_members(cls)
        state = dict(members)
        if _is_enum(cls):
            _only_members(cls, state)
        args = token, type(cls), cls.__name__, cls.__bases__, _for_creation(cls, members)
        return make_class, args, (token, state, _registered(cls)), None, None, set_class_state

    def _by_cloudpickle(self) -> Reducer:
        if self._reducer is None:
            from pool_party._wire.by_value import Reducer

            self._reducer = Reducer()
        return self._reducer

    def _reduce_function(self, function: types.FunctionType) -> Any:
        if not is_of_main(function) and goes_by_name(function):
            return NotImplemented
        if _is_singledispatch(function):
            return _reduce_singledispatch(function)
        scope: Any = _module_of(function)
        values: dict[str, Any] = {}
        code, read, named = look_at(function.__code__)
        if scope in MODULES:
            self.read |= read
            self.named |= named
        elif scope is None and function.__globals__.get("__name__") in MODULES:
            scope, values = self._scope_of(function.__globals__, read)
        elif scope is None:
            return self._by_cloudpickle().reduce_function(function)
        closure = function.__closure__
        self._cells |= set(map(id, closure or ()))
        contents = [
            self._contents(name, cell) for name, cell in zip(function.__code__.co_freevars, closure or (), strict=True)
        ]
        token = self._token_of(function)
        annotate, annotations = _annotations(function)
        members = self._with_stand_ins(_members(function))
        state = (token, members, annotate, annotations, function.__dict__, contents, values)
        return make_function, (token, code, function.__name__, closure, scope), state, None, None, set_function_state

    def _token_of(self, function: types.FunctionType) -> bytes:
        return b""

    def _scope_of(self, scope: dict[str, Any], read: Iterable[str]) -> tuple[Any, dict[str, Any]]:
        if id(scope) not in self._scopes:
            self._scopes[id(scope)] = _Scope(scope)
        return self._scopes[id(scope)], {name: (scope[name],) for name in sorted(read) if name in scope}

    def _contents(self, name: str, cell: types.CellType) -> tuple[Any, ...]:
        content = _content(cell)
        if name == "__classdict__" and content and type(content[0]) is dict:
            if id(content[0]) in self._dicts:
                return (_ClassDict(self._dicts[id(content[0])]),)
            return (_without_what_type_made(content[0]),)  # of a class that another one has replaced: `slots=True`
        return tuple(map(self._stand_in, content))

    def _with_stand_ins(self, members: tuple[Any, ...]) -> tuple[Any, ...]:
        *others, defaults, keywords, parameters = members
        if defaults is not None:
            found = tuple(map(self._stand_in, defaults))
            defaults = defaults if all(map(operator.is_, found, defaults)) else found
        if keywords is not None:
            keywords = {name: self._stand_in(value) for name, value in keywords.items()}
        return (*others, defaults, keywords, parameters)


_LIST = 0  # the place of the list of all globals in a pickle
_PLACED = (types.FunctionType, type)  # by value if they are in a memo, and not importable
_NOT_PLACED = (int, float, complex, bool, str, bytes, type(None), types.ModuleType, types.BuiltinFunctionType)


class UnitPickler(Pickler):
    """Pickles globals of `__main__` by value, with references to other globals, and to objects that are in these.

    names: of the globals. owners: by the id of an object in another global that was sent before: its name, and place.
    refs: the globals that are referred to.
    """

    def __init__(
        self,
        file: Any,
        buffer_callback: Any,
        table: Mapping[type, Any],
        names: tuple[str, ...],
        owners: Mapping[int, tuple[str, int]],
        values: Mapping[int, str],
    ) -> None:
        super().__init__(file, buffer_callback, table)
        self._names = names
        self._owners = owners
        self._named = values
        self._own = {id(value) for value in map(namespace().get, names) if self._is_own(value)}
        self.refs: set[str] = set()
        self._by_name: set[int] = set()  # the ids of parts of definitions, which are found by their names
        self.placed: set[tuple[str, int, int]] = set()

    def _is_own(self, value: Any) -> bool:
        """Return whether none of the other globals gives its name to the value."""
        if self._named.get(id(value), self._names[0]) not in self._names:
            return False
        if not is_of_main(value) or find(value.__qualname__) is not value:
            return True
        return value.__qualname__.partition(".")[0] in self._names

    def persistent_id(self, obj: Any) -> Any:
        key = id(obj)
        name = self._named.get(key)
        if name is not None:
            if name in self._names:
                return None
            self.refs.add(name)
            return name
        place = self._owners.get(key)
        if place is None or place[0] in self._names:
            return None
        self.refs.add(place[0])
        self.placed.add((place[0], key, place[1]))
        return place

    def _goes_by_name(self, obj: Any) -> bool:
        if id(obj) in self._own:
            return False
        first = obj.__qualname__.partition(".")[0]
        if first in self._names or find(obj.__qualname__) is not obj:
            return False
        self._by_name.add(id(obj))
        self.refs.add(first)
        return True

    def reducer_override(self, obj: Any) -> Any:
        if not is_of_main(obj) and (name := _name_by_reduction(obj)) is not None:
            first = name.partition(".")[0]
            if first not in self._names and find(name) is obj:
                self._by_name.add(id(obj))
                self.refs.add(first)
                return get, (name,)
            return copyreg.__newobj__, (type(obj),), object.__getstate__(obj)  # type: ignore[attr-defined]
        return super().reducer_override(obj)

    def _stand_in(self, value: Any) -> Any:
        return value  # as `persistent_id` handles it

    def _with_stand_ins(self, members: tuple[Any, ...]) -> tuple[Any, ...]:
        return members

    def _token_of(self, function: types.FunctionType) -> bytes:
        return token_of(function) if id(function) in self._own else b""

    def places(self) -> dict[int, int]:
        """Return the places of objects that later pickles may refer to, by id."""
        return {
            key: place
            for key, (place, obj) in self.memo.copy().items()
            if key not in self._by_name
            and place != _LIST
            and not issubclass(type(obj), _NOT_PLACED)
            and not (type(obj) is tuple and not obj)
            and not (issubclass(type(obj), _PLACED) and not is_of_main(obj) and goes_by_name(obj))
        }


def _name_by_reduction(obj: Any) -> str | None:
    """Return the name of which the `__reduce__` of an object says that it is found there."""
    cls = type(obj)
    if cls.__flags__ & _IMMUTABLE or cls.__reduce__ is _reduce:
        return None
    if cls.__module__ not in MODULES and not (cls.__name__ == "NewType" and obj.__module__ in MODULES):
        return None
    try:
        name = obj.__reduce__()
    except Exception:
        return None
    return name if isinstance(name, str) else None


class Part(NamedTuple):
    """Globals of `__main__` in one pickle.

    content: a hash of the pickle but for tokens. tokens: for each global, that of a function or class, or b"". body:
    the pickle, or None if `error` prevented it. refs: the globals that it refers to. placed: the objects in them that
    it refers to, as their names, ids and places. read, named: the globals that functions in it read, and all names in
    their code. shared, buffers: the shared memory that it needs, and its names. pickler: keeps the objects of `places`
    alive. places: where in the pickle objects are that others may refer to, by id.
    """

    names: tuple[str, ...]
    content: bytes
    tokens: tuple[bytes, ...]
    body: bytes | None
    error: Exception | None
    refs: set[str]
    placed: set[tuple[str, int, int]]
    read: set[str]
    named: set[str]
    shared: list[memoryview]
    buffers: list[bytes]
    pickler: Any
    places: dict[int, int]

    def let_go(self, values: list[Any]) -> None:
        """Do not keep these objects alive: globals, which live as long as the program wants."""
        if self.pickler is not None:
            ids = set(map(id, values))
            memo = self.pickler.memo.copy()
            self.pickler.memo = {key: (n, obj) for key, (n, obj) in memo.items() if n != _LIST and key not in ids}


def _lasting_table(is_local: bool) -> Mapping[type, Any]:
    if "multiprocessing.reduction" not in sys.modules:
        return BY_VALUE
    from multiprocessing.reduction import ForkingPickler

    from pool_party._wire.fd_handle import lasting_reducers

    registered: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    return ChainMap(lasting_reducers(is_local), registered, *BY_VALUE.maps)


def pickle_part(
    names: tuple[str, ...],
    owners: Mapping[int, tuple[str, int]],
    values: Mapping[int, str],
    modules: Iterable[str] = (),
    is_local: bool = False,
    has_our_memory: bool = True,
) -> Part:
    """Pickle globals of `__main__` by value.

    owners, values: as in `UnitPickler`. modules: names in the code of functions; a global that is a package is sent
    with its submodules among them. is_local: whether the receivers are interpreters of this process. has_our_memory:
    whether they open shared memory by its name; otherwise they get copies.
    """
    from pool_party._wire.interrupts import is_from_handler

    shared: list[Any] = []
    main = namespace()
    tokens = tuple(token_of(main[name]) if _has_token(main[name]) else b"" for name in names)
    with io.BytesIO() as file:
        collect = collector(shared) if has_our_memory else keep_in_pickle
        pickler = UnitPickler(file, collect, _lasting_table(is_local), names, owners, values)
        try:
            found = [main[name] for name in names]
            pickler.dump(found + _submodules(found, set(modules)))
        except Exception as error:
            if is_from_handler(error):
                raise
            error.add_note(f"pool_party: the global {names[0]!r} of __main__, which a function reads, does not pickle")
            reading = pickler.refs, pickler.placed, pickler.read, pickler.named
            return Part(names, digest(repr(error).encode()), tokens, None, error, *reading, [], [], None, {})
        pickle = file.getvalue()
    places = pickler.places() if len(pickle) < KEPT_MAX else {}
    shared_names = names_of(shared)
    marked = without_tokens(pickle) + b"".join(shared_names)
    reading = pickler.refs, pickler.placed, pickler.read, pickler.named
    return Part(names, digest(marked), tokens, pickle, None, *reading, shared, shared_names, pickler, places)


def _submodules(values: list[Any], named: set[str]) -> list[types.ModuleType]:
    found = []
    for package in values:
        if isinstance(package, types.ModuleType):
            prefix = f"{package.__name__}."
            names = [name for name in list(sys.modules) if name.startswith(prefix)]
            found += [sys.modules[name] for name in names if set(name.removeprefix(prefix).split(".")) <= named]
    return [module for module in found if isinstance(module, types.ModuleType)]
