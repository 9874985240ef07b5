"""Decides which definitions and values of `__main__` are sent to workers.

Plain pickle sends functions and classes by name, and so do we. But the `__main__` of a worker may differ from the
caller's. The rule:

    A worker that was forked, or that has imported the program's file, uses the functions and classes that it has there.
    With them it uses its own globals, such as locks, counters, caches, and values that its initializer has set.
    Definitions that it lacks, or that the caller has replaced since, are sent with the call. Functions and classes are
    always sent as they are at the call. Other globals that they read are sent if the worker has none of that name.
    In a session (a notebook, a prompt, `-c`, standard input) the caller's newest values are sent, too. At each call,
    values that have changed in the caller since a worker last got them replace the worker's. Values that have not
    changed in the caller stay as the worker has left them.

A pickle that names something of `__main__` is preceded by a *prelude*, which is itself the beginning of a pickle. It
makes the receiver check a *package* of definitions and values, each with a pickle and a hash of its own, and unpickle
those that it does not have. If the receivers have all of them, there is no prelude. So no value is pickled twice. A
package is put into shared memory once, and each pickle contains only its place there. A large one has memory of its
own, which travels beside the pickle, and the others are on the channel's shelf. A reply, from a worker to its caller,
changes nothing that the caller has.

Several workers unpickle a package, each when it needs it. The package therefore contains shared memory by name. The
memory also travels beside the pickle, which retains it until the receiver has it. Interpreters duplicate the caller's
descriptors, and processes get none.

Workers import this module, so it imports only modules that start-up needs anyway.
"""

import _pickle
import sys
from _thread import RLock
from _weakref import ref

