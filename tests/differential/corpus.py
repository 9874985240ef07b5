"""Values of all kinds, which functions make, and the task with which the pools are compared."""

import array
import collections
import contextvars
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import ipaddress
import itertools
import logging
import operator
import pathlib
import queue
import random
import re
import string
import struct
import threading
import types
import typing
import uuid
import weakref
import zoneinfo


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()


@dataclasses.dataclass
class Point:
    x: int
    y: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: int


class Slotted:
    __slots__ = ("a", "b")

    def __eq__(self, other):
        return type(other) is Slotted


class Listy(list):
    pass


class Dicty(dict):
    extra = None


class Stateful:
    def __init__(self):
        self.n = 1

    def __getstate__(self):
        return {"n": self.n + 1}


class Texty(str):
    pass


class Failing:
    def __reduce__(self):
        raise ZeroDivisionError("cannot be reduced")


class Error(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code

    def __reduce__(self):
        return Error, (self.code, str(self))


Pair = collections.namedtuple("Pair", "left right")


class Typed(typing.NamedTuple):
    name: str
    size: int = 0


def generator():
    yield 1


def with_attribute():
    listy = Listy([1, 2])
    listy.attribute = "kept"
    return listy


def cycle():
    values = [1]
    values.append(values)
    return values


def twice(value):
    return [value, (value, {"again": value})]


SIMPLE = {
    "None": lambda: None,
    "True": lambda: True,
    "ellipsis": lambda: ...,
    "NotImplemented": lambda: NotImplemented,
    "zero": lambda: 0,
    "minus one": lambda: -1,
    "int64 max": lambda: 2**63 - 1,
    "int64 min": lambda: -(2**63),
    "int65": lambda: 2**64,
    "huge int": lambda: 10**400,
    "float": lambda: 1.5,
    "negative zero": lambda: -0.0,
    "infinity": lambda: float("inf"),
    "complex": lambda: 1 + 2j,
    "empty text": lambda: "",
    "text": lambda: "text",
    "latin text": lambda: "é" * 5,
    "wide text": lambda: "\u20ac" * 5,
    "astral text": lambda: "\U0001f600" * 5,
    "surrogate": lambda: "\ud800",
    "nul": lambda: "a\0b",
    "bytes": lambda: b"bytes",
    "empty bytes": lambda: b"",
    "bytearray": lambda: bytearray(b"bytes"),
    "empty tuple": tuple,
    "empty list": list,
    "empty dict": dict,
    "set": lambda: {1, "a"},
    "frozenset": lambda: frozenset([1, 2]),
    "range": lambda: range(1, 10, 3),
    "slice": lambda: slice(1, None, 2),
}
LARGE = {
    "large text": lambda: "t" * 100_000,
    "large wide text": lambda: "\u20ac" * 100_000,
    "large astral text": lambda: "\U0001f600" * 50_000,
    "large bytes": lambda: bytes(range(256)) * 1000,
    "large bytearray": lambda: bytearray(100_000),
    "huge bytes": lambda: bytes(5 << 20),
    "floats": lambda: [0.5] * 20_000,
    "ints": lambda: list(range(20_000)),
    "large ints": lambda: [2**70] * 2000,
    "mixed numbers": lambda: [1, 2.0] * 5000,
    "bools": lambda: [True, False] * 5000,
    "texts": lambda: [str(i) for i in range(5000)],
    "pairs": lambda: [(i, str(i)) for i in range(3000)],
    "dict": lambda: {i: str(i) for i in range(3000)},
    "nested": lambda: [[[[[[1], 2], 3], 4], 5], 6],
    "array": lambda: array.array("d", range(10_000)),
}
STANDARD = {
    "date": lambda: datetime.date(2024, 2, 29),
    "datetime": lambda: datetime.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=datetime.UTC),
    "fold": lambda: datetime.datetime(2024, 10, 27, 2, 30, fold=1),
    "time": lambda: datetime.time(1, 2, 3),
    "timedelta": lambda: datetime.timedelta(1, 2, 3),
    "timezone": lambda: datetime.timezone(datetime.timedelta(hours=2), "name"),
    "zone": lambda: zoneinfo.ZoneInfo("UTC"),
    "decimal": lambda: decimal.Decimal("1.10"),
    "decimal context": lambda: decimal.Context(prec=5),
    "fraction": lambda: fractions.Fraction(1, 3),
    "uuid": lambda: uuid.UUID(int=5),
    "path": lambda: pathlib.Path("a/b"),
    "pure windows path": lambda: pathlib.PureWindowsPath("c:/a"),
    "pattern": lambda: re.compile("a(b)", re.IGNORECASE),
    "address": lambda: ipaddress.ip_network("10.0.0.0/8"),
    "random": lambda: random.Random(5),
    "deque": lambda: collections.deque([1, 2], maxlen=5),
    "counter": lambda: collections.Counter("aab"),
    "ordered": lambda: collections.OrderedDict(b=1, a=2),
    "defaultdict": lambda: collections.defaultdict(list, a=[1]),
    "chain": lambda: collections.ChainMap({"a": 1}, {"b": 2}),
    "userdict": lambda: collections.UserDict(a=1),
    "namedtuple": lambda: Pair(1, [2]),
    "typed": lambda: Typed("a", 5),
    "namespace": lambda: types.SimpleNamespace(a=1),
    "proxy": lambda: types.MappingProxyType({"a": 1}),
    "array of ints": lambda: array.array("i", [1, 2]),
    "array of characters": lambda: array.array("w" if "w" in array.typecodes else "u", "ab"),
    "bytesio": lambda: io.BytesIO(b"bytes"),
    "stringio": lambda: io.StringIO("text"),
    "struct": lambda: struct.Struct("<i"),
    "template": lambda: string.Template("$a"),
    "itemgetter": lambda: operator.itemgetter(1, 2),
    "attrgetter": lambda: operator.attrgetter("a.b"),
    "methodcaller": lambda: operator.methodcaller("upper"),
    "partial": lambda: functools.partial(int, base=2),
    "function": lambda: os_getcwd,
    "builtin": lambda: len,
    "method": lambda: [3, 1].index,
    "unbound method": lambda: list.append,
    "bound method": lambda: Point(1, []).__repr__,
    "class": lambda: Point,
    "builtin class": lambda: dict,
    "exception": lambda: ValueError("text", 1),
    "own exception": lambda: Error(5, "text"),
    "group": lambda: ExceptionGroup("group", [ValueError(1), KeyError("a")]),
    "oserror": lambda: FileNotFoundError(2, "text", "name"),
    "alias": lambda: list[int],
    "union": lambda: int | str,
    "typing alias": lambda: typing.Literal[1, "a"],
    "typevar": lambda: typing.Any,
    "logger": lambda: logging.getLogger("differential"),
    "null logger handler": lambda: logging.NullHandler,
    "enum": lambda: Colour.RED,
    "int enum": lambda: Level.LOW,
    "flag": lambda: Flags.A | Flags.B,
    "enum class": lambda: Colour,
    "dataclass": lambda: Point(1, [2]),
    "frozen dataclass": lambda: Frozen(1),
    "slots": Slotted,
    "list subclass": with_attribute,
    "dict subclass": lambda: Dicty(a=1),
    "text subclass": lambda: Texty("text"),
    "stateful": lambda: vars(Stateful()),
    "cycle": cycle,
    "count": lambda: itertools.count,
    "weak reference's class": lambda: weakref.ref,
    "context variable's class": lambda: contextvars.ContextVar,
}
REFUSED = {
    "lock": threading.Lock,
    "reentrant lock": threading.RLock,
    "event": threading.Event,
    "queue": queue.Queue,
    "generator": generator,
    "file": lambda: io.FileIO(0, closefd=False),
    "weak reference": lambda: weakref.ref(Point),
    "context": contextvars.copy_context,
    "context variable": lambda: contextvars.ContextVar("name"),
    "module": lambda: types,
    "frame": lambda: __import__("sys")._getframe(),
    "code": lambda: generator.__code__,
    "memoryview": lambda: memoryview(b"bytes"),
    "mappingproxy of a class": lambda: vars(Point),
    "thread": lambda: threading.Thread(target=len),
    "thread local": threading.local,
    "raises while it is reduced": Failing,
    "lambda": lambda: lambda: 1,
    "local class": lambda: type("Local", (), {}),
    "traceback": lambda: _traceback(),
    "dict keys": lambda: {"a": 1}.keys(),
    "iterator of a set": lambda: iter({1}),
}


