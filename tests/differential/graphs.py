# ruff: noqa: E501  # each definition is a line
"""Programs that are composed of definitions, whose objects refer to each other. A seed gives a program, and changes of it.

In a definition, {n} is its name, {i} a number, {o} the name of an earlier object, {c} that of an earlier class, and {f}
that of an earlier function. The letter before it says what the definition gives: c, f, or o, or x for none of them.
"""

import random

HEAD = """
import abc, collections, contextlib, dataclasses, enum, functools, operator, types, typing
class Root: pass
def helper(x=0): return x
thing = Root()
registry = {}
"""

DEFINITIONS = [
    ("c", "class {n}:\n    x = {i}\n    part = {o}\n    def m(self): return {n}, self.x"),
    ("c", "class {n}({c}):\n    def m(self): return super().__init__()"),
    ("c", "class {n}({c}):\n    'text'\n    alias = {f}\n    base = {c}\n    seen = [{o}]"),
    ("o", "{n} = object()\ndef {n}_f(x={n}, *, y={o}): return x is {n}, {n}_f\nclass {n}_C:\n    default = {n}"),
    ("o", "{n} = [{o}, {o}, {i}]"),
    ("o", "{n} = {{'a': {o}, 'b': [{o}], 'f': {f}, 'c': {c}}}"),
    ("o", "{n} = ({o}, ({i}, {c}))"),
    ("o", "{n} = {c}"),
    (
        "o",
        "class {n}_N: pass\n{n} = {n}_N()\n{n}.peer = {n}_N()\n{n}.peer.peer = {n}\n{n}.other = {o}\n{n}_again = {n}.peer",
    ),
    ("o", "{n}_part = [{i}]\n{n} = [{n}_part]\n{n}_b = {{'k': {n}_part}}\ndel {n}_part"),
    ("o", "{n} = []\n{n}.append({n})\n{n}.append({o})"),
    (
        "f",
        "def {n}_make():\n    n = {i}\n    def inc():\n        nonlocal n\n        n += 1\n        return n\n"
        "    def get(): return n\n    return inc, get\n{n}, {n}_get = {n}_make()",
    ),
    ("f", "def {n}(x, y={i}):\n    'text of {n}'\n    return x, {f}, {c}"),
    ("f", "{n} = lambda x=({o}): (x, {f})"),
    ("f", "def {n}(x): return {n}_g, {o}\ndef {n}_g(x): return {n}\n{n}.note = {n}_g\n{n}_g.note = {n}"),
    ("f", "def {n}(x: {c}, *a: 'later') -> list[int]: return x"),
    ("f", "def {n}[T](x: T) -> T: return x"),
    ("f", "@functools.lru_cache(maxsize={i})\ndef {n}(x): return {f}"),
    (
        "f",
        "def {n}_d(f):\n    @functools.wraps(f)\n    def inner(*a): return f(*a)\n    return inner\n@{n}_d\ndef {n}(x): return x",
    ),
    (
        "f",
        "def {n}_d(f):\n    def inner(*a): return f(*a)\n    return inner\n@{n}_d\ndef {n}(x): return x\n{n}_e = {n}_d({f})",
    ),
    (
        "o",
        "class {n}_W:\n    def __init__(self, f):\n        self.f = f\n        functools.update_wrapper(self, f)\n"
        "    def __call__(self): return self.f()\n@{n}_W\ndef {n}(x: int = {i}): return {o}",
    ),
    ("f", "@contextlib.contextmanager\ndef {n}(x=None): yield {o}"),
    (
        "f",
        "@functools.singledispatch\ndef {n}(x): return 0\n@{n}.register\ndef _(x: int): return {c}\n@{n}.register({c})\ndef {n}_r(x): return 2",
    ),
    ("o", "{n} = functools.partial({f}, {o}, k={c})"),
    ("o", "{n} = operator.itemgetter({i})\n{n}_d = {{'k': {o}}}\n{n}_get = {n}_d.get"),
    ("c", "class {n}:\n    def m(self): return {o}\n    alias = m\n{n}_bound = {n}().m\n{n}_m = {n}.m"),
    (
        "c",
        "class {n}:\n    class Inner:\n        class Deep: x = {i}\n        peer = {o}\n    def make(self): return {n}.Inner()\n{n}_i = {n}.Inner.Deep()",
    ),
    (
        "c",
        "class {n}:\n    __slots__ = ('a', '__b')\n    def __init__(self, a={o}): self.a, self.__b = a, {i}\n{n}_o = {n}()",
    ),
    (
        "c",
        "class {n}({c}):\n    all = []\n    def __init_subclass__(cls, *, key, **kw):\n        {n}.all.append(cls); cls.key = key; registry[key] = cls\nclass {n}_S({n}, key='{n}'): pass",
    ),
    (
        "c",
        "class {n}_M(type):\n    made = []\n    def __new__(m, name, bases, ns, **kw):\n        cls = super().__new__(m, name, bases, ns)\n"
        "        m.made.append(cls); cls.tag = name.lower()\n        return cls\n    def __call__(cls, *a): return super().__call__(*a)\n"
        "class {n}(metaclass={n}_M, k=1):\n    peer = {o}",
    ),
    (
        "c",
        "class {n}_M(type):\n    @classmethod\n    def __prepare__(m, name, bases): return collections.OrderedDict(extra={i})\nclass {n}(metaclass={n}_M):\n    b = 1\n    a = 2",
    ),
    (
        "c",
        "class {n}_D:\n    def __set_name__(self, owner, name): self.name = '_' + name; registry[name + '{n}'] = owner\n"
        "    def __get__(self, o, c=None): return self if o is None else {i}\nclass {n}:\n    z = {n}_D()\n    a = {n}_D()",
    ),
    (
        "c",
        "@dataclasses.dataclass\nclass {n}:\n    x: int\n    y: list = dataclasses.field(default_factory=list)\n    z: typing.ClassVar = {o}\n{n}_o = {n}({i})",
    ),
    (
        "c",
        "@dataclasses.dataclass(frozen=True, slots=True)\nclass {n}:\n    x: int = {i}\n    link: '{n} | None' = None\n{n}_o = {n}()",
    ),
    (
        "c",
        "class {n}(enum.Enum):\n    RED = {i}\n    BLUE = 'b'\n    ALIAS = 'b'\n    def low(self): return {n}.RED\n{n}_r = {n}.RED",
    ),
    ("c", "class {n}(enum.Flag):\n    A = 1\n    B = 2\n    AB = 3\n{n}_l = [{n}.A, {n}.AB]"),
    (
        "c",
        "class {n}(enum.IntEnum):\n    X = {i}\nclass {n}_S(enum.StrEnum):\n    Y = enum.auto()\n{n}_l = ({n}.X, {n}_S.Y)",
    ),
    (
        "o",
        "@dataclasses.dataclass(frozen=True)\nclass {n}_Mix:\n    a: int\n    b: int\nclass {n}_E({n}_Mix, enum.Enum):\n    A = 1, {i}\n    B = 3, 4\n{n} = {n}_E.A",
    ),
    (
        "o",
        "class {n}_E(enum.Enum):\n    A = {i}\n    def __init__(self, x): self.extra = [x]; self.peer = None\n{n}_E.A.peer = {n}_E.A\n{n} = {n}_E.A",
    ),
    (
        "c",
        "class {n}(typing.NamedTuple):\n    a: int\n    b: str = 'b'\n    def swap(self): return {n}(self.b)\n{n}_o = {n}({i})",
    ),
    ("c", "{n} = collections.namedtuple('{n}', 'a b')\n{n}_o = {n}({i}, {o})"),
    ("x", "class {n}(typing.TypedDict, total=False):\n    a: typing.Required[int]\n    b: '{n}'"),
    (
        "x",
        "class {n}(typing.Protocol):\n    name: str\n    def hi(self) -> str: ...\nclass {n}_A:\n    name = 'a'\n    def hi(self): return 'x'",
    ),
    ("x", "@typing.runtime_checkable\nclass {n}(typing.Protocol):\n    def hi(self) -> '{n}': ..."),
    (
        "c",
        "class {n}_B(abc.ABC):\n    side: int = {i}\n    @abc.abstractmethod\n    def area(self) -> float: ...\nclass {n}({n}_B):\n    def area(self): return {o}\nclass {n}_V: pass\n{n}_B.register({n}_V)",
    ),
    (
        "c",
        "{n}_T = typing.TypeVar('{n}_T', bound={c})\nclass {n}(typing.Generic[{n}_T]):\n    def get(self, x: {n}_T) -> {n}_T: return x\nclass {n}_I({n}[int]): pass",
    ),
    ("c", "class {n}[T, *Ts]:\n    item: T\n    def get(self) -> T: return {o}\n{n}_o = {n}()"),
    ("x", "type {n} = list[int] | {c}\n{n}.__value__\ndef {n}_f(x: {n}): return {n}"),
    (
        "c",
        "class {n}:\n    def m(self, a, b): return a\n    pm = functools.partialmethod(m, {i})\n    p = functools.partial(max, 1)",
    ),
    (
        "c",
        "class {n}:\n    @functools.singledispatchmethod\n    def m(self, x): return 0\n    @m.register\n    def _(self, x: int): return {o}",
    ),
    (
        "c",
        "class {n}:\n    @functools.cached_property\n    def cp(self): return {i}\n    @property\n    def p(self): return 1\n    @p.setter\n    def p(self, v): pass\n    @classmethod\n    def k(cls): return cls\n    @staticmethod\n    def s(): return {f}",
    ),
    (
        "c",
        "class {n}_A:\n    def hi(self): return 'A'\nclass {n}_B({n}_A): pass\nclass {n}_M:\n    def hi(self): return 'M'\nclass {n}({n}_B, {n}_M):\n    hi = {n}_M.hi",
    ),
    ("c", "class {n}:\n    pass\n{n}.first = {n}()\n{n}.first.peers = [{n}.first, {n}, {o}]"),
    (
        "c",
        "class {n}(Exception):\n    def __init__(self, a, b={o}):\n        super().__init__(a)\n        self.b = b\n{n}_e = {n}({i})",
    ),
    (
        "c",
        "class {n}(dict):\n    def __missing__(self, k): return {o}\n{n}_d = {n}(a={i}, b={o})\nclass {n}_L(list): pass\n{n}_l = {n}_L([{n}_d])",
    ),
    (
        "o",
        "def {n}_make():\n    class Local:\n        x = {o}\n        def m(self): return Local\n    return Local(), Local\n{n}, {n}_cls = {n}_make()\n{n}_l = [{n}, {n}_cls]",
    ),
    ("o", "{n} = types.ModuleType('{n}_mod')\n{n}.x = {i}\n{n}.o = {o}"),
    (
        "o",
        "{n} = types.SimpleNamespace(a={o}, f={f}, c={c}())"
        if False
        else "{n} = types.SimpleNamespace(a={o}, f={f}, c={c})",
    ),
    ("o", "class {n}_S:\n    def __reduce__(self): return '{n}'\n{n} = {n}_S()\ndef {n}_f(x={n}): return x is {n}"),
    ("x", "{n}_U = typing.NewType('{n}_U', int)\ndef {n}_f(x: {n}_U): return {n}_U(x)"),
    (
        "o",
        "{n} = collections.deque([{o}])\n{n}_d = collections.defaultdict({c}, a={o})\n{n}_c = collections.ChainMap({n}_d)",
    ),
    ("f", "def {n}(x): return x\n{n}.__wrapped__ = {f}\n{n}.owner = {c}"),
    ("f", "async def {n}(x={o}): return x\nasync def {n}_g():\n    yield {c}"),
]