from pool_party import _native
from pool_party.wire.namespace import (
    Function,
    bases_of,
    digest,
    install,
    is_definition,
    is_of_main,
    is_replaced,
    is_session,
    leaves,
    marks,
    namespace,
    reads,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from pool_party.wire.main_module import Apart

    # A package, or b"", in shared memory if it is large; its hash; the shared memory that must live until it arrives;
    # the prelude's bytes if these suffice, or None.
    type _Prelude = tuple[bytes | memoryview, bytes, list[memoryview], bytes | None]
    # The namespaces in which a prelude was made, its definitions, and the prelude; see `_native.recall`.
    type _Kept = tuple[dict[str, Any], dict[str, Any], tuple[tuple[str, Callable[[], object] | None], ...], _Prelude]

_Module = type(sys)
_MISSING = object()
_KEPT_MAX = 256  # preludes that a pool keeps; guess: programs have fewer combinations of functions and classes
_LARGE = 1 << 20  # bytes; a larger prelude evicts all others, because each prelude contains the large values it needs


# ---- sending ----


def _reference(value: object) -> "Callable[[], object]":
    try:
        return ref(value)
    except TypeError:
        return lambda: value


def _is_named(name: bytes, pickle: bytes) -> bool:
    """Return whether a pickle contains the name as a string of its own, or as the beginning of a dotted name."""
    if name not in pickle:
        return False
    if len(name) > 255:
        return True
    return b"\x8c" + bytes((len(name),)) + name in pickle or name + b"." in pickle or b"\n" + name + b"\n" in pickle


def _strings_in(pickle: bytes, main: "dict[str, Any]") -> "list[str]":
    return [
        name
        for name in list(main)
        if isinstance(name, str) and _is_named(name.encode("utf-8", "surrogatepass"), pickle)
    ]


def _has_import() -> "str | None":
    """Return the text of the file that spawned processes import as `__main__`, or None if it cannot be read."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if file is None or (spec is not None and (spec.name == "__main__" or spec.name.endswith(".__main__"))):
        return None
    try:
        with open(file, encoding="utf-8", errors="replace") as source:
            return source.read()
    except OSError:
        return None


# No regular expressions here: to compile one for a name takes as long as a call of `multiprocessing.Pool`.

_NOT_SETTING = ("def", "class", "async", "if", "elif", "else")  # how lines begin that mention a global, but set none


def _mentions(text: str, name: str) -> "Iterator[tuple[str, str]]":
    """Yield what is before and after the name in its line, for each place in a program's text."""
    at = text.find(name)
    while at >= 0:
        end, after = text.find("\n", at), at + len(name)
        yield text[text.rfind("\n", 0, at) + 1 : at], text[after : end if end >= 0 else None]
        at = text.find(name, after)


def _continues_name(character: str) -> bool:
    return character.isalnum() or character == "_"


def _may_set(before: str, after: str) -> bool:
    """Whether a mention may be in a statement that binds the name at the outermost level."""
    word = next((word for word in _NOT_SETTING if before.startswith(word)), None)
    return not (
        before[:1].isspace()
        or before.startswith("@")
        or (word is not None and not _continues_name(before[len(word) :][:1]))
        or "#" in before
        or before.endswith(".")
        or _continues_name(before[-1:])
        or _continues_name(after[:1])
    )


def _indent_of_definition(before: str, after: str) -> str | None:
    """Return the indent of the line if it defines the name, by `def`, `class` or an assignment, otherwise None."""
    words = before.split()
    if words in (["def"], ["class"], ["async", "def"]):
        is_definition = before[-1] in " \t" and not _continues_name(after[:1])
    else:
        value = after.lstrip(" \t")
        if value.startswith(":"):  # an annotation, which contains no "="
            value = value[value.find("=") :] if "=" in value else ""
        is_definition = not words and value.startswith("=") and not value.startswith("==")
    return before[: len(before) - len(before.lstrip(" \t"))] if is_definition else None


def _in_shared_memory(package: bytes) -> "memoryview | None":
    from pool_party.wire.shared import share

    try:
        memory: memoryview = share(package, readonly=True)
    except OSError:  # no descriptor is left, for example; then the package travels in each pickle
        return None
    return memory


class Receivers:
    """Tracks the definitions and values of `__main__` that all workers of one pool have.

    method: how processes are started; None for interpreters, which begin with nothing.
    """

    is_reply = False
    has_our_memory = True  # they can open shared memory by its name

    def __init__(self, method: "str | None") -> None:
        self.is_session = is_session()
        self._inherited = self._inherit() if method == "fork" else {}
        self._text = _has_import() if method in ("forkserver", "spawn") and not self.is_session else None
        self.has_nothing = not self._inherited and self._text is None
        self.is_local = method is None
        self._sent: set[str] = set()
        self.kept: dict[frozenset[str], _Kept] = {}  # by the names in a pickle; `codec.c` looks here first
        self._values: dict[str, Apart] = {}
        self._places: dict[bytes, int] = {}  # places of packages on the shelf, by hash
        self._unchanged: dict[Any, tuple[list[str], list[Any], _Prelude]] = {}
        self._entries: dict[str, tuple[Callable[[], object], Apart]] = {}

    def forget(self) -> None:
        """Release what refers to the program's namespace, at the end of the pool. The ended pool may live longer.

        Another thread may be pickling a call just then, so the dictionaries that it looks into stay as they are.
        """
        self.kept, self._values, self._unchanged, self._entries = {}, {}, {}, {}

    @staticmethod
    def _inherit() -> "dict[str, Callable[[], object] | None]":
        return {name: ref(value) if is_of_main(value) else None for name, value in list(namespace().items())}

    def has(self, name: str, value: "Any") -> bool:
        """Return whether every worker certainly has this same function, class or named object under this name."""
        if self.is_session or name in self._sent:
            return False
        if name in self._inherited:
            inherited = self._inherited[name]
            return not is_of_main(value) if inherited is None else inherited() is value
        return self._text is not None and self._is_in_file(name, value)

    def is_definition(self, name: str, value: "Any") -> bool:
        """Return whether a value is a definition or pickles as a name. Skips `__reduce__` if workers keep a global."""
        return is_definition(value, name) if is_of_main(value) or not self.has_value(name) else False

    def has_value(self, name: str) -> bool:
        """Return whether every worker has a global of its own with that name, which it keeps."""
        if self.is_session or name in self._sent:
            return False
        return name in self._inherited or (self._text is not None and self._sets(name))

    def _sets(self, name: str) -> bool:
        """Return whether importing the file binds the name, judged by an unindented line that mentions it."""
        return any(_may_set(before, after) for before, after in _mentions(self._text or "", name))

    def _is_in_file(self, name: str, value: "Any") -> bool:
        """Return whether the file defines the name once, at its outermost level, and `value` is that definition."""
        indents = (_indent_of_definition(before, after) for before, after in _mentions(self._text or "", name))
        if [indent for indent in indents if indent is not None] != [""]:
            return False
        while hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        file = getattr(sys.modules["__main__"], "__file__", None)
        return type(value) is not Function or (value.__qualname__ == name and value.__code__.co_filename == file)

    # ---- packages ----

    def prelude(self, pickle: bytes, read: "Iterable[str]" = (), named: "Iterable[str]" = ()) -> "_Prelude":
        """Return the prelude for a pickle, which is empty if the receivers have everything that it names.

        read: globals that functions in it read. named: all names in the code of these functions.
        Raises: any exception from pickling a definition or a value that it reads.
        """
        key = frozenset((*self._named_in(pickle), *read))
        of_call = _native.call_preludes() if self.is_session else None
        if of_call is not None and key in of_call:
            return of_call[key]  # type: ignore[no-any-return]
        if (found := self._recall(key)) is None:
            found = self._make(key, named)
        if of_call is not None:
            of_call[key] = found  # a call uses definitions as they were when it first named them
        return found

    def _make(self, key: "frozenset[str]", named: "Iterable[str]") -> "_Prelude":
        package = _Package(self, set(key), named)
        data = package.pickle()
        mark = digest(data) if data else b""
        memory = _in_shared_memory(data) if len(data) >= _native.COMMON_MIN else None
        prelude: _Prelude
        if memory is not None:
            prelude = memory, mark, [*package.shared, memory], None
        else:
            prelude = data, mark, package.shared, None if package.shared else self._front(data, mark)
        if self.is_session:
            self._keep_for_session(key, package, prelude)
        else:
            if len(self.kept) >= _KEPT_MAX or len(data) > _LARGE:
                self.kept.clear()
            self.kept[key] = sys.modules["__main__"].__dict__, namespace(), tuple(package.seen), prelude
        self._sent |= package.definitions.keys()
        return prelude

    def _front(self, package: bytes, mark: bytes) -> bytes:
        """Return the bytes before a pickle, which are brief if the package is on the shelf of the channel in use."""
        if mark not in self._places and _native.receivers() is self:
            at = _native.shelve(package) if package else None
            if at is not None:
                self._places[mark] = at
        return _brief_front(package, mark, self._places[mark]) if mark in self._places else _front(package, mark)

    def _keep_for_session(self, key: object, package: "_Package", prelude: "_Prelude") -> None:
        found = leaves(package.visited)
        if found is not None:
            if len(self._unchanged) >= _KEPT_MAX or len(prelude[0]) > _LARGE:
                self._unchanged.clear()
            self._unchanged[key] = list(package.visited), found, prelude

    def _recall_in_session(self, key: object) -> "_Prelude | None":
        kept = self._unchanged.pop(key, None)
        if kept is None:
            return None
        found = leaves(kept[0])
        if found is None or not _native.are_same(kept[1], found):
            return None
        self._unchanged[key] = kept
        return kept[2]

    def _recall(self, key: object) -> "_Prelude | None":
        if self.is_session:
            return self._recall_in_session(key)
        return _native.recall(self.kept, key)

    def _named_in(self, pickle: bytes) -> "Iterator[str]":
        """Yield the definitions that a pickle refers to or, if unknown, all definitions whose names occur in it."""
        main = namespace()
        named = _native.names_of_main(pickle)
        # A name inside a function is that of a copy, and does not refer to the function.
        finds = () if named is None else (name for name in named if "<locals>" not in name)
        names = _strings_in(pickle, main) if named is None else {name.partition(".")[0] for name in finds}
        for name in names:
            value = main.get(name, _MISSING)
            if value is not _MISSING and type(value) is not _Module and self.is_definition(name, value):
                yield name

    def define(self, name: str, value: "Any") -> "Apart":
        """Return a definition in a pickle of its own.

        Outside a session it is pickled once, when it is first sent; later a worker's copy may differ from the caller's.
        """
        known = self._entries.get(name)
        if known is not None and known[0]() is value:
            return known[1]
        from pool_party.wire.main_module import pickle_definition

        entry = pickle_definition(name, value, self.is_local, self.has_our_memory)
        if not self.is_session:
            self._entries[name] = _reference(value), entry
        return entry

    def evaluate(self, name: str, value: "Any", named: "set[str]") -> "tuple[Apart, bool]":
        """Return another global in a pickle of its own, and whether it replaces the value of a worker.

        Outside a session all workers get the value that was sent first, unless the name was a definition's.
        """
        is_newest = self.is_session or is_of_main(value) or name in self._sent
        if not is_newest and (known := self._values.get(name)) is not None:  # `forget` may come between two looks
            return known, False
        from pool_party.wire.main_module import pickle_global

        part = pickle_global(name, value, named, self.is_local, self.has_our_memory)
        if not is_newest:
            self._values[name] = part
        return part, is_newest


class _Caller(Receivers):
    """The receiver of replies, which has all names of the worker except those that tasks have bound."""

    is_reply = True

    def __init__(self) -> None:
        super().__init__(None)
        self.is_session = self.is_local = False

    def has(self, name: str, value: "Any") -> bool:
        return self.has_value(name)

    def has_value(self, name: str) -> bool:
        return name in _of_caller


class _Package:
    """The definitions and values that a pickle needs and that workers may lack."""

    def __init__(self, receivers: Receivers, roots: "set[str]", named: "Iterable[str]") -> None:
        self._receivers = receivers
        self._named = set(named)
        self._todo = list(roots)
        self.definitions: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.shared: list[memoryview] = []
        self.visited: set[str] = set()
        self.seen: list[tuple[str, Callable[[], object] | None]] = []
        self._collect()

    def _collect(self) -> None:
        main = namespace()
        visited = self.visited
        values: dict[str, Any] = {}
        while self._todo or values:
            while self._todo:
                name = self._todo.pop()
                if name in visited:
                    continue
                visited.add(name)
                value = main.get(name, _MISSING)
                if value is _MISSING or self._receivers.is_definition(name, value):
                    self.seen.append((name, None if value is _MISSING else _reference(value)))
                if value is not _MISSING:
                    self._take(name, value, values)
            while values and not self._todo:  # last, because modules are sent with the submodules that code names
                self._take_value(*values.popitem())

    def _take(self, name: str, value: "Any", values: "dict[str, Any]") -> None:
        if not self._receivers.is_definition(name, value):
            if not self._receivers.has_value(name):
                values[name] = value
            return
        if self._receivers.has(name, value):
            self._add_read(*reads(value))
            return
        part = self._receivers.define(name, value)
        self._add(part)
        self.definitions[name] = part.mark, part.token, part.body, part.error and repr(part.error), bases_of(value)

    def _take_value(self, name: str, value: "Any") -> None:
        part, is_newest = self._receivers.evaluate(name, value, self._named)
        self._add(part)
        self.values[name] = part.mark, part.body, part.error and repr(part.error), is_newest

    def _add(self, part: "Apart") -> None:
        if part.error is not None and self._receivers.has_nothing:
            raise part.error
        if part.body is not None:
            self._todo += self._receivers._named_in(part.body)
        self.shared += part.shared
        self._add_read(part.read, part.named)

    def _add_read(self, read: "Iterable[str]", named: "Iterable[str]") -> None:
        self._todo += read
        self._named.update(named)

    def pickle(self) -> bytes:
        if not self.definitions and not self.values:
            return b""
        return _pickle.dumps((self._receivers.is_reply, self.definitions, self.values), 5)


# ---- receiving ----

_of_caller: "set[str]" = set()  # names that the caller has as well
_caller: "_Caller | None" = None  # in a worker, once it has sent a reply that names __main__
_settled: "set[bytes]" = set()  # hashes of packages whose contents we have completely
_lock = RLock()


def enter_worker() -> None:
    """Record, at a worker's start, that the caller has everything that `__main__` contains now."""
    _of_caller.update(namespace())


def note_own(function: "Any") -> None:
    """Record that the globals that an initializer reads equal the caller's, in a forked worker of a session.

    Called before the initializer runs.
    """
    if is_session():
        receivers = Receivers(None)
        receivers.is_local = receivers.has_nothing = False  # values that do not pickle are never sent
        package = _Package(receivers, reads(function)[0], ())
        marks.update({name: entry[0] for name, entry in (package.definitions | package.values).items()})


def receive(key: bytes, package: "bytes | memoryview") -> None:
    """Take a package. Unpickling calls this before it reads the value that needs the package."""
    if key not in _settled:
        with _lock:
            is_reply, definitions, values = _pickle.loads(package)
            _take_reply(definitions, values) if is_reply else _take(definitions, values)
            _settled.add(key)


def fetch(key: bytes, at: int, size: int) -> None:
    """Take a package from the shelf of this worker's channel. Unpickling calls this like `receive`."""
    if key not in _settled:
        receive(key, _native.from_shelf(at, size))


def open_package(key: bytes, name: bytes) -> None:
    """Take a package from shared memory of its own. Unpickling calls this like `receive`."""
    if key not in _settled:
        receive(key, _native.open_shared(name))


def _take(definitions: "dict[str, Any]", values: "dict[str, Any]") -> None:
    stale = {name: entry for name, entry in definitions.items() if _mark_of(name) != entry[0]}
    replaced = _add_dependents(stale, definitions)
    fresh = {name: entry for name, entry in values.items() if _wants(name, replaced, *entry)}
    if stale or fresh:
        _settled.clear()  # earlier packages may contain older definitions
    install(stale, fresh)
    _of_caller.update(definitions, values)


def _add_dependents(stale: "dict[str, Any]", definitions: "dict[str, Any]") -> "list[bytes]":
    """Return the names of all classes to be replaced. Definitions of classes that refer to one become stale, too."""
    replaced = [name.encode() for name, (_, token, *_) in stale.items() if is_replaced(name, token)]
    for cls in replaced:
        for name, entry in definitions.items():
            if name not in stale and entry[1] is not None and cls in (entry[2] or b""):
                stale[name] = entry
                replaced.append(name.encode())
    return replaced


def _mark_of(name: str) -> "bytes | None":
    """Return the hash of the definition that this process has under a name, whether received or its own."""
    main = namespace()
    if name not in marks and name in main:
        from pool_party.wire.main_module import pickle_definition

        marks[name] = pickle_definition(name, main[name]).mark
    return marks.get(name)


def _wants(
    name: str,
    replaced: "list[bytes]",
    mark: "bytes | None",
    body: "bytes | None",
    error: "str | None",
    is_newest: bool,
) -> bool:
    """Return whether to unpickle a value: it is missing, it has changed, or it refers to a replaced class."""
    main = namespace()
    if name not in main:
        return True
    if not is_newest or body is None:
        return False
    if any(cls in body for cls in replaced):
        return True
    if name not in marks:  # inherited by fork, and unchanged since then
        from pool_party.wire.main_module import pickle_global

        marks[name] = pickle_global(name, main[name], ()).mark
    return marks[name] != mark


def _take_reply(definitions: "dict[str, Any]", values: "dict[str, Any]") -> None:
    main = namespace()
    install(*({name: entry for name, entry in part.items() if name not in main} for part in (definitions, values)))


# ---- both ----


def _front(package: "bytes | memoryview", key: bytes, name: "bytes | None" = None) -> bytes:
    """Return the beginning of a pickle, which makes its receiver check the package.

    name: what names the package's shared memory, if the receiver is to find it there.
    """
    if not package:
        return b""
    function, data = (b"receive", bytes(package)) if name is None else (b"open_package", name)
    head = b"\x80\x05cpool_party.wire.definitions\n" + function + b"\nC" + bytes([len(key)]) + key
    return head + b"\x8e" + len(data).to_bytes(8, "little") + data + b"\x86R0"


def _brief_front(package: bytes, key: bytes, at: int) -> bytes:
    """Return the same for a package that the receiver finds on its channel's shelf."""
    place = b"J" + at.to_bytes(4, "little") + b"J" + len(package).to_bytes(4, "little")
    return b"\x80\x05cpool_party.wire.definitions\nfetch\nC" + bytes([len(key)]) + key + place + b"\x87R0"


def complete(
    pickle: bytes,
    buffer_callback: "Callable[[Any], Any]",
    receivers: "Receivers | None" = None,
    read: "Iterable[str]" = (),
    named: "Iterable[str]" = (),
) -> bytes:
    """Put the prelude that the receivers need before a pickle, which may name something of `__main__`.

    buffer_callback: the pickle's callback, which gets the shared memory that must live until the pickle is received.
    receivers: by default those of the channel for which this thread encodes, or the caller of the task.
    """
    is_early = receivers is not None  # it may be unpickled before the worker has opened the channel
    receivers = receivers or _native.receivers() or replying()
    package, key, shared, front = receivers.prelude(pickle, read, named)
    for memory in shared:
        buffer_callback(_pickle.PickleBuffer(memory))
    if front is None or is_early:
        is_apart = type(package) is memoryview and not is_early
        front = _front(package, key, _native.name_shared(package) if is_apart else None)
    return front + pickle


def replying() -> "_Caller":
    global _caller
    if _caller is None:
        _caller = _Caller()
    return _caller
