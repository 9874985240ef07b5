"""Makes the objects of `__main__` that a package of definitions contains. Unpickling calls these functions.

Classes are made without running code of the program: neither its metaclasses nor `__init_subclass__` and `__set_name__`
are called again, since what they have done in the caller is part of what is sent.

A *token* identifies a function or class in all processes. It is in pickles, and `found` returns the object that this
process has for it, so that a class which arrives twice is one class, and an instance that comes home has its own class.

Workers import this module, so it imports only modules that start-up needs anyway.
"""

from __future__ import annotations

import _pickle
import io
import marshal
import os
import sys
from _thread import RLock
from _weakref import ref

from pool_party import _native
from pool_party._ground.records import NamedTuple
from pool_party._wire.namespace import MODULES, Function, namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_Cell: Any = type((lambda x: lambda: x)(0).__closure__[0])  # type: ignore[index]
_Builtin: Any = type(len)
_MISSING: Any = object()


# ---- tokens ----

TOKEN_MARK = b"\xffpool_party:"  # how a token begins
TOKEN_REST = 16  # the bytes after that: those of the process, and a number
_origin: tuple[int, bytes] = (0, b"")  # the process that `_n_made` counts for, and what its tokens have in common
_n_made = 0
_token_by_id: dict[int, tuple[Any, bytes]] = {}  # by the id of an object: a weak reference to it, and its token
_by_token: dict[bytes, Any] = {}  # weak references
_lock = RLock()


def _own_origin() -> bytes:
    global _origin, _n_made
    if _origin[0] != os.getpid():
        _origin, _n_made = (os.getpid(), os.urandom(8)), 0
    return _origin[1]


def known_token(value: object) -> bytes | None:
    """Return the token of a function or class, if it has one."""
    known = _token_by_id.get(id(value))
    return known[1] if known is not None and known[0]() is value else None


def token_of(value: Any) -> bytes:
    """Return the token of a function or class, which it keeps as long as it lives."""
    global _n_made
    with _lock:
        if (token := known_token(value)) is None:
            token = TOKEN_MARK + _own_origin() + _n_made.to_bytes(8, "little")
            _n_made += 1
            register(token, value)
        return token


def register(token: bytes, value: Any) -> None:
    key = id(value)

    def forget(_: object) -> None:
        if (known := _token_by_id.get(key)) is not None and known[1] == token:
            del _token_by_id[key]
        if (reference := _by_token.get(token)) is not None and reference() is None:
            del _by_token[token]

    with _lock:
        reference = ref(value, forget)
        _token_by_id[key] = reference, token
        _by_token[token] = reference


def found(token: bytes) -> Any:
    """Return the object that this process has for a token, or None."""
    reference = _by_token.get(token)
    return None if reference is None else reference()


def _is_own(token: bytes) -> bool:
    """Return whether the object was defined in this process, where no other one changes it."""
    return token[len(TOKEN_MARK) : -8] == _own_origin()


def tokens_in(pickle: bytes) -> list[bytes]:
    return [TOKEN_MARK + part[:TOKEN_REST] for part in pickle.split(TOKEN_MARK)[1:]]


def without_tokens(pickle: bytes) -> bytes:
    first, *others = pickle.split(TOKEN_MARK)
    return b"".join([first, *(part[TOKEN_REST:] for part in others)])


def adopt(own: bytes, theirs: bytes) -> None:
    """Give the objects in a pickle of ours the tokens of the caller's pickle, which is the same but for these."""
    for token, other in zip(tokens_in(own), tokens_in(theirs), strict=True):
        if (value := found(token)) is not None:
            register(other, value)


# ---- units ----


class Made:
    """What this process has received under a name: its mark, and the objects in its pickle, by place, or None."""

    __slots__ = ("mark", "memo")

    def __init__(self, mark: bytes, memo: dict[int, Any] | None) -> None:
        self.mark, self.memo = mark, memo


class Entry(NamedTuple):
    """Units of a package that are in one pickle, since they refer to each other.

    names: of the units. mark: the hash of their content, and of all that they refer to. content: that of the pickle
    alone. tokens: of the functions and classes among them, otherwise b"". owned: the names whose values the worker
    keeps, if it has them. refs: names of units that the pickle refers to. body: the pickle, or None if `reason` is why
    there is none. buffers: names of the shared memory that it needs.
    """

    names: tuple[str, ...]
    mark: bytes
    content: bytes
    tokens: tuple[bytes, ...]
    owned: tuple[str, ...]
    refs: tuple[str, ...]
    body: bytes | None
    reason: str | None
    buffers: list[bytes]


