"""Which names of `__main__` a pickle refers to, and whether definitions have changed."""

import pickle
import pickletools
import sys
import types
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool_party import _native
from pool_party._wire import making, namespace


@pytest.fixture
def main(monkeypatch):
    """A replacement for `__main__`."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


CLASSES = {name: type(name, (), {"__module__": "__main__"}) for name in ("A", "Bc", "Def")}


def named_by_pickletools(data):
    """Find the names of globals of `__main__` with pickletools: the two strings before each STACK_GLOBAL."""
    stack, memo, found = [], {}, set()
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif "GET" in opcode.name:
            stack.append(memo[argument])
        elif opcode.name == "STACK_GLOBAL":
            if stack[-2] == "__main__":
                found.add(stack[-1])
            stack.append(None)
        elif opcode.name not in ("FRAME", "PROTO"):
            stack.append(argument if isinstance(argument, str) else None)
    return found


small = st.sampled_from(
    [*CLASSES.values(), "A", "__main__", "Bc.x", 0.5, None, b"A.", 300, -1, 1 << 70, True, {1}, "é"]
)
texts = st.text().filter(lambda text: "_main__" not in text)  # texts that may be pickles have a test of their own
parts = (
    small
    | st.builds(lambda name: CLASSES[name](), st.sampled_from(list(CLASSES)))
    | texts
    | st.binary().filter(lambda data: b"_main__" not in data)
)
values = st.recursive(
    parts,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(texts, inner),
    max_leaves=40,
)


@settings(deadline=None)
@given(value=values)
def test_names_in_a_pickle(value):
    main = types.ModuleType("__main__")
    vars(main).update(CLASSES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", main)
        data = pickle.dumps(value, 5)
    assert _native.names_of_main(data) == named_by_pickletools(data)


@given(
    data=st.binary(),
    start=st.sampled_from([b"", b"\x80\x05", b"\x8c\x08__main__\x94", b"\x8c\x08__main__\x8c\x01A\x93"]),
)
def test_no_bytes_are_read_beyond_their_end(data, start):
    found = _native.names_of_main(start + data)
    assert found is None or all(isinstance(name, str) for name in found)


def test_a_pickle_in_a_pickle_is_not_understood(main):
    main.A = CLASSES["A"]
    inner = pickle.dumps(main.A, 5)
    assert _native.names_of_main(pickle.dumps([inner], 5)) is None
    assert _native.names_of_main(pickle.dumps(bytearray(inner), 5)) is None
    assert _native.names_of_main(pickle.dumps(pickle.dumps(main.A, 0).decode(), 5)) is None


def test_names_by_value(main):
    main.f = lambda: 0
    data = pickle.dumps((making.get, ("f",)), 5)
    assert "f" in _native.names_of_main(data)


SOURCE = """
class Base: pass
class C(Base):
    names = ["a"]
    def method(self, x=[1], *, y=2): return x
    @property
    def size(self): return 1
    @classmethod
    def make(cls): return cls()
def make():
    seen = []
    def inner(): return seen
    return inner
