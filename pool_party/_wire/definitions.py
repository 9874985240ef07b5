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
makes the receiver check a *package* of globals, each with a pickle and a hash of its own, and unpickle those that it
does not have. If the receivers have all of them, there is no prelude. So no value is pickled twice.

The globals are one graph. Where one refers to another, or to an object that is part of another, its pickle contains the
name of that one, and the place of the object in its pickle. So two references to an object are references to one object
in the receiver, too, whenever they arrive. Globals that refer to each other in a circle are in one pickle. The hash of
a global covers all that it refers to: if that becomes another object, so does the global. Functions and classes keep
their identity when they change.

A package is put into shared memory once, and each pickle contains only its place there. A large one has memory of its
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
from pool_party._wire.making import Made, adopt, install, made, unbind
from pool_party._wire.namespace import (
    digest,
    is_definition,
    is_of_main,
    is_session,
    leaves,
    named_values,
    namespace,
    reads,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from pool_party._wire.main_module import Part
    from pool_party._wire.making import Entry
    from pool_party._wire.script import Script

    # A package, or b"", in shared memory if it is large; its hash; the shared memory that must live until it arrives;
    # the prelude's bytes if these suffice, or None.
    type _Prelude = tuple[bytes | memoryview, bytes, list[memoryview], bytes | None]
    type _Names = tuple[str, ...]
    # The namespaces in which a prelude was made, its definitions, and the prelude; see `_native.recall`.
    type _Kept = tuple[dict[str, Any], dict[str, Any], tuple[tuple[str, Callable[[], object] | None], ...], _Prelude]

_Module = type(sys)
_MISSING = object()
_KEPT_MAX = 256  # preludes that a pool keeps; guess: programs have fewer combinations of functions and classes
_LARGE = 1 << 20  # bytes; a larger prelude evicts all others, because each prelude contains the large values it needs


# ---- sending ----


def _reference(value: object, at_end: "Callable[[Any], object] | None" = None) -> "Callable[[], object]":
    try:
        return ref(value, at_end)
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


def _in_shared_memory(package: bytes) -> "memoryview | None":
    from pool_party._wire.shared import share

    try:
        memory: memoryview = share(package, readonly=True)
    except OSError:  # no descriptor is left, for example; then the package travels in each pickle
        return None
    return memory


def _script() -> "Script | None":
    from pool_party._wire.script import Script  # which workers do not need

    return Script.of_main()


class Receivers:
    """Tracks the definitions and values of `__main__` that all workers of one pool have.

    method: how processes are started; None for interpreters, which begin with nothing.
    imports_main: processes that are spawned, or from a fork server, run the program's main module.
    follows: send definitions and values of a script as they are at each call, too, as loky does.
    """

    is_reply = False
    is_by_value = False  # each pickle has what it needs of `__main__`; see `codec.dumps_current`
    has_our_memory = True  # they can open shared memory by its name

    def __init__(self, method: "str | None", *, follows: bool = False, imports_main: bool = True) -> None:
        self.is_session = follows or is_session()
        self._inherited = self._inherit() if method == "fork" else {}
        imports_main = imports_main and method in ("forkserver", "spawn")
        self._script = _script() if imports_main and not self.is_session else None
        self.has_nothing = not self._inherited and self._script is None
        self.is_local = method is None
        self._sent: set[str] = set()
        self.kept: dict[frozenset[str], _Kept] = {}  # by the names in a pickle; `codec.c` looks here first
        self._parts: dict[str, Part] = {}  # what was pickled last, by name
        self._sources: dict[str, Callable[[], object]] = {}  # the definitions that these are of
        self._owners: dict[int, tuple[str, int]] = {}  # which of these have an object, and where, by its id
        self._serials: dict[str, int] = {}  # in which order globals were first sent
        self._places: dict[bytes, int] = {}  # places of packages on the shelf, by hash
        self._unchanged: dict[Any, tuple[list[str], list[Any], _Prelude]] = {}

    def forget(self) -> None:
        """Release what refers to the program's namespace, at the end of the pool. The ended pool may live longer.

        Another thread may be pickling a call just then, so the dictionaries that it looks into stay as they are.
        """
        self.kept, self._parts, self._unchanged, self._sources, self._owners = {}, {}, {}, {}, {}

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
        return self._script is not None and self._script.defines(name, value)

    def is_definition(self, name: str, value: "Any") -> bool:
        """Return whether a value is a definition or pickles as a name. Skips `__reduce__` if workers keep a global."""
        return is_definition(value, name) if is_of_main(value) or not self.has_value(name) else False

    def has_value(self, name: str) -> bool:
        """Return whether every worker has a global of its own with that name, which it keeps."""
        if self.is_session or name in self._sent:
            return False
        return name in self._inherited or (self._script is not None and self._script.sets(name))

    def had(self, name: str) -> bool:
        """Return whether a worker may have a global because the caller had it."""
        return name in self._serials or name in self._inherited

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
        self._sent |= package.definitions
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

    def group(self, name: str) -> "_Names":
        """Return the globals that are in one pickle with this one, since they referred to each other last time."""
        known = self._parts.get(name)
        main = namespace()
        return known.names if known is not None and all(other in main for other in known.names) else (name,)

    def part(self, names: "_Names", values: "dict[int, str]", named: "Iterable[str]") -> "Part":
        """Return globals in one pickle.

        Outside a session a definition is pickled once, and all workers get the value that another global had first.
        """
        main = namespace()
        known = self._parts.get(names[0])
        if known is not None and known.names == names and all(self._is_kept(name, main[name]) for name in names):
            return known
        from pool_party._wire.main_module import pickle_part

        part = pickle_part(names, self._owners, values, named, self.is_local, self.has_our_memory)
        for name in names:
            self.drop(name)
            self._parts[name] = part
            self._sources[name] = _reference(main[name], lambda _, name=name: self.drop(name))  # type: ignore[misc]
            self._serials.setdefault(name, len(self._serials))
        for key, place in part.places.items():
            self._owners.setdefault(key, (names[0], place))
        if self is not _own:
            part.let_go([main[name] for name in names if type(self._sources[name]) is ref])
        return part

    def drop(self, name: str) -> None:
        """Forget what was pickled for a global."""
        part = self._parts.pop(name, None)
        for key in () if part is None else part.places:
            if self._owners.get(key, ("",))[0] in part.names:  # type: ignore[union-attr]
                del self._owners[key]

    def _is_kept(self, name: str, value: object) -> bool:
        if self.is_session:
            return False
        return not self.is_newest(name, value) or self._sources[name]() is value

    def is_newest(self, name: str, value: "Any") -> bool:
        """Return whether a global replaces a worker's: a session's does, and a definition."""
        return self.is_session or is_of_main(value) or name in self._sent or self.is_definition(name, value)

    def serial(self, part: "Part") -> int:
        return min(self._serials[name] for name in part.names)


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
        self._values = named_values()
        self._parts: dict[str, Part] = {}
        self._marks: dict[tuple[str, ...], bytes] = {}
        self._absent: list[str] = []
        self.definitions: set[str] = set()
        self.visited: set[str] = set()
        self.seen: list[tuple[str, Callable[[], object] | None]] = []
        self._collect()
        while cycles := self._cycles():
            for names in cycles:
                self._take(names)
            self._collect()

    def _collect(self) -> None:
        main = namespace()
        modules: list[str] = []
        while self._todo or modules:
            while self._todo:
                name = self._todo.pop()
                if name in self.visited:
                    continue
                self.visited.add(name)
                value = main.get(name, _MISSING)
                is_definition = value is not _MISSING and self._receivers.is_definition(name, value)
                if value is _MISSING or is_definition:
                    self.seen.append((name, None if value is _MISSING else _reference(value)))
                if value is _MISSING:
                    self._note_absent(name)
                    self._receivers.drop(name)
                    self._take_again((name,), {})
                elif self._has(name, value, is_definition):
                    self._add_read(*reads(value) if is_definition else ((), ()))
                elif type(value) is _Module:
                    modules.append(name)
                else:
                    self._take(self._receivers.group(name))
            if modules:  # last, because modules are sent with the submodules that code names
                self._take(self._receivers.group(modules.pop()))

    def _has(self, name: str, value: object, is_definition: bool) -> bool:
        return self._receivers.has(name, value) if is_definition else self._receivers.has_value(name)

    def _note_absent(self, name: str) -> None:
        if self._receivers.is_session and self._receivers.had(name):
            self._absent.append(name)

    def _take(self, names: "_Names") -> None:
        part = self._receivers.part(names, self._values, self._named)
        if part.error is not None and self._receivers.has_nothing:
            raise part.error
        self._take_again(names, part.places)
        self.visited.update(names)
        for name in names:
            self._parts[name] = part
            if self._receivers.is_definition(name, namespace()[name]):
                self.definitions.add(name)
        self._todo += part.refs
        self._add_read(part.read, part.named)

    def _take_again(self, names: "_Names", places: "dict[int, int]") -> None:
        """Have parts pickled again that refer to objects in these globals, but not to where these objects are now."""
        for other in list(self._parts.values()):
            if any(name in names and places.get(key) != place for name, key, place in other.placed):
                self.visited.difference_update(other.names)
                self._todo += other.names

    def _add_read(self, read: "Iterable[str]", named: "Iterable[str]") -> None:
        self._todo += read
        self._named.update(named)

    def _cycles(self) -> "list[_Names]":
        """Return the names of parts that refer to each other, bases before classes, to be pickled as one."""
        graph = {
            part.names: {self._parts[name].names for name in part.refs if name in self._parts}
            for part in self._parts.values()
        }
        found = [{name for names in groups for name in names} for groups in _components(graph) if len(groups) > 1]
        main = list(namespace())
        return [tuple(sorted(names, key=lambda name: (_n_bases(name), main.index(name)))) for names in found]

    def _mark(self, part: "Part") -> bytes:
        """Return a hash of a part, and of all that it refers to, except what is changed in place."""
        if part.names not in self._marks:
            marks = [part.content, *part.tokens]
            for name in sorted(part.refs):
                other = self._parts.get(name)
                token = b"" if other is None else other.tokens[other.names.index(name)]
                marks += [name.encode(), token or (b"" if other is None else self._mark(other))]
            self._marks[part.names] = digest(b"\0".join(marks))
        return self._marks[part.names]

    def _entry(self, part: "Part") -> "Entry":
        from pool_party._wire.making import Entry

        main = namespace()
        owned = tuple(name for name in part.names if not self._receivers.is_newest(name, main[name]))
        reason = None if part.error is None else repr(part.error)
        refs = tuple(sorted(part.refs))
        return Entry(
            *(part.names, self._mark(part), part.content, part.tokens, owned, refs, part.body, reason, part.buffers)
        )

    def parts(self) -> "list[Part]":
        found = {id(part): part for part in self._parts.values()}
        return sorted(found.values(), key=self._receivers.serial)

    @property
    def shared(self) -> "list[memoryview]":
        return [memory for part in self.parts() for memory in part.shared]

    def pickle(self) -> bytes:
        entries = [self._entry(part) for part in self.parts()]
        if not entries and not self._absent:
            return b""
        return _pickle.dumps((self._receivers.is_reply, entries, sorted(self._absent)), 5)


def _n_bases(name: str) -> float:
    value = namespace()[name]
    return len(value.__mro__) if isinstance(value, type) else float("inf")


def _components(graph: "dict[_Names, set[_Names]]") -> "list[list[_Names]]":
    """Return the strongly connected components of a graph (Tarjan, 1972), each after those that it leads to."""
    numbers: dict[_Names, int] = {}
    lows: dict[_Names, int] = {}
    path: list[_Names] = []
    found: list[list[_Names]] = []
    for start in graph:
        work = [(start, iter(graph[start]))] if start not in numbers else []
        while work:
            node, others = work[-1]
            if node not in numbers:
                numbers[node] = lows[node] = len(numbers)
                path.append(node)
            for other in others:
                if other not in numbers:
                    work.append((other, iter(graph[other])))
                    break
                if other in path:
                    lows[node] = min(lows[node], numbers[other])
            else:
                work.pop()
                if work:
                    lows[work[-1][0]] = min(lows[work[-1][0]], lows[node])
                if lows[node] == numbers[node]:
                    at = path.index(node)
                    found.append(path[at:])
                    del path[at:]
    return found


# ---- receiving ----

_of_caller: "set[str]" = set()  # names that the caller has as well
_caller: "_Caller | None" = None  # in a worker, once it has sent a reply that names __main__
_own: "Receivers | None" = None  # in a worker: what it has inherited or imported, as its caller would pickle it
_noted: "dict[tuple[str, ...], Part]" = {}  # what it had before its initializer ran
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
        for part in _Package(_own_receivers(), reads(function)[0], ()).parts():
            _noted[part.names] = part


def receive(key: bytes, package: "bytes | memoryview") -> None:
    """Take a package. Unpickling calls this before it reads the value that needs the package."""
    if key not in _settled:
        with _lock:
            is_reply, entries, absent = _pickle.loads(package)
            _take_reply(entries) if is_reply else _take(entries, absent)
            _settled.add(key)


def fetch(key: bytes, at: int, size: int) -> None:
    """Take a package from the shelf of this worker's channel. Unpickling calls this like `receive`."""
    if key not in _settled:
        receive(key, _native.from_shelf(at, size))


def open_package(key: bytes, name: bytes) -> None:
    """Take a package from shared memory of its own. Unpickling calls this like `receive`."""
    if key not in _settled:
        receive(key, _native.open_shared(name))


def _take(entries: "list[Entry]", absent: "list[str]") -> None:
    by_name = {name: entry for entry in entries for name in entry.names}
    known: dict[int, bool] = {}

    def is_stale(entry: "Entry") -> bool:
        if id(entry) not in known:
            known[id(entry)] = False  # they do not refer to each other in circles, but for safety
            known[id(entry)] = _differs(entry) or any(is_stale(by_name[name]) for name in _unknown_refs(entry, by_name))
            if not known[id(entry)] and any(name not in made for name in _newest(entry)):
                known[id(entry)] = not _is_as_own(entry)
        return known[id(entry)]

    stale = [entry for entry in entries if is_stale(entry)]
    gone = [name for name in absent if name in _of_caller and name in namespace()]
    if stale or gone:
        _settled.clear()  # earlier packages may contain older definitions
    for name in gone:
        unbind(name)
    install(stale, entries)
    _of_caller.update(by_name)


def _newest(entry: "Entry") -> "list[str]":
    return [name for name in entry.names if name not in entry.owned]


def _differs(entry: "Entry") -> bool:
    """Return whether an entry is not what was received last."""
    main = namespace()
    if any(name not in main for name in entry.names):
        return True
    return entry.body is not None and any(made[name].mark != entry.mark for name in _newest(entry) if name in made)


def _unknown_refs(entry: "Entry", by_name: "dict[str, Entry]") -> "Iterable[str]":
    """Return what an entry refers to, if it has never been received, and may be inherited by fork."""
    if all(name in made for name in _newest(entry)):
        return ()
    return [name for name in entry.refs if name in by_name]


def _is_as_own(entry: "Entry") -> bool:
    """Return whether this process has the same under these names, inherited by fork or imported."""
    if entry.body is None:
        return True
    part = _noted.get(entry.names)
    if part is None:
        part = _own_receivers().part(entry.names, named_values(), ())
    if part.body is None or part.content != entry.content:
        return False
    adopt(part.body, entry.body)
    memo = dict(part.pickler.memo.copy().values())
    for name in entry.names:
        made[name] = Made(entry.mark, memo)
    return True


def _own_receivers() -> Receivers:
    global _own
    if _own is None:
        _own = Receivers(None, follows=True)
        _own.is_local = _own.has_nothing = False  # values that do not pickle are never sent
    return _own


def _take_reply(entries: "list[Entry]") -> None:
    main = namespace()
    install([entry for entry in entries if any(name not in main for name in entry.names)], entries)


# ---- both ----


def _front(package: "bytes | memoryview", key: bytes, name: "bytes | None" = None) -> bytes:
    """Return the beginning of a pickle, which makes its receiver check the package.

    name: what names the package's shared memory, if the receiver is to find it there.
    """
    if not package:
        return b""
    function, data = (b"receive", bytes(package)) if name is None else (b"open_package", name)
    head = b"\x80\x05cpool_party._wire.definitions\n" + function + b"\nC" + bytes([len(key)]) + key
    return head + b"\x8e" + len(data).to_bytes(8, "little") + data + b"\x86R0"


def _brief_front(package: bytes, key: bytes, at: int) -> bytes:
    """Return the same for a package that the receiver finds on its channel's shelf."""
    place = b"J" + at.to_bytes(4, "little") + b"J" + len(package).to_bytes(4, "little")
    return b"\x80\x05cpool_party._wire.definitions\nfetch\nC" + bytes([len(key)]) + key + place + b"\x87R0"


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
