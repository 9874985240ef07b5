"""Pickles values that plain pickle refuses, and definitions of `__main__`, which `definitions` sends when needed."""

import _pickle
import copyreg
import dataclasses
import io
import itertools
import os
import sys
import types
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from cloudpickle import cloudpickle

from pool_party import _native
from pool_party.wire.beside import collector, load, names_of
from pool_party.wire.namespace import (
    MODULES,
    attribute,
    digest,
    find,
    get,
    is_cache,
    is_of_main,
    look_at,
    make_class,
    make_function,
    namespace,
    new_class,
    set_class_state,
    set_function_state,
)

BY_VALUE: "ChainMap[type, Any]" = cloudpickle.Pickler.dispatch_table
_tokens: "weakref.WeakKeyDictionary[type, object]" = weakref.WeakKeyDictionary()
_numbers = itertools.count()
_FieldKind: Any = type(dataclasses._FIELD)  # type: ignore[attr-defined]


def _token_of(cls: type) -> object:
    """Return an identifier of a class of this process."""
    if cls not in _tokens:
        _tokens[cls] = (os.getpid(), next(_numbers))
    return _tokens[cls]


def _make_cache(maxsize: int | None, typed: bool, function: Any) -> Any:
    """Make an empty cache around a function. Called by unpickling."""
    import functools

    return functools.lru_cache(maxsize, typed)(function)


def _make_singledispatch(default: Any, implementations: list[tuple[type, Any]]) -> Any:
    """Make a generic function. Called by unpickling."""
    import functools

    generic = functools.singledispatch(default)
    for cls, implementation in implementations:
        generic.register(cls, implementation)
    return generic


def _is_singledispatch(function: types.FunctionType) -> bool:
    return function.__code__.co_qualname == "singledispatch.<locals>.wrapper" and hasattr(function, "registry")


def _reduce_singledispatch(generic: Any) -> tuple[Any, ...]:
    implementations = dict(generic.registry)
    default = implementations.pop(object)
    return _make_singledispatch, (default, list(implementations.items()))


