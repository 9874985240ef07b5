"""Inspects `__main__` of this process, and creates the definitions there that a pickle contains.

Workers import this module, so it imports only modules that start-up needs anyway.
"""

import _pickle
import marshal
import sys

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

MODULES = ("__main__", "__mp_main__")  # the second is its name in processes that `multiprocessing` spawned
Function: "Any" = type(lambda: None)
_LARGE = 1 << 20  # bytes; guess: OpenSSL hashes them some 0.5 ms faster
_Code = type((lambda: None).__code__)
_Cell: "Any" = type((lambda x: lambda: x)(0).__closure__[0])  # type: ignore[index]
_reduce: "Any" = object.__reduce__


# ---- inspection ----

_namespace: "dict[str, Any] | None" = None


def _search_namespace(main: "dict[str, Any]") -> "dict[str, Any]":
    values = list(main.values())
    values += [method for cls in values if isinstance(cls, type) for method in vars(cls).values()]
    for value in values:
        if type(value) is Function and value.__globals__.get("__name__") == "__mp_main__":
            found: dict[str, Any] = value.__globals__
            return found
    return main


def namespace() -> "dict[str, Any]":
    """Return the globals of the functions of `__main__`.

    In a process that `multiprocessing` spawned, the module is a copy of the namespace in which the script was run.
    """
    global _namespace
    main = sys.modules["__main__"].__dict__
    if main.get("__name__") != "__mp_main__":
        return main
    if _namespace is None:
        _namespace = _search_namespace(main)
    return _namespace


def find(qualname: str) -> "Any":
    """Return the object that `__main__` has under a dotted name, or None."""
    first, *rest = qualname.split(".")
    found = sys.modules["__main__"].__dict__.get(first)
    for name in rest:
        found = getattr(found, name, None)
    return found


def bind(name: str, value: object) -> None:
    namespace()[name] = value
    sys.modules["__main__"].__dict__[name] = value


def is_cache(value: object) -> bool:
    """Return whether a value was made by `functools.cache` or `lru_cache`."""
    return type(value).__name__ == "_lru_cache_wrapper" and type(value).__module__ == "functools"


def is_of_main(value: "Any") -> bool:
    """Return whether a value is a function or class that was defined in `__main__`."""
    if type(value) is Function or isinstance(value, type) or is_cache(value):
        return getattr(value, "__module__", None) in MODULES
    return False


def _is_named(value: "Any", name: str) -> bool:
    """Return whether the `__reduce__` of an object pickles it as a name in `__main__`."""
    cls = type(value)
    if cls.__module__ not in MODULES or isinstance(value, type) or cls.__reduce__ is _reduce:
        return False
    try:
        return bool(value.__reduce__() == name)
    except Exception:
        return False


def is_definition(value: "Any", name: str) -> bool:
    if is_of_main(value):
        return value.__qualname__ == name or find(value.__qualname__) is not value  # otherwise an alias
    return _is_named(value, name)


def is_session() -> bool:
    """Return whether `__main__` is interactive, or has no file that processes could import."""
    main = sys.modules["__main__"]
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return True
    return getattr(main, "__spec__", None) is None and getattr(main, "__file__", None) in (None, "<stdin>")


# ---- names in code ----

_codes: "dict[int, tuple[Any, bytes, frozenset[str], frozenset[str]]]" = {}


# The instructions that name globals, with the shift of their argument. Importing `opcode` would take 0.6 ms.
_SHIFTS = {
    _native.LOAD_GLOBAL: 1,
    **dict.fromkeys((_native.STORE_GLOBAL, _native.DELETE_GLOBAL), 0),
    **dict.fromkeys((_native.LOAD_NAME, _native.LOAD_FROM_DICT_OR_GLOBALS), 0),
}


def _globals_of(code: "Any") -> "Iterator[str]":
    instructions, high = code.co_code, 0
    for i in range(0, len(instructions), 2):
        opcode, argument = instructions[i], instructions[i + 1] | high
        high = argument << 8 if opcode == _native.EXTENDED_ARG else 0
        if opcode in _SHIFTS:
            yield code.co_names[argument >> _SHIFTS[opcode]]


def _nested(code: "Any") -> "Iterator[Any]":
    yield code
    for constant in code.co_consts:
        if type(constant) is _Code:
            yield from _nested(constant)


def _dump_code(code: "Any") -> bytes:
    """Dump equal code to equal bytes in every process. Later versions of marshal depend on reference counts."""
    try:
        return marshal.dumps(code, 2)
    except ValueError:  # a slice is among its constants
        return marshal.dumps(code)


def look_at(code: "Any") -> "tuple[bytes, frozenset[str], frozenset[str]]":
    """Return a code object as bytes that are the same in every process, the globals that it uses, and all its names."""
    known = _codes.get(id(code))
    if known is None or known[0] is not code:
        if len(_codes) > 1000:
            _codes.clear()
        nested = list(_nested(code))
        read = frozenset(name for part in nested for name in _globals_of(part))
        known = code, _dump_code(code), read, frozenset(name for part in nested for name in part.co_names)
        _codes[id(code)] = known
    return known[1:]


