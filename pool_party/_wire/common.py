"""Encodes an object that many tasks of one call name once, whatever its type.

`bytes`, strings and buffers are shared by the native codec. An object of any other type is pickled, so several such
objects that a task names become one *base*: a pickle of its own, which lies in shared memory once. The pickle of a
task names what it uses of the base by its place in the base's memo. That may also be a part of such an object, so
identity in a task is kept. Every task gets its own copy.

A call begins with this after a task with a large pickle. The channel then calls its `Commons` with the argument of each
task. Objects that an earlier task has named as well are in the base. Only the outermost objects of an argument are
compared, because only their identity counts, not where they are.

A base is what its objects were when a task named them for the second time. An iterator that `imap` reads may change
objects between two tasks, so its tasks share only objects that cannot change.
"""

import _pickle
import copyreg
import io
import sys
from collections import deque
from itertools import chain, islice

from pool_party import _native
from pool_party._wire.beside import Replaced, for_one
from pool_party._wire.codec import reducers
from pool_party._wire.definitions import complete

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

_LOOKED_AT_MAX = 256  # objects of an argument that are compared with those of earlier tasks; guess
_SEEN_MAX = 1024
_BASES_MAX = 32
_HELD_MAX = 64 << 20  # bytes of all bases but the last
_VAIN_MAX = 8  # tasks in which nothing is found, or no base is used again, before a call no longer looks; guess
_MEMBERS_MAX = 64  # parts of a base that one task uses; finding more takes as long as pickling; guess
_DEPTH_MAX = 8
_FRAME = 0x95  # the opcode before a frame of eight bytes
_GETS = b"hj"  # the opcodes of a pickle that fetch an object from the memo, with its place in 1 and 4 bytes
_MUTABLE = frozenset({list, dict, set, bytearray})
_HEAP_TYPE = 1 << 9  # tp_flags of classes that Python code has made

_ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None), type(...)})
_BY_NAME = frozenset({type, type(lambda: None), type(len), type(sys)})  # pickled as names
_COPIED = frozenset({*_ATOMS, *_BY_NAME - {type(sys)}, tuple, frozenset, list, dict, set, bytearray})
# Types whose instances no code changes, so that all tasks in a worker may have the same ones. Paths are not among them:
# a `Path` keeps what its `info` has found out about the file.
_CONSTANTS = {
    "builtins": ("range",),
    "datetime": ("date", "datetime", "time", "timedelta", "timezone"),
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
    "uuid": ("UUID",),
    "zoneinfo": ("ZoneInfo",),
    "enum": ("EnumType",),  # whose instances are classes; unpickling a member of one returns the member itself
}


def _can_find_members() -> bool:
    """Return whether a pickler's `persistent_id` can be set, which CPython 3.13.0 cannot do."""
    pickler: Any = _pickle.Pickler(io.BytesIO())
    try:
        pickler.persistent_id = abs
    except AttributeError:
        return False
    return True


# ---- which objects ----


def _is_plain(kind: "Any") -> bool:
    """Return whether pickling an instance of a class pickles its `__dict__`."""
    return (
        bool(kind.__flags__ & _HEAP_TYPE)
        and not issubclass(kind, type)
        and kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and kind.__getstate__ is object.__getstate__
        and kind not in reducers(False, [copyreg.dispatch_table])
    )


def _parts(value: "Any") -> "Iterable[Any]":
    """Return objects that are certainly pickled with an object."""
    kind = type(value)
    if kind is tuple or kind is list:
        return value[:_LOOKED_AT_MAX]  # type: ignore[no-any-return]
    if kind is dict:
        return list(value.values())
    return list(_attributes(value).values()) if _is_plain(kind) else ()


def _attributes(value: "Any") -> "dict[str, Any]":
    """Return the `__dict__` of an object without calling its own `__getattr__` or `__getattribute__`."""
    try:
        found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found


def _is_immutable(values: "Iterable[Any]") -> bool:
    """Return whether objects are numbers, strings and the like, or tuples and frozensets of such."""
    for _ in range(_DEPTH_MAX):
        values = list(values)
        if set(map(type, values)) <= _ATOMS:
            return True
        inner = [value for value in values if type(value) not in _ATOMS]
        if not {type(value) for value in inner} <= {tuple, frozenset}:
            return False
        values = chain.from_iterable(inner)
    return False


def _is_copied(kind: "Any") -> bool:
    """Return whether workers copy what they have unpickled of an object of this type.

    They do so if no reducer has returned it, or one that always returns the same constant.
    """
    return (
        kind in _COPIED
        or ((issubclass(kind, type) or _is_constant(kind)) and kind not in reducers(False, [copyreg.dispatch_table]))
        or (_is_plain(kind) and kind.__new__ is object.__new__ and not hasattr(kind, "__setstate__"))
    )


