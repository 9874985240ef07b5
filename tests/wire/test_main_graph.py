"""What functions of `__main__` reach is one graph: identity, the creation of classes, and changes in sessions."""

import textwrap

import fresh
import pytest

HEAD = """
import abc, enum, functools, sys, types
from dataclasses import dataclass
from typing import NewType, Protocol
from pool_party import ComposablePool
"""

SCRIPTS = {
    "sentinel": """
        MISSING = object()
        def given(x=MISSING): return x is not MISSING
        class Conf:
            default = MISSING
        def look(_=0): return given(), Conf.default is MISSING
    """,
    "shared object": """
        class Model: w = 0
        class Trainer:
            def __init__(self, model): self.model = model
        model = Model()
        trainer = Trainer(model)
        part = [1]
        one, two = [part], {"part": part}
        del part
        def look(_=0): return trainer.model is model, one[0] is two["part"]
    """,
    "objects that refer to each other": """
        class Node: pass
        a, b = Node(), Node()
        a.peer, b.peer = b, a
        def f(x=a): return g
        def g(x=b): return f
        f.other, g.other = g, f
        def look(_=0): return a.peer.peer is a, f.other is g, g.other is f, f.__defaults__[0] is a
    """,
    "shared cell": """
        def make():
            n = 0
            def add():
                nonlocal n
                n += 1
            return add, lambda: n
        add, get = make()
        def look(_=0):
            add()
            return get() > 0
    """,
    "subclass hook with keywords": """
        REGISTRY = {}
        class Plugin:
            def __init_subclass__(cls, *, key, **more):
                super().__init_subclass__(**more)
                REGISTRY[key] = cls
                cls.key = key
        class Csv(Plugin, key="csv"): pass
        def look(_=0): return REGISTRY["csv"] is Csv, list(REGISTRY), Csv.key
    """,
    "effects of a hook": """
        log = []
        class Base:
            def __init_subclass__(cls): log.append(cls.__name__)
        class Sub(Base): pass
        class Meta(type):
            made = []
            def __new__(cls, name, bases, members, **more):
                cls.made.append(name)
                return super().__new__(cls, name, bases, members)
            @classmethod
            def __prepare__(cls, name, bases, **more): return {"prepared": 1}
        class Made(metaclass=Meta, option=1): pass
        class Named:
            names = []
            def __set_name__(self, owner, name): self.names.append(name)
        class Owner:
            z, a = Named(), Named()
        def look(_=0): return Sub.__name__, log, Meta.made, Made.prepared, Named.names, list(vars(Owner))[1:]
    """,
    "attribute of another base": """
        class A:
            def hi(self): return "A"
        class B(A): pass
        class M:
            def hi(self): return "M"
        class C(B, M):
            hi = M.hi
        def look(_=0): return C().hi(), C.hi is M.hi
    """,
    "methods": """
        class C:
            def m(self, a, b): return a, b
            pm = functools.partialmethod(m, 5)
            @functools.singledispatchmethod
            def s(self, x): return "object"
            @s.register
            def _(self, x: int): return "int"
            @functools.cached_property
            def cp(self): return 1
        def look(_=0): return C().pm(6), C().s(1), C().s(""), C().cp
    """,
    "types": """
        class Named(Protocol):
            name: str
            def hi(self) -> str: ...
        type Pair = tuple[int, int]
        def generic[T](x: T) -> T: return x
        UserId = NewType("UserId", int)
        def use(x: Named, y: UserId) -> Pair: return x
        def look(_=0): return Pair.__name__, Pair.__module__, len(generic.__type_params__), use(UserId(3), 0)
    """,
    "enumerations": """
        @dataclass(frozen=True)
        class Mix:
            a: int
            b: int
        class E(Mix, enum.Enum):
            A = 1, 2
        class Planet(enum.Enum):
            EARTH = (5.9, 6.3)
            def __init__(self, mass, radius): self.mass = [mass]
        favourite = Planet.EARTH
        def look(_=0): return E.A.b, Planet((5.9, 6.3)) is favourite, favourite.mass, E.A.value == Mix(1, 2)
    """,
    "decorators": """
        class Wrapper:
            def __init__(self, f):
                self.f = f
                functools.update_wrapper(self, f)
            def __call__(self, n): return self.f(n) + 1
        @Wrapper
        def c(n: int) -> int: return n
        def plain(f): return Wrapper(f)
        d = plain(abs)
        def look(_=0): return c(1), d(-1)
    """,
    "abstract class": """
        class Base(abc.ABC):
            side: int = 3
            @abc.abstractmethod
            def area(self) -> "Base": ...
        class Square(Base):
            def area(self): return self.side ** 2
        class Other: pass
        Base.register(Other)
        def look(_=0): return Square().area(), isinstance(Other(), Base), sorted(Base.__abstractmethods__)
    """,
    "globals named by a text": """
        x, y = 5, [1]
        def look(_=0):
            import __main__
            return globals()["x"], eval("x + y[0]"), __main__.y, vars(sys.modules["__main__"])["x"]
    """,
}
BODY = """
if __name__ == "__main__":
    kind, _, method = KIND.partition("-")
    with ComposablePool(1, kind=kind, context=method or None) as p:
        got = p.apply(look)
    assert got == look(), (got, look())
    print("done")
"""
REMOTE = ["interp", "process-fork", "process-forkserver", "process-spawn"]