def _with_slots(cls: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Put the slots into the arguments of a class; cloudpickle 3.1 sets them later, as an ordinary attribute."""
    maker, (metaclass, name, bases, members, *rest), (state, slotstate), *others = reduced
    members = {**members, "__slots__": cls.__dict__["__slots__"]}
    made_by_type = {"__slots__", "__slotnames__"}
    state = {
        key: value
        for key, value in state.items()
        if key not in made_by_type and not isinstance(value, types.MemberDescriptorType)
    }
    return maker, (metaclass, name, bases, members, *rest), (state, slotstate), *others


def _with_real_bases(cls: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Restore the actual base of a typed named tuple; cloudpickle uses the bases in its source, which differ."""
    maker, (metaclass, name, bases, *rest), *others = reduced
    if cls.__bases__ == (tuple,):
        bases = cls.__bases__
    return maker, (metaclass, name, bases, *rest), *others


def _module_of(function: types.FunctionType) -> str | None:
    """Return the module of a function's globals, if it is `__main__` or one that every worker can import."""
    name = function.__globals__.get("__name__")
    if function.__globals__ is namespace():
        return "__main__"
    if not isinstance(name, str) or name.partition(".")[0] not in sys.stdlib_module_names:
        return None
    module = sys.modules.get(name)
    return name if module is not None and module.__dict__ is function.__globals__ else None


def _reduce_class(cls: type) -> tuple[Any, ...]:
    reduced: tuple[Any, ...] = cloudpickle._dynamic_class_reduce(cls)
    if reduced[0] is not cloudpickle._make_skeleton_class:
        return reduced
    reduced = _with_real_bases(cls, reduced)
    if cls.__module__ in MODULES:
        _, (*_, members, _, _), (state, _), *_ = reduced
        members["__module__"] = state["__module__"] = "__main__"  # the same in every process
    return _with_slots(cls, reduced) if "__slots__" in cls.__dict__ else reduced


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


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle's pickler, with this module's rules for `__main__`.

    table: the reducers, which include cloudpickle's.
    name, definition: an object of `__main__` that is pickled as a definition; all others are pickled by name.
    read, named: the globals of `__main__` that pickled functions read, and all names in their code.
    """

    def __init__(
        self, file: Any, buffer_callback: Any, table: Mapping[type, Any], name: str = "", definition: Any = None
    ) -> None:
        self.dispatch_table = table
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._name, self._definition = name, definition
        self.read: set[str] = set()
        self.named: set[str] = set()

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
            return copyreg.dispatch_table[memoryview](obj)
        if is_of_main(obj) and self._is_found(obj.__qualname__, obj):
            return get, (obj.__qualname__,)
        return self._reduce_by_value(obj)

    def _is_found(self, qualname: str, obj: object) -> bool:
        return find(qualname) is obj and not (self._name and qualname.startswith(f"{self._name}."))

    def _reduce_definition(self, obj: Any) -> Any:
        if not is_of_main(obj):
            return copyreg.__newobj__, (type(obj),), obj.__getstate__()  # type: ignore[attr-defined]
        reduced = self._reduce_by_value(obj)
        if not isinstance(obj, type):
            return reduced
        maker, args, *others, setter = reduced
        *args, _, extra = args  # cloudpickle's identity of the class, which our token replaces
        if maker is cloudpickle._make_skeleton_class:
            return make_class, (self._name, new_class, *args), *others, set_class_state
        return make_class, (self._name, maker, *args, None, extra), *others, setter

    def _reduce_by_value(self, obj: Any) -> Any:
        if is_cache(obj) and (is_of_main(obj) or not cloudpickle._lookup_module_and_qualname(obj)):
            parameters = obj.cache_parameters()
            return _make_cache, (parameters["maxsize"], parameters["typed"], obj.__wrapped__)
        if type(obj) is _FieldKind:
            return attribute, ("dataclasses", obj.name)
        if not is_of_main(obj):
            reduced = super().reducer_override(obj)
            is_class = isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) == 6
            return _reduce_class(obj) if is_class else reduced
        return _reduce_class(obj) if isinstance(obj, type) else self._dynamic_function_reduce(obj)

    def _dynamic_function_reduce(self, func: types.FunctionType) -> tuple[Any, ...]:
        if _is_singledispatch(func):
            return _reduce_singledispatch(func)
        module = _module_of(func)
        if module is None:
            reduced: tuple[Any, ...] = super()._dynamic_function_reduce(func)
            return reduced
        code, read, named = look_at(func.__code__)
        if module in MODULES:
            self.read |= read
            self.named |= named
        closure = func.__closure__
        contents = [_content(cell) for cell in closure or ()]
        args = (code, func.__name__, None if closure is None else len(closure), module)
        state = (_members(func), func.__dict__, contents)
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


def _pickle_apart(value: object, is_local: bool, name: str = "", definition: Any = None) -> Apart:
    from pool_party.wire.interrupts import is_from_handler

    shared: list[Any] = []
    token = _token_of(definition) if isinstance(definition, type) else None
    with io.BytesIO() as file:
        pickler = Pickler(file, collector(shared), _lasting_table(is_local), name, definition)
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


def pickle_definition(name: str, value: Any, is_local: bool = False) -> Apart:
    """Pickle a definition for `Receivers.define`. is_local: whether the receivers are interpreters of this process."""
    part = _pickle_apart(value, is_local, sys.intern(name), value)
    if part.error is not None:
        part.error.add_note(f"pool_party: {name!r} of __main__ does not pickle, and the workers do not have it")
    return part


def pickle_global(name: str, value: Any, named: Iterable[str], is_local: bool = False) -> Apart:
    """Pickle a value that functions of `__main__` read; a package includes imported submodules that are named."""
    parts = [value, *_submodules(value, set(named))] if isinstance(value, types.ModuleType) else [value]
    part = _pickle_apart(parts, is_local)
    if part.error is not None:
        part.error.add_note(f"pool_party: the global {name!r} of __main__, which a function reads, does not pickle")
    return part


def _submodules(package: types.ModuleType, named: set[str]) -> list[types.ModuleType]:
    prefix = f"{package.__name__}."
    names = [name for name in list(sys.modules) if name.startswith(prefix)]
    found = [sys.modules[name] for name in names if set(name.removeprefix(prefix).split(".")) <= named]
    return [module for module in found if isinstance(module, types.ModuleType)]
