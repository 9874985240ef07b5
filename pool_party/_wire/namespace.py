"""Inspects `__main__` of this process.

Workers import this module, so it imports only modules that start-up needs anyway.
"""

import marshal
import sys

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

MODULES = ("__main__", "__mp_main__")  # the second is its name in processes that `multiprocessing` spawned
Function: "Any" = type(lambda: None)
_LARGE = 1 << 20  # bytes; guess: OpenSSL hashes them some 0.5 ms faster
_Code = type((lambda: None).__code__)
_Module = type(sys)
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


_ATOMIC = (int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), type(len))


def named_values() -> "dict[int, str]":
    """Return the names of the globals whose identity matters and that are not imported, by the ids of their values."""
    found: dict[int, str] = {}
    for name, value in list(namespace().items()):
        kind = type(value)
        if kind in _ATOMIC or not isinstance(name, str) or (name[:2] == "__" == name[-2:]):
            continue
        if kind is Function or isinstance(value, type):
            if not is_of_main(value) or (value.__qualname__ != name and find(value.__qualname__) is value):
                continue
        elif (kind in (tuple, frozenset) and not value) or (kind is _Module and is_imported(value)):
            continue
        if id(value) not in found or getattr(value, "__qualname__", None) == name:
            found[id(value)] = name
    return found


def is_imported(module: "Any") -> bool:
    return sys.modules.get(getattr(module, "__name__", None)) is module  # type: ignore[arg-type]


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


_BY_TEXT = frozenset(("globals", "eval", "exec", "vars", "__main__"))  # with these, code may read globals by a text


def _words(text: str) -> "list[str]":
    """Return what may be names of globals in a text, such as that of `eval`, unless it is long."""
    if len(text) > 1000:
        return []
    return "".join(character if character.isidentifier() or character.isdigit() else " " for character in text).split()


def look_at(code: "Any") -> "tuple[bytes, frozenset[str], frozenset[str]]":
    """Return a code object as bytes that are the same in every process, the globals that it uses, and all its names."""
    known = _codes.get(id(code))
    if known is None or known[0] is not code:
        if len(_codes) > 1000:
            _codes.clear()
        nested = list(_nested(code))
        read = frozenset(name for part in nested for name in _globals_of(part))
        named = frozenset(name for part in nested for name in part.co_names)
        texts = [text for part in nested for text in part.co_consts if isinstance(text, str)]
        if not _BY_TEXT.isdisjoint(named) or "__main__" in texts:
            read |= named.union(*map(_words, texts))
        known = code, _dump_code(code), read, named
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
    """Return a hash that distinguishes pickles, and not for security, for which FIPS 140 does not allow SHA-1."""
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

_ATOMS = (int, float, complex, bool, str, bytes, type(None), type(...), _Code, type(str.join))
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
