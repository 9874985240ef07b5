"""Scripts whose functions and classes are in `__main__`. Each has definitions, and code that uses a pool `p`."""

import textwrap

SCRIPTS = {
    "global_lock": (
        """
        import threading
        lock = threading.Lock()
        def f(x):
            with lock:
                return x + 1
        """,
        "print(p.map(f, range(4)))",
    ),
    "sqlite_connection": (
        """
        import sqlite3
        db = sqlite3.connect(":memory:", check_same_thread=False)
        db.execute("create table t (x)")
        db.executemany("insert into t values (?)", [(i,) for i in range(5)])
        def f(x):
            return db.execute("select count(*) from t where x >= ?", (x,)).fetchone()[0]
        """,
        "print(p.map(f, range(4)))",
    ),
    "executor": (
        """
        import concurrent.futures
        executor = concurrent.futures.ThreadPoolExecutor(1)
        def f(x):
            return executor is not None and x
        """,
        "print(p.map(f, range(4)))",
    ),
    "generator": (
        """
        def count():
            n = 0
            while True:
                yield n
                n += 1
        numbers = count()
        def f(x):
            return next(numbers) >= 0 and x
        """,
        "print(p.map(f, range(4)))",
    ),
    "context_variable": (
        """
        import contextvars
        level = contextvars.ContextVar("level", default=3)
        def f(x):
            return level.get() + x
        """,
        "print(p.map(f, range(4)))",
    ),
    "ctypes_library": (
        """
        import ctypes
        libc = ctypes.CDLL(None)
        def f(x):
            return libc.abs(-x)
        """,
        "print(p.map(f, range(4)))",
    ),
    "open_file": (
        """
        log = open("/dev/null", "w")
        def f(x):
            return log.write("x" * x)
        """,
        "print(p.map(f, range(4)))",
    ),
    "lambda_global": (
        """
        double = lambda x: 2 * x
        def f(x):
            return double(x)
        """,
        "print(p.map(f, range(4)))",
    ),
    "singledispatch": (
        """
        import functools
        @functools.singledispatch
        def show(value):
            return "something"
        @show.register
        def _(value: int):
            return f"int {value}"
        @show.register
        def _(value: str):
            return f"str {value}"
        def f(x):
            return show(x)
        """,
        "print(p.map(f, [1, 'a', None])); print(p.map(show, [1, 'a', None]))",
    ),
    "typed_named_tuple": (
        """
        import typing
        class Pair(typing.NamedTuple):
            a: int
            b: str = "b"
            def swap(self):
                return Pair(self.b, self.a)
        def f(x):
            return Pair(x).swap()
        """,
        "print(p.map(f, range(2)), type(p.apply(f, (1,))) is Pair, p.apply(Pair.swap, (Pair(1, 2),)))",
    ),
    "named_tuple": (
        """
        import collections
        Pair = collections.namedtuple("Pair", "a b", defaults=[5])
        def f(x):
            return Pair(x)
        """,
        "print(p.map(f, range(2)), type(p.apply(f, (1,))) is Pair)",
    ),
    "typed_dict": (
        """
        import typing
        class Options(typing.TypedDict, total=False):
            a: int
        def f(x):
            return Options(a=x)
        """,
        "print(p.map(f, range(2)))",
    ),
    "generic_class": (
        """
        import typing
        T = typing.TypeVar("T")
        class Box(typing.Generic[T]):
            def __init__(self, value: T):
                self.value = value
        class IntBox(Box[int]):
            pass
        def f(x):
            return IntBox(x)
        """,
        "print([b.value for b in p.map(f, range(3))], isinstance(p.apply(f, (1,)), Box))",
    ),
    "protocol_and_abc": (
        """
        import abc
        class Shape(abc.ABC):
            @abc.abstractmethod
            def area(self): ...
        class Square(Shape):
            def __init__(self, a):
                self.a = a
            def area(self):
                return self.a ** 2
        def f(shape):
            return shape.area(), isinstance(shape, Shape)
        """,
        "print(p.map(f, [Square(1), Square(2)]))",
    ),
    "cache": (
        """
        import functools
        @functools.cache
        def fib(n):
            return n if n < 2 else fib(n - 1) + fib(n - 2)
        @functools.lru_cache(maxsize=2)
        def square(x):
            return x * x
        def f(x):
            return fib(x) + square(x)
        """,
        "print(p.map(f, range(9)), p.map(fib, range(9)), p.apply(square, (3,)))",
    ),
    "cached_method": (
        """
        import functools
        class Table:
            def __init__(self, n):
                self.n = n
            @functools.cache
            def get(self, k):
                return self.n * k
            @functools.cached_property
            def all(self):
                return [self.get(k) for k in range(self.n)]
        def f(table):
            return table.all
        """,
        "print(p.map(f, [Table(2), Table(3)]), p.map(Table(3).get, [1, 2]))",
    ),
    "named_object": (
        """
        class Missing:
            def __repr__(self):
                return "MISSING"
            def __reduce__(self):
                return "MISSING"
        MISSING = Missing()
        def f(x):
            return x is MISSING
        def g(x):
            return MISSING
        """,
        "print(p.map(f, [MISSING, 1]), p.apply(g, (1,)) is MISSING)",
    ),
    "dataclass": (
        """
        import dataclasses
        @dataclasses.dataclass
        class Point:
            x: int
            y: list = dataclasses.field(default_factory=list)
            def norm(self):
                return self.x + len(self.y)
        @dataclasses.dataclass(frozen=True, slots=True, order=True)
        class Key:
            a: int
        def f(point):
            return Point(point.x + 1, [Key(point.x)])
        """,
        """
        print(p.map(f, [Point(1), Point(2)]), p.apply(f, (Point(1),)) == Point(2, [Key(1)]))
        print(p.map(Point.norm, [Point(1), Point(2, [3])]))
        """,
    ),
    "class_counter": (
        """
        class Counted:
            count = 0
            def __init__(self):
                type(self).count += 1
        def f(x):
            made = Counted()
            return isinstance(made, Counted)
        """,
        """
        mine = [Counted() for _ in range(3)]
        print(p.map(f, range(6), 1), Counted.count)
        theirs = p.map(type, mine)
        print(all(cls is Counted for cls in theirs), isinstance(Counted(), Counted), Counted.count)
        """,
    ),
    "class_registry": (
        """
        class Base:
            registry = {}
            def __init_subclass__(cls, **kwargs):
                super().__init_subclass__(**kwargs)
                Base.registry[cls.__name__] = cls
        class A(Base):
            pass
        class B(Base):
            pass
        def f(name):
            return isinstance(Base.registry[name](), Base)
        """,
        "print(p.map(f, ['A', 'B']), sorted(Base.registry))",
    ),
    "metaclass": (
        """
        class Meta(type):
            def __new__(mcls, name, bases, namespace):
                namespace["tag"] = name.lower()
                return super().__new__(mcls, name, bases, namespace)
        class Thing(metaclass=Meta):
            pass
        def f(x):
            return x.tag, type(type(x)) is Meta
        """,
        "print(p.map(f, [Thing()]))",
    ),
    "enums": (
        """
        import enum
        class Color(enum.Enum):
            RED = 1
            BLUE = 2
            def other(self):
                return Color.BLUE if self is Color.RED else Color.RED
        class Flag(enum.Flag):
            A = enum.auto()
            B = enum.auto()
        def f(color):
            return color.other(), Flag.A | Flag.B
        """,
        "print(p.map(f, list(Color)), p.apply(f, (Color.RED,))[0] is Color.BLUE)",
    ),
    "enums_with_all_they_may_have": (
        """
        import enum
        class Number(enum.Enum):
            ONE = 1
            ALIAS = 1
            TEXT = "b"
            LIST = [1]
            def low(self):
                return self.name.lower()
            @classmethod
            def _missing_(cls, value):
                return cls.ONE
            @property
            def twice(self):
                return self.value * 2
        class Planet(enum.Enum):
            EARTH = (5.9, 6.3)
            MARS = (6.4, 3.3)
            def __init__(self, mass, radius):
                self.mass, self.radius, self.peer = mass, radius, None
        Planet.EARTH.peer = Planet.MARS
        class Kept(enum.Flag, boundary=enum.KEEP):
            A = 1
            B = enum.auto()
            AB = 3
        class Bits(enum.IntFlag):
            A = 1
            B = 8
        class Int(enum.IntEnum):
            X = 5
        class Text(enum.StrEnum):
            X = enum.auto()
            def __str__(self):
                return "own"
        class Functions(enum.Enum):
            f = enum.member(len)
            g = enum.nonmember(7)
        class New(enum.Enum):
            A = 1
            def __new__(cls, value):
                made = object.__new__(cls)
                made._value_, made.extra = value * 10, value
                return made
        class Generated(enum.Enum):
            @staticmethod
            def _generate_next_value_(name, start, count, last):
                return name * 2
            A = enum.auto()
        class Base(enum.Enum):
            def shout(self):
                return self.name + "!"
        class Derived(Base):
            A = 1
        ALL = [Number.ONE, Number.LIST, Planet.EARTH, Kept.A, Kept.AB, Bits.B, Bits.A | Bits.B, Int.X, Text.X,
               Functions.f, New.A, Generated.A, Derived.A]
        def f(value):
            kind = type(value)
            members = {name: repr(member) for name, member in kind.__members__.items()}
            attributes = {name: repr(part) for name, part in vars(value).items() if name != "_inverted_"}
            return repr(value), str(value), members, attributes, kind.__doc__, kind(value.value) is value, dir(kind)
        def g(_):
            same = Number.ALIAS is Number.ONE, Planet.EARTH.peer is Planet.MARS, Functions.g
            return same, Number(9), Number.ONE.twice, Kept(16).value, Derived.A.shout(), (~Kept.A).value, Int.X + 1
        """,
        "print([p.apply(f, (value,)) == f(value) for value in ALL], p.apply(g, (0,)))",
    ),
    "helpers_of_helpers": (
        """
        def c(x): return x + 1
        def b(x): return c(x) * 2
        def a(x): return b(x) + c(x)
        """,
        "print(p.map(a, range(4)))",
    ),
    "defaults": (
        """
        def f(x, items=[1, 2], *, table={"a": 3}):
            return x + sum(items) + table["a"]
        """,
        "print(p.map(f, range(3)), p.apply(f, (1,), {'items': [7]}))",
    ),
    "wraps": (
        """
        import functools
        def twice(f):
            @functools.wraps(f)
            def wrapper(*args):
                return 2 * f(*args)
            return wrapper
        @twice
        def f(x):
            return x + 1
        """,
        "print(p.map(f, range(3)), p.apply(f, (3,)))",
    ),
    "context_manager": (
        """
        import contextlib
        @contextlib.contextmanager
        def adding(n):
            yield lambda x: x + n
        def f(x):
            with adding(3) as add:
                return add(x)
        """,
        "print(p.map(f, range(3)))",
    ),
    "partial_and_operator": (
        """
        import functools, operator
        def add(a, b):
            return a + b
        add_two = functools.partial(add, 2)
        get = operator.itemgetter(1)
        def f(x):
            return add_two(x) + get((0, x))
        """,
        "print(p.map(f, range(3)), p.map(add_two, range(3)), p.map(get, [(1, 2)]))",
    ),
    "submodule": (
        """
        import os.path, xml.dom.minidom
        import email.mime.text as text
        def f(x):
            return xml.dom.minidom.parseString("<a/>").documentElement.tagName, os.path.join("a", x), text.__name__
        """,
        "print(p.map(f, ['b']))",
    ),
    "nested_classes": (
        """
        class Outer:
            class Inner:
                class Innermost:
                    value = 5
                def go(self):
                    return Outer.Inner.Innermost()
            @staticmethod
            def make():
                return Outer.Inner()
            @classmethod
            def name(cls, x):
                return cls.__name__ + x
        def f(inner):
            return inner.go()
        """,
        "print(p.apply(f, (Outer.Inner(),)).value, type(p.apply(Outer.make)) is Outer.Inner, p.map(Outer.name, ['x']))",
    ),
    "slots_and_properties": (
        """
        class Slotted:
            __slots__ = ("a", "_b")
            def __init__(self, a):
                self.a, self._b = a, a + 1
            @property
            def b(self):
                return self._b
            @b.setter
            def b(self, value):
                self._b = value
        def f(x):
            x.b += 1
            return x
        """,
        "print([(s.a, s.b) for s in p.map(f, [Slotted(1), Slotted(2)])])",
    ),
    "dunders": (
        """
        class Number:
            def __init__(self, n): self.n = n
            def __add__(self, other): return Number(self.n + other.n)
            def __eq__(self, other): return self.n == other.n
            def __hash__(self): return hash(self.n)
            def __getstate__(self): return (self.n,)
            def __setstate__(self, state): self.n, = state
            def __call__(self, x): return Number(self.n + x)
        def f(a, b): return a + b
        """,
        """
        print(p.starmap(f, [(Number(1), Number(2))]) == [Number(3)], p.map(Number(1), [1]) == [Number(2)])
        print({Number(1), Number(2)} == p.apply(set, ([Number(1), Number(2)],)))
        """,
    ),
    "reducer_with_effects": (
        """
        calls = []
        class Once:
            def __init__(self, items): self.items = items
            def __reduce__(self):
                calls.append(1)
                return list, (list(self.items),)
        class Mine: pass
        def f(pair): return list(getattr(pair[0], 'items', pair[0])), isinstance(pair[1], Mine)
        """,
        "print(*p.apply(f, ((Once(iter([1, 2, 3])), Mine()),)), len(calls))",
    ),
    "errors": (
        """
        class MyError(Exception):
            def __init__(self, a, b):
                super().__init__(a, b)
                self.b = b
        class Sub(MyError): pass
        def f(x): raise Sub("bad", x)
        """,
        """
        try:
            p.map(f, [7])
        except MyError as error:
            print(type(error) is Sub, error.args, error.b)
        """,
    ),
    "counter_in_worker": (
        """
        n = 0
        def count():
            global n
            n += 1
            return n
        def read():
            return n
        """,
        "print([p.apply(count) for _ in range(3)], p.apply(read), n)",
    ),
    "cache_in_worker": (
        """
        seen = {}
        def f(x):
            seen[x] = seen.get(x, 0) + 1
            return len(seen)
        """,
        "print(p.map(f, [1, 1, 2], 1), p.map(f, [3], 1), seen)",
    ),
    "value_changed_by_caller": (
        """
        K = 1
        def f(x):
            return x + K
        """,
        "print(p.map(f, [1])); globals().update(K=10); print(p.map(f, [1]))",
    ),
    "typevar_alias_annotations": (
        """
        import typing
        T = typing.TypeVar("T")
        Number = typing.Union[int, float]
        type Alias = list[int]
        def f(x: Number, y: "Unknown" = 1) -> "list[T]":
            return x + y
        """,
        "print(p.map(f, [1, 2]), p.apply(f, (1,), {'y': 2.5}))",
    ),
    "coroutine_functions": (
        """
        import asyncio
        async def inner(x):
            await asyncio.sleep(0)
            return x + 1
        async def gather(n):
            return await asyncio.gather(*(inner(i) for i in range(n)))
        def f(n):
            return asyncio.run(gather(n))
        """,
        "print(p.map(f, [1, 3]))",
    ),
    "descriptors": (
        """
        class Doubled:
            def __set_name__(self, owner, name): self.name = "_" + name
            def __get__(self, obj, cls=None): return self if obj is None else 2 * getattr(obj, self.name)
            def __set__(self, obj, value): setattr(obj, self.name, value)
        class Uses:
            x = Doubled()
            def __init__(self, x): self.x = x
        def f(u): return u.x
        """,
        "print(p.map(f, [Uses(1), Uses(2)]))",
    ),
    "subclasses_of_builtins": (
        """
        import collections
        class L(list): pass
        class D(dict):
            def __missing__(self, key): return key
        class I(int):
            def __repr__(self): return f"I({int(self)})"
        class S(str): pass
        def f(l, d, i, s):
            return L(l + [1]), D(d), I(i + 1), S(s + "!"), d["none"]
        """,
        "r = p.apply(f, (L([1]), D(a=1), I(3), S('s'))); print(r, [type(x).__name__ for x in r], type(r[0]) is L)",
    ),
    "functions_as_values": (
        """
        def inc(x): return x + 1
        def dec(x): return x - 1
        table = {"inc": inc, "dec": dec}
        def f(name, x): return table[name](x)
        def pick(name): return table[name]
        """,
        "print(p.starmap(f, [('inc', 1), ('dec', 1)]), p.apply(pick, ('inc',)) is inc)",
    ),
    "instances_as_globals": (
        """
        class Config:
            def __init__(self): self.k = 3
            def get(self): return self.k
        config = Config()
        def f(x): return config.get() + x, isinstance(config, Config)
        """,
        "print(p.map(f, [1, 2]))",
    ),
    "weak_references": (
        """
        import weakref
        class Node: pass
        root = Node()
        table = weakref.WeakValueDictionary(root=root)
        def f(x): return table["root"] is root
        """,
        "print(p.map(f, [1]))",
    ),
    "unused_and_opaque": (
        """
        class Opaque:
            def __reduce__(self): raise TypeError("no")
        opaque = Opaque()
        def f(x): return x if x else opaque
        """,
        "print(p.map(f, [1, 2]))",
    ),
}

HEAD = """
import os, sys
KIND = os.environ["KIND"]
def make_pool(*args):
    if KIND.startswith("pool-"):
        import multiprocessing
        return multiprocessing.get_context(KIND[5:]).Pool(1, *args)
    from pool_party import ComposablePool
    kind, _, method = KIND.partition("-")
    return ComposablePool(1, *args, kind=kind, context=method or None)
"""


def text_of(name):
    definitions, body = SCRIPTS[name]
    body = f"with make_pool() as p:\n{textwrap.indent(textwrap.dedent(body), '    ')}"
    return f'{HEAD}{textwrap.dedent(definitions)}\nif __name__ == "__main__":\n{textwrap.indent(body, "    ")}\n'