def os_getcwd():
    return "a function of this module"


def _traceback():
    try:
        raise ValueError
    except ValueError as error:
        return error.__traceback__


def _of_numpy():
    try:
        import numpy
    except ImportError:
        return {}
    made = {
        f"{n} of {dtype}": functools.partial(lambda dtype, n: numpy.zeros(n).astype(dtype), dtype, n)
        for dtype in "? i1 u2 <i4 >i4 i8 f2 f4 f8 >f8 g c8 c16 S3 U3 M8[s] m8[D] O".split()
        for n in (0, 3, 20_000)
    }
    return {
        **made,
        "fortran": lambda: numpy.asfortranarray(numpy.arange(20_000.0).reshape(100, 200)),
        "strided": lambda: numpy.arange(40_000.0)[::2],
        "reversed": lambda: numpy.arange(20_000.0)[::-1],
        "permuted": lambda: numpy.arange(24_000.0).reshape(20, 30, 40).transpose(1, 0, 2),
        "broadcast": lambda: numpy.broadcast_to(numpy.arange(100.0), (100, 100)),
        "read-only": lambda: _read_only(numpy.arange(20_000.0)),
        "no dimension": lambda: numpy.array(1.5),
        "no size": lambda: numpy.zeros((0, 5)),
        "records": lambda: numpy.zeros(3000, [("a", "i4"), ("b", "f8")]),
        "masked": lambda: numpy.ma.masked_array([1, 2], [True, False]),
        "matrix of objects": lambda: numpy.array([[1, "a"], [None, 2.5]], dtype=object),
        "scalar": lambda: numpy.float32(1.5),
        "date scalar": lambda: numpy.datetime64("2024-01-01"),
        "dtype": lambda: numpy.dtype([("a", "i4")]),
        "ufunc": lambda: numpy.add,
        "generator of numbers": lambda: numpy.random.default_rng(5),
        "texts of any length": lambda: numpy.array(["a", "b" * 100], dtype=numpy.dtypes.StringDType()),
        "aligned records": lambda: numpy.zeros(3000, numpy.dtype([("a", "i1"), ("b", "f8")], align=True)),
        "records with arrays": lambda: numpy.ones(3000, [("a", "i2", (2, 3)), ("b", [("c", ">f4")])]),
        "record array": lambda: numpy.rec.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        "matrix": lambda: numpy.arange(20_000.0).reshape(100, 200).view(numpy.matrix),
        "bytes without a type": lambda: numpy.zeros(5, "V7"),
        "long doubles": lambda: numpy.arange(3000, dtype="g"),
        "dtype with metadata": lambda: numpy.zeros(3, numpy.dtype("i4", metadata={"a": 1})),
        "unaligned": lambda: numpy.zeros(80_001, "u1")[1:].view("f8"),
        "a part of records": lambda: numpy.zeros(20_000, [("a", "i4"), ("b", "f8")])["b"],
        "swapped and reversed": lambda: numpy.arange(20_000, dtype=">i4")[::-2],
        "no strides": lambda: numpy.lib.stride_tricks.as_strided(numpy.arange(5.0), (5000,), (0,)),
        "overlapping": lambda: numpy.lib.stride_tricks.sliding_window_view(numpy.arange(500.0), 50),
        "many dimensions": lambda: numpy.zeros((1,) * 30 + (2,)),
        "two views": lambda: (lambda whole: [whole[:10_000], whole[5_000:]])(numpy.arange(20_000.0)),
        "an array in itself": lambda: _in_itself(numpy.empty(2, object)),
        "text scalar": lambda: numpy.str_("text"),
        "record scalar": lambda: numpy.zeros(1, [("a", "i4")])[0],
        "long scalar": lambda: numpy.longdouble(1) / 3,
        "poly": lambda: numpy.polynomial.Polynomial([1, 2]),
        "old generator": lambda: numpy.random.RandomState(5),
    }