def functions_in(value: "Any", depth: int = 4) -> "Iterator[Any]":
    """Yield the functions that a function or class consists of."""
    if depth == 0:
        return
    if isinstance(value, type):
        parts = [part for part in vars(value).values() if not isinstance(part, str | int)]
    elif type(value) is Function:
        yield value
        parts = [*vars(value).values(), *(_contents(cell) for cell in value.__closure__ or ())]
    else:
        parts = [getattr(value, name, None) for name in ("__func__", "__wrapped__", "fget", "fset", "fdel", "func")]
    for part in parts:
        if part is not value:
            yield from functions_in(part, depth - 1)


def _contents(cell: "Any") -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def reads(value: "Any") -> "tuple[set[str], set[str]]":
    """Return the globals of `__main__` that a definition reads, and all names in its code."""
    read: set[str] = set()
    named: set[str] = set()
    for function in functions_in(value):
        if function.__globals__.get("__name__") in MODULES:
            _, reads, names = look_at(function.__code__)
            read |= reads
            named |= names
    if isinstance(value, type):
        read |= {base.__qualname__.partition(".")[0] for base in value.__mro__ if base.__module__ in MODULES}
    return read, named


def digest(data: bytes) -> bytes:
    """Return a hash that distinguishes pickles. It is not for security; FIPS 140 allows SHA-1 only for such purposes.

    The identities that cloudpickle gives to local classes are left out, because they differ between processes.
    """
    if b"_make_skeleton" in data:
        import re

        data = re.sub(rb"\x8c\x20[0-9a-f]{32}", b"", data)
    found: bytes = _sha1_for(len(data))(data, usedforsecurity=False).digest()
    return found


def _sha1_for(n_bytes: int) -> "Any":
    """Return SHA-1. Importing hashlib takes 4 ms, as it loads OpenSSL, which is faster only for large data."""
    if n_bytes < _LARGE:
        try:
            from _sha1 import sha1  # type: ignore[import-not-found]  # the type stubs have no such module
        except ImportError:  # CPython was built without it
            pass
        else:
            return sha1
    from hashlib import sha1

    return sha1


# ---- noticing changes ----

_ATOMS = (int, float, complex, bool, str, bytes, type(None), type(...), _Code, type(sys), type(len), type(str.join))
_ATOMS_TOO = (type(object.__init__), type(type.__dict__["__bases__"]), type(Function.__dict__["__closure__"]))
_OWN = (
    *("__dict__", "__weakref__", "_abc_impl", "__slotnames__", "__annotate_func__", "__annotations_cache__"),
    *("__dataclass_fields__", "__dataclass_params__"),
)
_PARTS = (classmethod, staticmethod, property)


class _Missing:
    """Stands for a missing global."""


def leaves(names: "Iterable[str]") -> "list[Any] | None":
    """Return the objects that globals consist of. While these are the same objects, the globals are unchanged.

    Returns None if a change inside them could go unnoticed, or if they should not be retained for this.
    """
    main = namespace()
    return _native.leaves([main.get(name, _Missing) for name in names], _ATOMS + _ATOMS_TOO, _OWN, _PARTS, MODULES)


# ---- making ----

marks: "dict[str, bytes]" = {}  # hashes of the definitions and values that were received last, by name
_pending: "dict[str, tuple[Any, ...]]" = {}  # definitions that are being unpickled, until they are made
_coming: "dict[str, object]" = {}  # identities of the classes among them
_tokens: "dict[str, object]" = {}  # identities of the caller's classes from which ours were made


def is_replaced(name: str, token: object) -> bool:
    """Return whether a received definition is a class other than the one from which ours was made."""
    return token is not None and _tokens.get(name) != token


def install(definitions: "dict[str, Any]", values: "dict[str, Any]") -> None:
    """Make definitions, then values, from their entries in a package."""
    _pending.update(definitions)
    try:
        for name in definitions:
            _make(name)
        for name, (mark, body, reason, _) in values.items():
            if body is None:
                raise TypeError(f"the global {name!r} of __main__ does not pickle, and is not here: {reason}")
            try:
                value = _pickle.loads(body)[0]
            except Exception as error:
                error.add_note(
                    f"pool_party: the global {name!r} of __main__, which a function reads, does not unpickle"
                )
                raise
            bind(name, value)
            marks[name] = mark
    finally:
        _pending.clear()


def bases_of(value: object) -> "tuple[str, ...]":
    """Return the names of the definitions that a class needs to be made, as the first parts of dotted names."""
    if not isinstance(value, type):
        return ()
    return tuple(cls.__qualname__.partition(".")[0] for cls in (*value.__bases__, type(value)) if is_of_main(cls))