made: dict[str, Made] = {}  # what was received last, by name
_pending: dict[str, Entry] = {}  # by name: what is to be made, until it is
_package: dict[str, Entry] = {}  # by name: all that the package contains


class _Unpickler(_pickle.Unpickler):
    def persistent_load(self, reference: Any) -> Any:
        """Return a unit, or an object within one."""
        if isinstance(reference, str):
            return get(reference)
        name, place = reference
        _make(name)
        return _memo_of(name)[place]


def _memo_of(name: str) -> dict[int, Any]:
    """Return the objects of a unit by their places. A worker that keeps its own value unpickles another for that."""
    entry = _package.get(name)
    known = made.get(name)
    if known is None or known.memo is None or (entry is not None and known.mark != entry.mark):
        if entry is None or entry.body is None:
            raise LookupError(f"the definition of {name!r} of __main__ is not here")
        known = Made(entry.mark, _load(entry)[1])
        made[name] = known
    return known.memo or {}


def _load(entry: Entry) -> tuple[Any, dict[int, Any]]:
    unpickler: Any = _Unpickler(
        io.BytesIO(entry.body or b""), buffers=[_native.open_shared(name) for name in entry.buffers]
    )
    values = unpickler.load()
    return values, unpickler.memo.copy() if len(entry.body or b"") < KEPT_MAX else {}


KEPT_MAX = 1 << 20  # bytes; guess: the objects of a larger pickle are not kept, and cannot be referred to later


def install(stale: Iterable[Entry], entries: Iterable[Entry]) -> None:
    """Make entries of a package, and bind their names in `__main__`."""
    global _package
    _package = {name: entry for entry in entries for name in entry.names}
    _pending.update({name: entry for entry in stale for name in entry.names})
    try:
        for name in list(_pending):
            _make(name)
    finally:
        _pending.clear()
        _package = {}


def _make(name: str) -> None:
    entry = _pending.get(name)
    if entry is None:
        return
    for other in entry.names:
        _pending.pop(other, None)
    main = namespace()
    if entry.body is None:
        if any(other not in main for other in entry.names):
            raise TypeError(f"{name!r} of __main__ does not pickle, and is not here: {entry.reason}")
        return
    try:
        values, memo = _load(entry)
    except Exception as error:
        error.add_note(f"pool_party: the global {name!r} of __main__, which a function reads, does not unpickle")
        raise
    for other, value in zip(entry.names, values, strict=False):  # submodules of these follow
        if other not in main or other not in entry.owned:
            bind(other, value)
        made[other] = Made(entry.mark, memo)


def bind(name: str, value: object) -> None:
    namespace()[name] = value
    sys.modules["__main__"].__dict__[name] = value


def unbind(name: str) -> None:
    """Remove a global that the caller has deleted."""
    namespace().pop(name, None)
    sys.modules["__main__"].__dict__.pop(name, None)
    made.pop(name, None)


def get(qualname: str) -> Any:
    """Return the object that `__main__` has under a dotted name, and make it first if it is pending."""
    first, _, rest = qualname.partition(".")
    _make(first)
    scope = namespace()
    result = scope[first] if first in scope else getattr(sys.modules["__main__"], first)
    for name in rest.split(".") if rest else ():
        result = getattr(result, name)
    return result


# ---- classes ----


def make_class(token: bytes, metaclass: Any, name: str, bases: tuple[Any, ...], members: dict[str, Any]) -> Any:
    """Return the class of a token, or make it, without its state."""
    cls = found(token)
    if cls is None:
        cls = _new_class(metaclass, name, bases, {sys.intern(key): value for key, value in members.items()})
        register(token, cls)
    return cls


def is_of_library(cls: type) -> bool:
    """Return whether a class is neither of the program nor of the standard library."""
    return cls.__module__ not in MODULES and cls.__module__.partition(".")[0] not in sys.stdlib_module_names


def _new_class(metaclass: Any, name: str, bases: tuple[Any, ...], members: dict[str, Any]) -> Any:
    maker = next(base for base in metaclass.__mro__ if "__new__" in vars(base) and base.__module__ not in MODULES)
    if is_of_library(maker):
        cls = maker.__new__(metaclass, name, bases, members)
        maker.__init__(cls, name, bases, members)
        return cls
    new = next(vars(base)["__new__"] for base in metaclass.__mro__ if isinstance(vars(base).get("__new__"), _Builtin))
    with _lock, _Unhooked(bases):
        cls = new(metaclass, name, bases, members)
    if "abc" in sys.modules and isinstance(cls, sys.modules["abc"].ABCMeta):
        from _abc import _abc_init  # type: ignore[import-not-found]  # the type stubs have no such module

        _abc_init(cls)
    return cls