def _in_itself(array):
    array[0] = array
    return array


def _read_only(array):
    array.flags.writeable = False
    return array


def _of_pandas():
    try:
        import pandas
    except ImportError:
        return {}
    return {
        "data frame": lambda: pandas.DataFrame({"a": range(5000), "b": [str(i) for i in range(5000)]}),
        "series": lambda: pandas.Series([1.0, None]),
        "index": lambda: pandas.date_range("2024-01-01", periods=5),
        "categories": lambda: pandas.Categorical(["a", "b", "a"]),
        "timestamp": lambda: pandas.Timestamp("2024-01-01"),
        "interval": lambda: pandas.Interval(0, 1),
    }


GROUPS = {
    "None, numbers, short strings and bytes, small containers": SIMPLE,
    "large strings, bytes, lists, dicts, `array.array`": LARGE,
    "the standard library, enums, dataclasses, own classes, exceptions; functions and classes by name": {
        **STANDARD,
        **REFUSED,
    },
    "NumPy: arrays of all types and layouts, scalars, dtypes, generators": _of_numpy(),
    "pandas: frames, series, indexes, categories, scalars": _of_pandas(),
}


def values():
    """Yield all values: alone, two and three times in one value, beside a large object, and in a dict."""
    for name, make in itertools.chain.from_iterable(group.items() for group in GROUPS.values()):
        yield name, make
        if name not in REFUSED:
            yield f"{name}, in a pair", functools.partial(lambda make: (lambda value: (value, value))(make()), make)
            yield f"{name}, twice", functools.partial(lambda make: twice(make()), make)
            yield f"{name}, beside bytes", functools.partial(lambda make: (b"b" * 50_000, make()), make)
            yield f"{name}, in a dict", functools.partial(lambda make: {"key": make(), "other": [1.5] * 600}, make)