# What a user changes in a session between two calls. {g} is the name of any global.
CHANGES = [
    "{o}_new = 1",
    "registry['new'] = {c}",
    "thing.x = {i}",
    "thing.o = {o}",
    "thing = Root()",
    "{f}.__doc__ = 'new {i}'",
    "{f}.note = {i}",
    "{f}.owner = {o}",
    "helper.__defaults__ = ({i},)",
    "helper.__name__ = 'other{i}'",
    "helper.__annotations__['q'] = int",
    "def helper(x={i}): return x, thing",
    "def {f}(x={o}): return x",
    "class Root: y = {i}",
    "Root.z = {o}",
    "Root.w = {i}\ndel Root.w",
    "class {c}: again = {i}",
    "{o} = [{i}]",
    "{o} = {o}",
    "registry.clear()",
    "registry = {{'a': {o}}}",
    "del {f}",
]


class Program:
    """A program: its text, and the names that it defines."""

    def __init__(self, seed, n=8):
        self.random = random.Random(seed)
        self.names = {"c": ["Root"], "f": ["helper"], "o": ["thing", "registry"]}
        self.text = HEAD
        for number in range(n):
            kind, template = self.random.choice(DEFINITIONS)
            name = f"v{number}"
            self.text += self._fill(template, name) + "\n"
            if kind in self.names:
                self.names[kind].append(name)

    def _fill(self, template, name=""):
        for kind, names in self.names.items():
            while f"{{{kind}}}" in template:
                template = template.replace(f"{{{kind}}}", self.random.choice(names), 1)
        return template.format(n=name, i=self.random.randrange(100))

    def change(self):
        """Return a statement that changes the program."""
        return self._fill(self.random.choice(CHANGES))


LOOK = """
def look(_=0):
    import walk
    return walk.describe({{{pairs}}})
"""


def look_at(namespace):
    """Return the definition of a function that describes all that a namespace contains."""
    names = sorted(name for name in namespace if name[:1] != "_" and name not in ("look", "walk"))
    return LOOK.format(pairs=", ".join(f"{name!r}: {name}" for name in names))