def f(x, y=(1,)): return x
inner = make()
table = {"k": [1, 2]}
"""
CHANGES = {
    "a method": "C.method = lambda self: 1",
    "a default value": "C.method.__defaults__ = ([2],)",
    "in a default value": "C.method.__defaults__[0].append(2)",
    "a keyword's default value": "C.method.__kwdefaults__['y'] = 3",
    "a property": "C.size = property(lambda self: 2)",
    "a class method": "C.make = classmethod(lambda cls: 2)",
    "in an attribute": "C.names.append('b')",
    "a new attribute": "C.more = 1",
    "a base": "Base.x = 1",
    "a function": "def f(x, y=(1,)): return x",
    "its code": "f.__code__ = (lambda x, y=2: y).__code__",
    "its attribute": "f.note = 1",
    "in a closure": "inner().append(1)",
    "in a table": "table['k'][1] = 3",
    "a key": "table['l'] = 1",
    "nothing there": "del table",
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_noticed(main, change):
    exec(SOURCE, vars(main))
    names = ["C", "f", "inner", "table", "missing"]
    before, again = namespace.leaves(names), namespace.leaves(names)
    assert before is not None
    assert _native.are_same(before, again)
    exec(CHANGES[change], vars(main))
    assert not _native.are_same(before, namespace.leaves(names))


@pytest.mark.parametrize(
    "text", ["table = {1}", "table = object()", "table = 'x' * 5000", "table = []; table.append(table)"]
)
def test_what_may_change_unseen(main, text):
    exec(text, vars(main))
    assert namespace.leaves(["table"]) is None


def test_a_large_table_is_the_same_until_it_changes(main):
    main.table = {i: (i, [str(i), CLASSES["A"]]) for i in range(20_000)}
    before = namespace.leaves(["table"])
    assert _native.are_same(before, namespace.leaves(["table"]))
    main.table[19_999][1][0] = "other"
    assert not _native.are_same(before, namespace.leaves(["table"]))


@pytest.mark.parametrize("change", ["class C: pass", "del C", "C = None", "K = 1", ""])
def test_what_was_kept_holds_until_a_definition_changes(main, change):
    exec(SOURCE, vars(main))
    kept = {"C": (vars(main), vars(main), (("C", weakref.ref(main.C)), ("K", None)), ("prelude",))}
    assert _native.recall(kept, "f") is None
    assert _native.recall(kept, "C") == ("prelude",)
    exec(change, vars(main))
    assert _native.recall(kept, "C") == (None if change else ("prelude",))


def test_what_was_kept_holds_in_its_own_main_only(main, monkeypatch):
    exec(SOURCE, vars(main))
    kept = {"C": (vars(main), vars(main), (("C", weakref.ref(main.C)),), ("prelude",))}
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    assert _native.recall(kept, "C") is None


DICT_CHANGES = {
    "set": lambda table: table.__setitem__(3, "new"),
    "add": lambda table: table.__setitem__("new", 1),
    "delete": lambda table: table.__delitem__(3),
    "update": lambda table: table.update({3: "new"}),
    "or": lambda table: table.__ior__({3: "new"}),
    "pop": lambda table: table.pop(3),
    "popitem": lambda table: table.popitem(),
    "setdefault": lambda table: table.setdefault("new", 1),
    "clear": lambda table: table.clear(),
    "init": lambda table: table.__init__({3: "new"}),
    "order": lambda table: table.__setitem__(3, table.pop(3)),
    "variable": lambda table: exec("new = 1", table),
    "refilled": lambda table: (table.clear(), table.update(dict.fromkeys(range(3000), "new"))),
}


@pytest.mark.parametrize(
    "value", [str, lambda i: (i, ("x", str(i))), lambda i: [i, str(i)]], ids=["atoms", "tuples", "lists"]
)
@pytest.mark.parametrize("change", DICT_CHANGES)
def test_any_change_of_a_large_dict_is_noticed(main, change, value):
    main.table = {i: value(i) for i in range(3000)}
    before = namespace.leaves(["table"])
    assert _native.are_same(before, namespace.leaves(["table"]))
    DICT_CHANGES[change](main.table)
    assert not _native.are_same(before, namespace.leaves(["table"]) or [])


def test_another_dict_is_not_taken_for_a_large_one(main):
    main.table = {i: str(i) for i in range(3000)}
    before = namespace.leaves(["table"])
    for _ in range(100):
        main.table = {i: str(i) for i in range(3000)}
        assert not _native.are_same(before, namespace.leaves(["table"]))


@pytest.mark.parametrize("is_in_tuple", [False, True])
def test_a_large_dict_with_parts_that_can_change_is_examined(main, is_in_tuple):
    parts = [[i] for i in range(3000)]
    main.table = {i: (i, part) if is_in_tuple else part for i, part in enumerate(parts)}
    before = namespace.leaves(["table"])
    parts[5].append(1)
    assert not _native.are_same(before, namespace.leaves(["table"]))


class Value:
    pass


LIST_CHANGES = {
    "an item": lambda table: table[5].append(1),
    "an equal item": lambda table: table[5].__setitem__(1, f"{len(table)}"),
    "the order": lambda table: table[7].reverse(),
    "emptied": lambda table: table[2999].clear(),
    "filled": lambda table: table[0].append(0),
    "inside a tuple": lambda table: table[9][2][0].append(1),
}


@pytest.mark.parametrize("is_first_look", [False, True])
@pytest.mark.parametrize("change", LIST_CHANGES)
def test_any_change_of_a_list_in_a_large_dict_is_noticed(main, change, is_first_look):
    main.table = {i: [i, "3000"] if i else [] for i in range(3000)}
    if change == "inside a tuple":
        main.table[9].append(([],))
    before = namespace.leaves(["table"])
    if not is_first_look:
        before = namespace.leaves(["table"])
        assert _native.are_same(before, namespace.leaves(["table"]))
    LIST_CHANGES[change](main.table)
    after = namespace.leaves(["table"])
    assert not _native.are_same(before, after)
    assert _native.are_same(after, namespace.leaves(["table"]))


def test_items_of_lists_in_a_large_dict_are_let_go(main):
    key = Value()
    main.table = {i: [i] for i in range(3000)}
    namespace.leaves(["table"])
    main.table[5].append((1, 2, [key]))
    namespace.leaves(["table"])
    end = weakref.ref(key)
    main.table.clear()
    del key
    assert end() is None