def describe(value, depth=6):
    """Describe everything about a value that can be compared between processes.

    Addresses are left out, and identities are numbers.
    """
    return _describe(value, {}, depth)


def _describe(value, seen, depth):
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if type(value) in (float, complex):
        return kind, struct.pack("dd", value.real, value.imag).hex()
    if isinstance(value, int | float | complex | None | type(...)):
        return kind, repr(value)
    if id(value) in seen:
        return "again", seen[id(value)]
    if not (isinstance(value, str | bytes | tuple) and len(value) < 2):
        seen[id(value)] = len(seen)
    if depth == 0:
        return kind
    if isinstance(value, dict):
        items = [(_describe(k, seen, depth - 1), _describe(v, seen, depth - 1)) for k, v in list(value.items())[:50]]
        return kind, len(value), items, _attributes(value, seen, depth)
    if isinstance(value, list | tuple | collections.deque):
        items = [_describe(item, seen, depth - 1) for item in list(value)[:50]]
        return kind, len(value), items, _attributes(value, seen, depth)
    if isinstance(value, set | frozenset):
        return kind, sorted(map(repr, value))
    if isinstance(value, str | bytes | bytearray):
        return kind, len(value), value[:100], value[-100:]
    if hasattr(value, "__array_interface__") and kind.startswith("numpy.") and "masked" not in kind.lower():
        return _describe_array(kind, value, seen, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return kind, [_describe(field, seen, depth - 1) for field in fields]
    return kind, _text(value), _attributes(value, seen, depth)


def _describe_array(kind, array, seen, depth):
    if array.dtype.hasobject:
        content = [_describe(item, seen, depth - 1) for item in array.ravel().tolist()[:50]]
    elif _is_exact(array.dtype):
        content = array.tobytes()
    else:
        content = repr(array.tolist()[:50] if array.ndim else array.item())
    return (
        kind,
        repr(array.dtype),
        dict(array.dtype.metadata or {}),
        array.shape,
        array.strides,
        repr(array.flags),
        content,
    )


def _is_exact(dtype):
    """Return whether all bytes of the type are significant."""
    if dtype.subdtype:
        return _is_exact(dtype.subdtype[0])
    if dtype.names:
        parts = [dtype[name] for name in dtype.names]
        return all(map(_is_exact, parts)) and sum(part.itemsize for part in parts) == dtype.itemsize
    return dtype.char not in "gGT"


def _attributes(value, seen, depth):
    attributes = getattr(value, "__dict__", None)
    if not isinstance(attributes, dict) or isinstance(value, type | types.ModuleType | types.FunctionType):
        return None
    return [(k, _describe(v, seen, depth - 1)) for k, v in attributes.items() if not k.startswith("_")]


def _text(value):
    if hasattr(value, "bit_generator"):
        return repr(value.bit_generator.state)
    if hasattr(value, "get_state"):
        return repr(value.get_state())
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def echo(value):
    """Return the worker's description of the value that it got, and the value itself."""
    return describe(value), value


def outcome(pool, value):
    """Return the descriptions of the value in the task and in the caller, or the type of the error."""
    try:
        seen, back = pool.apply_async(echo, (value,)).get(60)
    except Exception as error:
        return "error", type(error).__name__
    return seen, describe(back)