def _make(name: str, derived: "tuple[str, ...]" = ()) -> None:
    """Make a definition, and its bases before it: these may refer to it, such as a base that lists its subclasses.

    derived: the names of definitions that wait for this one. A name may have been bound again, so it may be among them.
    """
    for base in _pending[name][-1] if name in _pending else ():
        if base not in (*derived, name):
            _make(base, (*derived, name))
    if name not in _pending:
        return
    mark, token, body, error, _ = _pending.pop(name)
    if body is None:
        if name in namespace():
            return
        raise TypeError(f"{name!r} of __main__ does not pickle, and is not here: {error}")
    _coming[name] = token
    bind(name, _pickle.loads(body))
    marks[name] = mark


def get(qualname: str) -> "Any":
    """Return the object that `__main__` has under a dotted name, and make it first if it is pending.

    Called by unpickling.
    """
    first, _, rest = qualname.partition(".")
    _make(first)
    found = namespace()[first] if first in namespace() else getattr(sys.modules["__main__"], first)
    for name in rest.split(".") if rest else ():
        found = getattr(found, name)
    return found


def make_class(name: str, maker: "Callable[..., Any]", *args: "Any") -> "Any":
    """Make a class of `__main__` without its state, or return ours if it was made from the same class.

    Called by unpickling.
    """
    ours = namespace().get(name)
    token = _coming.pop(name, None)
    if isinstance(ours, type) and token is not None and _tokens.get(name) == token:
        return ours
    made = maker(*args)
    _tokens[name] = token
    bind(name, made)  # at once, because its members may refer to it
    return made


def new_class(metaclass: "Any", name: str, bases: "tuple[Any, ...]", members: "dict[str, Any]") -> "Any":
    """Make a class with the attributes that its creation needs. Workers need no cloudpickle for this."""
    import types

    members = {sys.intern(key): value for key, value in members.items()}
    return types.new_class(name, bases, {"metaclass": metaclass}, lambda attributes: attributes.update(members))


def set_class_state(cls: "Any", state: "tuple[dict[str, Any], Any]") -> None:
    """Set all other attributes of a class, and register the subclasses of an abstract one. Called by unpickling."""
    attributes = dict(state[0])
    registered = attributes.pop("_abc_impl", ())
    first_line = attributes.pop("__firstlineno__", None)
    for name, value in attributes.items():
        setattr(cls, name, value)
    if first_line is not None:
        cls.__firstlineno__ = first_line  # last, because setting __module__ deletes it
    for subclass in registered:
        cls.register(subclass)


def new_enum(name: str, bases: "tuple[Any, ...]", members: "list[tuple[str, Any]]", boundary: "Any") -> "Any":
    """Make an enumeration with its members. Called by unpickling."""
    import enum

    attributes: Any = enum.EnumType.__prepare__(name, bases)
    attributes["__module__"] = "__main__"
    for key, value in members:
        attributes[sys.intern(key)] = enum.member(value)
    return enum.EnumType(name, bases, attributes, boundary=boundary)


def set_enum_state(cls: "Any", state: "tuple[dict[str, Any], dict[str, Any]]") -> None:
    """Set all other attributes of an enumeration and of its members. Called by unpickling."""
    set_class_state(cls, state)
    for name, attributes in state[1].items():
        vars(cls._member_map_[name]).update(attributes)


def attribute(module: str, name: str) -> "Any":
    """Return an attribute of a module. Called by unpickling."""
    return getattr(__import__(module, fromlist=[name]), name)


def module(name: str) -> "Any":
    """Return a module, and import it first if necessary. Called by unpickling."""
    __import__(name)
    return sys.modules[name]


def make_function(code: bytes, name: str, n_cells: "int | None", module: str) -> "Any":
    """Make a function without its state. Called by unpickling."""
    if module in MODULES:
        scope = namespace()
    else:
        scope = __import__(module, fromlist=["__name__"]).__dict__
    cells = None if n_cells is None else tuple(_Cell() for _ in range(n_cells))
    return Function(marshal.loads(code), scope, name, None, cells)


def set_function_state(function: "Any", state: "tuple[Any, Any, Any]") -> None:
    """Set all parts of a function besides its code. Called by unpickling."""
    members, attributes, contents = state
    for name, value in members.items():
        setattr(function, name, value)
    function.__dict__.update(attributes)
    for cell, content in zip(function.__closure__ or (), contents, strict=True):
        if content:
            cell.cell_contents = content[0]


def make_cache(maxsize: "int | None", typed: bool, function: "Any") -> "Any":
    """Make an empty cache around a function. Called by unpickling."""
    import functools

    return functools.lru_cache(maxsize, typed)(function)


def make_singledispatch(default: "Any", implementations: "list[tuple[type, Any]]") -> "Any":
    """Make a generic function. Called by unpickling."""
    import functools

    generic = functools.singledispatch(default)
    for cls, implementation in implementations:
        generic.register(cls, implementation)
    return generic