def _is_constant(kind: "Any") -> bool:
    constants = _constants()
    if kind in constants:
        return True
    enum: Any = sys.modules.get("enum")
    return type(kind) in constants and kind.__reduce_ex__ in (enum.Enum.__reduce_ex__, enum.Flag.__reduce_ex__)


def _constants() -> "tuple[Any, ...]":
    """Return the types of `_CONSTANTS`, of modules that have been imported."""
    found = [getattr(sys.modules.get(module), name, None) for module, names in _CONSTANTS.items() for name in names]
    return tuple(kind for kind in found if kind is not None)


# ---- sending ----


class Commons:
    """Finds common objects in the tasks of one call. Used by the thread that encodes them."""

    def __init__(self, takes_mutable: bool, is_chunked: bool) -> None:
        """is_chunked: the arguments are lists that were made for the tasks, so that no two are the same."""
        self._takes_mutable = takes_mutable
        self._is_chunked = is_chunked
        self._seen: dict[int, Any] = {}  # objects of earlier tasks by id, retained so that no id is used again
        self._bases: dict[frozenset[int], _Base] = {}
        self._n_vain = 0
        self._is_over = not _can_find_members()

    def __call__(self, value: "Any") -> "Any":
        """Return what to encode for the argument of the next task: the argument, or what stands for it."""
        if self._is_over:
            return value
        common = self._note(value)
        if common:
            return Replaced(value, lambda: self._reduce(value, common))
        self._count_vain()
        return value

    def _note(self, value: "Any") -> "list[Any]":
        """Return the outermost objects of an argument that earlier tasks have named. Remember all others."""
        common: dict[int, Any] = {}
        new: dict[int, Any] = {}
        todo: deque[Any] = deque([value if self._is_chunked else (value,)])
        while todo and len(new) < _LOOKED_AT_MAX:
            for part in islice(_parts(todo.popleft()), _LOOKED_AT_MAX):
                if type(part) in _ATOMS or type(part) in _BY_NAME or id(part) in new:
                    continue
                if id(part) not in self._seen:
                    new[id(part)] = part
                    todo.append(part)
                elif self._takes_mutable or _is_immutable((part,)):
                    common[id(part)] = part
        self._seen |= (
            new if self._takes_mutable else {key: part for key, part in new.items() if type(part) not in _MUTABLE}
        )
        for key in list(islice(self._seen, max(0, len(self._seen) - _SEEN_MAX))):
            del self._seen[key]
        return list(common.values())

    def _count_vain(self) -> None:
        self._n_vain += 1
        if self._n_vain >= _VAIN_MAX:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._seen.clear()
        self._bases.clear()

    def _reduce(self, value: "Any", common: "list[Any]") -> "tuple[Any, ...]":
        from pool_party._wire.interrupts import is_from_handler

        if not self._is_over:
            try:
                return self._reduce_with_base(value, common)
            except Exception as error:
                if is_from_handler(error):
                    raise
                self._end()
        return itself, (value,)

    def _reduce_with_base(self, value: "Any", common: "list[Any]") -> "tuple[Any, ...]":
        base = self._base_of(common)
        pickle, members, buffers = base.dumps_rest(value)
        if base.is_for_one or len(base.pickle) < max(_native.COMMON_MIN, len(pickle)) or len(members) > _MEMBERS_MAX:
            self._end()
        return load, (base.pickle, members, pickle, base.buffers, buffers, base.is_copied)

    def _base_of(self, common: "list[Any]") -> "_Base":
        key = frozenset(map(id, common))
        base = self._bases.pop(key, None)
        if base is None:
            self._count_vain()
            base = _Base(common)
            n_held = sum(len(other.pickle) for other in self._bases.values()) + len(base.pickle)
            while self._bases and (len(self._bases) >= _BASES_MAX or n_held > _HELD_MAX):
                n_held -= len(self._bases.pop(next(iter(self._bases))).pickle)
        else:
            self._n_vain = 0
        if not self._is_over:
            self._bases[key] = base  # the last is the one used most recently
        return base