class _Unhooked:
    """While entered, a class with these bases is made without a call of `__init_subclass__`."""

    def __init__(self, bases: tuple[Any, ...]) -> None:
        owners = (cls for base in bases for cls in base.__mro__)
        self._owners = {
            owner: vars(owner)["__init_subclass__"]
            for owner in owners
            if type(vars(owner).get("__init_subclass__")) is classmethod
        }

    def __enter__(self) -> None:
        for owner in self._owners:
            type.__setattr__(owner, "__init_subclass__", _unhooked)

    def __exit__(self, *_: object) -> None:
        for owner, hook in self._owners.items():
            type.__setattr__(owner, "__init_subclass__", hook)


@classmethod  # type: ignore[misc]  # it takes the place of a method
def _unhooked(cls: type, **_: object) -> None:
    pass


_LEFT = ("__dict__", "__weakref__", "_abc_impl", "__slotnames__", "__annotations_cache__")


def set_class_state(cls: Any, state: tuple[bytes, dict[str, Any], list[Any]]) -> None:
    """Give a class exactly these attributes, and register the subclasses of an abstract one."""
    token, attributes, registered = state
    if _is_own(token):
        return
    is_new = "__firstlineno__" in attributes and "__firstlineno__" not in vars(cls)
    for name in [name for name in vars(cls) if name not in attributes and name not in _LEFT]:
        if not _is_slot(vars(cls)[name]):
            type.__delattr__(cls, name)
    for name, value in attributes.items():
        if vars(cls).get(name, _MISSING) is not value:
            _set(cls, name, value)
    if is_new:
        type.__setattr__(cls, "__firstlineno__", attributes["__firstlineno__"])  # setting __module__ deletes it
    for subclass in registered:
        from _abc import _abc_register

        _abc_register(cls, subclass)
    _run_hook(cls)


def _is_slot(value: object) -> bool:
    return type(value).__name__ in ("member_descriptor", "getset_descriptor")


def _set(cls: Any, name: str, value: object) -> None:
    try:
        type.__setattr__(cls, name, value)
    except TypeError:  # a metaclass in C has rules of its own
        setattr(cls, name, value)


def _run_hook(cls: Any) -> None:
    """Call the `__init_subclass__` of another library once, since what it has noted there is not sent."""
    owner = next((base for base in cls.__mro__[1:] if "__init_subclass__" in vars(base) and is_of_library(base)), None)
    if owner is not None and cls not in _hooked:
        import contextlib

        _hooked.append(cls)
        with contextlib.suppress(TypeError):  # it takes keywords, which nobody knows any more
            vars(owner)["__init_subclass__"].__get__(None, cls)()


_hooked: list[Any] = []


def class_dict(cls: Any) -> Any:
    """Return the dict of a class, in which annotations look up names first."""
    import gc

    return gc.get_referents(vars(cls))[0]


def make_member(cls: Any, name: str, base: Any, args: tuple[Any, ...]) -> Any:
    """Return the member of an enumeration, or make it, without its state."""
    member = (vars(cls).get("_member_map_") or {}).get(name)
    return base.__new__(cls, *args) if member is None else member


def set_member_state(member: Any, state: Any) -> None:
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    for name, value in {**(attributes or {}), **(slots or {})}.items():
        object.__setattr__(member, name, value)


# ---- functions ----


def make_cell() -> Any:
    return _Cell()


def set_cell(cell: Any, content: tuple[Any, ...]) -> None:
    if content:
        cell.cell_contents = content[0]


def make_function(token: bytes, code: bytes, name: str, cells: tuple[Any, ...] | None, scope: Any) -> Any:
    """Return the function of a token with this code, or make it, without its state. token: b"" if it has none."""
    function = found(token) if token else None
    code_object = marshal.loads(code)
    if function is not None:
        if not _is_own(token):
            function.__code__ = code_object
        return function
    if isinstance(scope, str):
        scope = namespace() if scope in MODULES else __import__(scope, fromlist=["__name__"]).__dict__
    function = Function(code_object, scope, name, None, cells)
    if token:
        register(token, function)
    return function


MEMBERS = ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "__type_params__")


