"""What lives in `__main__`, on its way to workers whose `__main__` is another one.

A function or class of `__main__` travels with its definition and a fingerprint of its code. The receiver takes the one
that its own `__main__` has under that name if the fingerprint is the same (fork, a script that was imported again, a
class that comes home with a result) and else builds it from the definition, in its own `__main__`. There all such
functions share their globals, so what one task or the initializer stores, the next one finds. Values of globals are
sent once and never overwrite what the worker has meanwhile stored under that name; definitions do.
"""

import copyreg
import hashlib
import io
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from cloudpickle import cloudpickle

from pool_party import _native

_fingerprints: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()
_unfinished: set[int] = set()  # ids of objects made by `_define` whose state is still to come


def _constants(code: types.CodeType) -> Iterable[object]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield _code_key(constant)
        elif isinstance(constant, frozenset):
            yield sorted(map(repr, constant))
        else:
            yield repr(constant)


def _code_key(code: types.CodeType) -> tuple[object, ...]:
    return code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_freevars, [*_constants(code)]


def _value_key(value: object) -> object:
    """A value as part of a fingerprint: itself if it is a number, a string or a tuple of such, else its type."""
    if isinstance(value, tuple):
        return [_value_key(item) for item in value]
    return repr(value) if isinstance(value, int | float | complex | str | bytes | None) else type(value).__qualname__


def _function_key(function: types.FunctionType) -> tuple[object, ...]:
    keywords = sorted((function.__kwdefaults__ or {}).items())
    return _code_key(function.__code__), _value_key(function.__defaults__), _value_key(tuple(keywords))


def _class_key(cls: type) -> list[object]:
    key: list[object] = [[base.__qualname__ for base in cls.__bases__]]
    for name, value in sorted(cls.__dict__.items()):
        function = getattr(value, "__func__", getattr(value, "fget", value))
        if isinstance(function, types.FunctionType):
            key.append((name, _function_key(function)))
        elif not name.startswith("_"):
            key.append((name, _value_key(value)))
    return key


def _digest(text: str) -> str:
    """A hash that tells definitions apart and protects nothing: under FIPS 140, SHA-1 is allowed for that alone."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def fingerprint(definition: Any) -> str:
    """A hash of a function's or class's code, the same in every process that runs the same source."""
    known = _fingerprints.get(definition)
    if known is None:
        key = _class_key(definition) if isinstance(definition, type) else _function_key(definition)
        known = _fingerprints[definition] = _digest(repr(key))
    return known


def _main() -> dict[str, Any]:
    """The globals of what `__main__` defines.

    In a process that `multiprocessing` spawned, `__main__` is a copy of the namespace in which the script was
    run again.
    """
    main = sys.modules["__main__"].__dict__
    if main.get("__name__") == "__mp_main__":
        values = list(main.values())
        values += [method for cls in values if isinstance(cls, type) for method in cls.__dict__.values()]
        for value in values:
            if isinstance(value, types.FunctionType) and value.__globals__.get("__name__") == "__mp_main__":
                return value.__globals__
    return main


def find(qualname: str) -> Any:
    """What `__main__` has under a dotted name, or None."""
    first, *rest = qualname.split(".")
    found = _main().get(first)
    for name in rest:
        found = getattr(found, name, None)
    return found


def _is_definition(value: object) -> bool:
    return isinstance(value, types.FunctionType | type)


def _belongs_to_main(value: Any) -> bool:
    if value.__module__ != "__main__" or find(value.__qualname__) is not value:
        return False
    return isinstance(value, type) or "." not in value.__qualname__


def _define(qualname: str, mark: str, maker: Callable[..., Any], *args: Any) -> Any:
    """Called by unpickling: our own definition of that name if it is the same, else a new one without its state."""
    ours = find(qualname)
    if _is_definition(ours) and fingerprint(ours) == mark:
        return ours
    made = maker(*args)
    _unfinished.add(id(made))
    _fingerprints[made] = mark
    if "." not in qualname and (ours is None or _is_definition(ours)):
        _main()[qualname] = made
    return made


def _finish(made: Any, state: tuple[Callable[[Any, Any], object], Any]) -> None:
    """Called by unpickling: the state of what `_define` returned, unless that was ours."""
    if id(made) in _unfinished:
        _unfinished.discard(id(made))
        set_state, value = state
        set_state(made, value)


def _set_function_state(function: types.FunctionType, state: tuple[Any, dict[str, Any]]) -> None:
    attributes, slots = state
    if function.__globals__ is _main():
        for name, value in slots["__globals__"].items():
            if name not in function.__globals__ or isinstance(value, types.FunctionType):
                function.__globals__[name] = value
        slots = {**slots, "__globals__": {}}
    cloudpickle._function_setstate(function, (attributes, slots))


class _MainGlobals:
    """Pickles as the receiver's `__main__.__dict__`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _main, ()


def _with_slots(cls: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """cloudpickle's reduction of a class, with its slots: cloudpickle 3.1 makes them an attribute like any other."""
    maker, (metaclass, name, bases, namespace, *rest), (state, slotstate), *others = reduced
    namespace = {**namespace, "__slots__": cls.__dict__["__slots__"]}
    made_by_type = {"__slots__", "__slotnames__"}
    state = {
        key: value
        for key, value in state.items()
        if key not in made_by_type and not isinstance(value, types.MemberDescriptorType)
    }
    return maker, (metaclass, name, bases, namespace, *rest), (state, slotstate), *others


def _is_shared_memory(value: object) -> bool:
    return type(value) is memoryview and _native.is_shared(value)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle's pickler, with this module's rules for `__main__`."""

    @classmethod
    def dumps(cls, value: object, buffer_callback: Callable[[Any], Any] | None) -> bytes:
        """The value's pickle (protocol 5); large buffers go to `buffer_callback`."""
        with io.BytesIO() as file:
            pickler = cls(file, protocol=5, buffer_callback=buffer_callback)
            pickler.globals_ref[id(_main())] = _MainGlobals()
            pickler.dump(value)
            return file.getvalue()

    def reducer_override(self, obj: Any) -> Any:
        if _is_shared_memory(obj):  # any other memoryview becomes bytes, as cloudpickle has it
            return copyreg.dispatch_table[memoryview](obj)
        reduced = super().reducer_override(obj)
        if not (isinstance(reduced, tuple) and len(reduced) == 6 and _is_definition(obj)):
            return reduced
        if "__slots__" in obj.__dict__ and reduced[0] is cloudpickle._make_skeleton_class:
            reduced = _with_slots(obj, reduced)
        if _belongs_to_main(obj):
            maker, args, state, _, _, set_state = reduced
            name = obj.__qualname__
            return _define, (name, fingerprint(obj), maker, *args), (set_state, state), None, None, _finish
        return reduced

    def _dynamic_function_reduce(self, func: types.FunctionType) -> tuple[Any, ...]:
        maker, args, state, *_ = super()._dynamic_function_reduce(func)
        return maker, args, state, None, None, _set_function_state