class _Base:
    """Objects that several tasks name, in one pickle.

    pickle: what `load` completes to a whole pickle. buffers: the buffers that it needs.
    is_for_one: only one receiver can load the pickle. A reducer was used that is registered with ForkingPickler, or any
    other that sends a descriptor. is_copied: workers unpickle it once, and copy that for each task.
    """

    def __init__(self, objects: "list[Any]") -> None:
        self._file = io.BytesIO()
        self._is_local: bool = _native.receivers().is_local
        self.buffers: list[Any] = []
        shared: list[Any] = []
        reduced: list[Any] = []
        self._pickler = _pickler(self._file, self.buffers, _noting(for_one(), reduced, _table(self._is_local)))
        self._pickler.dump(tuple(objects))
        pickle = _completed(self._file.getvalue(), shared)
        self.buffers += shared  # last, because nothing in the pickle names them
        self.pickle = pickle[:-1] + b"0"  # instead of STOP: drop the value, and go on
        self._references = [self.pickle] * 8  # so that `is_probably_common` (common.c) knows it at the first task
        self.is_for_one = bool(reduced) or b"resource_sharer" in pickle
        self._members = _native.members(self._pickler)
        self.is_copied = all(map(_is_copied, _native.kinds(self._pickler)))

    def dumps_rest(self, value: "Any") -> "tuple[bytes, list[int], list[Any]]":
        """Pickle an argument without what the base contains.

        Returns: the pickle; the places, in the base's memo, of what it names there; the buffers that it needs.
        """
        file = io.BytesIO()
        buffers: list[Any] = []
        shared: list[Any] = []
        places: dict[int, int] = {}

        def index_of(member: "Any") -> "int | None":
            place = None if member is _pickle.Pickler else self._place_of(member)  # our pickler refers to its type
            return None if place is None else places.setdefault(place, len(places))

        pickler = _pickler(file, buffers, _table(self._is_local))
        pickler.persistent_id = _native.find_member(self._members, index_of)
        pickler.dump(value)
        pickle = _completed(file.getvalue(), shared)
        return pickle, list(places), buffers + shared

    def _place_of(self, member: "Any") -> "int | None":
        """Return the place of an object in the memo, which its pickler names if it pickles the object again."""
        self._file.seek(0)
        self._file.truncate()
        self._pickler.dump(member)
        pickle = self._file.getvalue()
        opcode, *place = pickle[11:-1] if pickle[2] == _FRAME else pickle[2:-1]
        return int.from_bytes(place, "little") if opcode in _GETS else None


def _table(is_local: bool) -> "dict[type, Any]":
    return dict(reducers(is_local, [copyreg.dispatch_table]))


def _noting(kinds: "Iterable[type]", reduced: "list[Any]", table: "dict[type, Any]") -> "dict[type, Any]":
    """Return a table of reducers in which those for the given types add what they reduce to a list."""

    def noting(reducer: "Callable[[Any], Any]") -> "Callable[[Any], Any]":
        def reduce(value: "Any") -> "Any":
            reduced.append(type(value))
            return reducer(value)

        return reduce

    return table | {kind: noting(table[kind]) for kind in kinds}


def _pickler(file: io.BytesIO, buffers: "list[Any]", table: "dict[type, Any]") -> "Any":
    pickler = _pickle.Pickler(file, 5, buffer_callback=buffers.append)
    pickler.dispatch_table = table
    return pickler


def _completed(pickle: bytes, shared: "list[Any]") -> bytes:
    return complete(pickle, shared.append) if b"_main__" in pickle else pickle


# ---- receiving ----


def itself(value: "Any") -> "Any":
    """Return the argument. Unpickling calls this."""
    return value


def load(
    base: bytes, places: "list[int]", pickle: bytes, base_buffers: "list[Any]", buffers: "list[Any]", is_copied: bool
) -> "Any":
    """Unpickle the argument of a task that names members of a base. Unpickling also calls this function."""
    members = _copies(base, places) or _members_of(base, places, base_buffers, is_copied)
    unpickler: Any = _pickle.Unpickler(io.BytesIO(pickle), buffers=buffers)
    unpickler.persistent_load = members.__getitem__
    return unpickler.load()


def _copies(base: bytes, places: "list[int]") -> "list[Any] | None":
    kept = _native.decoded(base)
    if not kept or not kept.keys() >= set(places):
        return None
    originals, key = [kept[place] for place in places], tuple(places)
    given = kept.get(key, ())
    if given is not None and given != () and _native.is_reusable(given, originals):
        return given  # type: ignore[no-any-return]
    copies: list[Any] | None = _native.duplicate(originals, _constants())
    kept[key] = copies if given == () else None  # after a task that has kept or changed its copy, others probably do
    return copies


def _members_of(base: bytes, places: "list[int]", buffers: "list[Any]", is_copied: bool) -> "list[Any]":
    """Unpickle the base, and return its members at the given places. Keep them if they can be copied."""
    gets = (b"j" + place.to_bytes(4, "little") for place in places)
    members: list[Any] = _pickle.loads(b"".join([base, b"](", *gets, b"e."]), buffers=buffers)
    if not is_copied or _native.decoded(base) == {}:  # the latter: that they cannot be copied is known
        return members
    copies: list[Any] | None = _native.duplicate(members, _constants())
    _native.keep_decoded(base, {} if copies is None else dict(zip(places, members, strict=True)))
    return members if copies is None else copies