def set_function_state(function: Any, state: tuple[Any, ...]) -> None:
    """Set all parts of a function besides its code."""
    token, members, annotate, annotations, attributes, contents, values = state
    if token and _is_own(token):
        return
    for name, value in zip(MEMBERS, members, strict=True):
        setattr(function, name, value)
    if annotate is not None:
        function.__annotate__ = annotate
    else:
        function.__annotations__ = annotations or {}
    function.__dict__.clear()
    function.__dict__.update(attributes)
    for cell, content in zip(function.__closure__ or (), contents, strict=True):
        if content:
            cell.cell_contents = content[0]
    if values:
        fill_scope(function.__globals__, values)


def make_cache(maxsize: int | None, typed: bool, function: Any) -> Any:
    """Make an empty cache around a function."""
    import functools

    return functools.lru_cache(maxsize, typed)(function)


def make_partialmethod(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    import functools

    return functools.partialmethod(function, *args, **keywords)


def make_singledispatch(default: Any, implementations: list[tuple[type, Any]], attributes: dict[str, Any]) -> Any:
    """Make a generic function."""
    import functools

    generic = functools.singledispatch(default)
    for cls, implementation in implementations:
        generic.register(cls, implementation)
    for name, value in attributes.items():
        setattr(generic, name, value)
    return generic


# ---- namespaces of functions that are not `__main__`'s ----

_scopes: dict[bytes, dict[str, Any]] = {}
_scope_tokens: dict[int, bytes] = {}
_received: dict[tuple[int, str], bytes | None] = {}  # hashes of the values received, by the namespace's id and name
_N_SCOPES_MAX = 1000  # namespaces that are kept; guess


def scope_token(scope: dict[str, Any]) -> bytes:
    """Return the token of a namespace in which code was run by `exec`, and keep the namespace."""
    with _lock:
        if (token := _scope_tokens.get(id(scope))) is None:
            global _n_made
            token = TOKEN_MARK + _own_origin() + _n_made.to_bytes(8, "little")
            _n_made += 1
            _keep_scope(token, scope)
        return token


def note_scope(function: Any) -> None:
    """Give the namespace of a function a token that forked processes inherit, unless it is a module's."""
    scope = getattr(function, "__globals__", None)
    if type(scope) is dict and scope is not namespace() and scope.get("__name__") in MODULES:
        scope_token(scope)


def _keep_scope(token: bytes, scope: dict[str, Any]) -> None:
    _scopes[token], _scope_tokens[id(scope)] = scope, token
    while len(_scopes) > _N_SCOPES_MAX:
        del _scope_tokens[id(_scopes.pop(next(iter(_scopes))))]


def make_scope(token: bytes, names: dict[str, Any]) -> dict[str, Any]:
    """Return the namespace of a token, which keeps what tasks and initializers set in it."""
    with _lock:
        if token not in _scopes:
            _keep_scope(token, {"__builtins__": __builtins__, **names})
        return _scopes[token]


def fill_scope(scope: dict[str, Any], values: dict[str, tuple[Any, ...]]) -> None:
    """Set the globals that a function reads if they are new, or have changed in the caller since the last time."""
    token = _scope_tokens.get(id(scope))
    if token is not None and _is_own(token):
        return
    for name, (value,) in values.items():
        mark = _mark_of(value)
        key = id(scope), name
        if name not in scope or (key in _received and (mark is None or _received[key] != mark)):
            scope[name] = value
        _received[key] = mark


def _mark_of(value: object) -> bytes | None:
    try:
        return _pickle.dumps(value, 5)
    except Exception:
        return None


# ---- others ----


def attribute(module: str, name: str) -> Any:
    """Return an attribute of a module."""
    return getattr(__import__(module, fromlist=[name]), name)


def module(name: str) -> Any:
    """Return a module, and import it first if necessary."""
    __import__(name)
    return sys.modules[name]


def make_type_parameter(token: bytes, kind: str, name: str, owner: str, arguments: Any) -> Any:
    """Return the type variable or the like of a token, or make it."""
    value = found(token)
    if value is None:
        import typing

        args, keywords = arguments
        value = getattr(typing, kind)(name, *args, **keywords)
        value.__module__ = owner
        register(token, value)
    return value


def make_alias(name: str, owner: str, value: Any, parameters: tuple[Any, ...]) -> Any:
    """Make what a `type` statement makes, which has the module of the code that calls for it."""
    import typing

    scope = {"__name__": owner, "make": typing.TypeAliasType, "args": (name, value), "parameters": parameters}
    exec("made = make(*args, type_params=parameters)", scope)
    return scope["made"]