@pytest.mark.parametrize(("how", "kind"), [("script", "interp"), *(("command", kind) for kind in REMOTE)])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_worker_has_the_same(tmp_path, name, how, kind):
    text = f"KIND = {kind!r}\n{HEAD}{textwrap.dedent(SCRIPTS[name])}{BODY}"
    args = ["-c", text]
    if how == "script":
        (tmp_path / "app.py").write_text(text)
        args = [tmp_path / "app.py"]
    fresh.check(fresh.run(args), "done")


CHANGES = """
cfg = types.ModuleType("cfg")
cfg.x = 1
def a(): return cfg.x
d = {"k": 1}
lookup = d.get
def b(): return lookup("new")
def c(): "one"; return c.__doc__, c.__name__, sorted(c.__annotations__)
class K: y = 1
def e(): return getattr(K, "y", None), K().__class__ is K
v = 1
def g():
    try: return v
    except NameError: return None
old = K()
def h(x=old): return type(x) is K, type(x) is type(old), x is old
state = []
def keep():
    state.append(1)
    return len(state)
steps = [
    (a, "cfg.x = 2"), (b, "d['new'] = 5"), (c, "c.__doc__ = 'two'"), (c, "c.__name__ = 'z'"),
    (c, "c.__annotations__['q'] = int"), (e, "del K.y"), (g, "del v"), (h, "class K: y = 2"), (e, "K.y = 3"),
]
"""


@pytest.mark.parametrize("kind", REMOTE)
def test_changes_in_a_session(kind):
    text = f"""{HEAD}{CHANGES}
kind, _, method = {kind!r}.partition("-")
with ComposablePool(1, kind=kind, context=method or None) as p:
    p.apply(keep)
    for f, change in steps:
        assert p.apply(f) == f(), (change, "before")
        exec(change)
        assert p.apply(f) == f(), (change, p.apply(f), f())
    assert p.apply(keep) == 2  # what has not changed stays as the worker has left it
print("done")
"""
    fresh.check(fresh.run(["-c", text]), "done")


@pytest.mark.parametrize("kind", ["interp", "process-fork"])
def test_an_initializer_sets_a_global_in_another_namespace(tmp_path, kind):
    text = f"""
from pool_party import ComposablePool
scope = {{"__name__": "__main__"}}
exec("def init(a):\\n    global G\\n    G = a\\ndef use(x): return G + x", scope)
if __name__ == "__main__":
    kind, _, method = {kind!r}.partition("-")
    with ComposablePool(1, scope["init"], (10,), kind=kind, context=method or None) as p:
        print(p.map(scope["use"], range(3)))
"""
    (tmp_path / "app.py").write_text(text)
    fresh.check(fresh.run([tmp_path / "app.py"]), "[10, 11, 12]")


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_word_in_a_docstring_sets_no_global(tmp_path, method):
    text = f'''"""A program.

DATA is read by main.
"""
from pool_party import ComposablePool
def f(i): return DATA[i]
if __name__ == "__main__":
    DATA = [10, 20, 30]
    with ComposablePool(1, context={method!r}) as p:
        print(p.map(f, range(3)))
'''
    (tmp_path / "app.py").write_text(text)
    fresh.check(fresh.run([tmp_path / "app.py"]), "[10, 20, 30]")


def test_a_missing_global_comes_with_a_hint(tmp_path):
    text = """
from pool_party import ComposablePool
z = 9
def by_name(name): return globals()[name]
def by_eval(name): return eval(name)
if __name__ == "__main__":
    with ComposablePool(1, kind="interp") as p:
        for f in (by_name, by_eval):
            try:
                p.apply(f, ("z",))
            except (KeyError, NameError) as error:
                print(any("pass it as an argument" in note for note in error.__notes__))
"""
    (tmp_path / "app.py").write_text(text)
    fresh.check(fresh.run([tmp_path / "app.py"]), "True True")
