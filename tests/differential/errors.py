"""Exceptions of all kinds, raised in tasks, with all of their parts that the caller can see."""

import builtins
import re

import corpus


def _builtin_errors():
    special = {
        "UnicodeDecodeError": lambda cls: cls("utf-8", b"\xff", 0, 1, "reason"),
        "UnicodeEncodeError": lambda cls: cls("ascii", "\xe9", 0, 1, "reason"),
        "UnicodeTranslateError": lambda cls: cls("text", 0, 1, "reason"),
        "ExceptionGroup": lambda cls: cls("group", [ValueError(1), cls("inner", [KeyError("a")])]),
        "SyntaxError": lambda cls: cls("text", ("file.py", 3, 5, "a b", 3, 7)),
        "OSError": lambda cls: cls(2, "text", "name", None, "other name"),
        "ImportError": lambda cls: cls("text", name="name", path="path"),
        "NameError": lambda cls: cls("text", name="name"),
        "AttributeError": lambda cls: cls("text", name="name", obj=5),
        "StopIteration": lambda cls: cls("value"),
    }
    for name, cls in sorted(vars(builtins).items()):
        if isinstance(cls, type) and issubclass(cls, Exception) and cls.__name__ == name:
            yield name, lambda cls=cls, name=name: special.get(name, lambda cls: cls("text", 5))(cls)


class Plain(Exception):
    pass


class WithState(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.details = {"a": [1]}


class Reduced(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code

    def __reduce__(self):
        return Reduced, (self.code, str(self))


class Becomes(Exception):
    """An error that becomes another one when it is sent."""

    def __reduce__(self):
        return KeyError, ("became",)


class NoReason(Exception):
    """An error with an empty message."""

    def __str__(self):
        return ""


class Slotted(Exception):
    __slots__ = ("code",)


class Opaque(Exception):
    """An error that cannot be pickled."""

    def __init__(self, text):
        super().__init__(text)
        self.held = (i for i in range(3))


class Refuses(Exception):
    def __reduce__(self):
        raise ZeroDivisionError("not reduced")


class BadText(Exception):
    def __str__(self):
        raise ZeroDivisionError("no text")

    __repr__ = __str__


class Group(ExceptionGroup):
    def derive(self, errors):
        return Group(self.message, errors)


class Mixed(KeyError, AttributeError):
    pass


def _raise_chained():
    try:
        raise KeyError("inner")
    except KeyError as inner:
        raise ValueError("outer") from inner


def _raise_with_context():
    try:
        raise KeyError("inner")
    except KeyError:
        raise ValueError("outer")  # noqa: B904


def _raise_without_context():
    try:
        raise KeyError("inner")
    except KeyError:
        raise ValueError("outer") from None


def _raise_with_notes():
    error = ValueError("text")
    error.add_note("a note")
    error.add_note("another")
    raise error


def _raise_with_notes_in_a_group():
    inner = KeyError("inner")
    inner.add_note("of the inner one")
    raise Group("group", [inner, WithState("text")])


def _raise_with_attributes():
    error = ValueError("text")
    error.details = Plain("held")
    raise error


def _raise_itself_as_argument():
    error = ValueError("text")
    error.args = (error,)
    raise error


def _raise_large():
    raise ValueError(b"x" * 5_000_000, [1.5] * 10_000)


def _raise_deep():
    return _raise_deep()


def _raise_assertion():
    assert 1 == 2, ["a", "list"]


def _raise_by_the_interpreter(code):
    return lambda: exec(compile(code, "<task>", "exec"), {})


RAISED = {
    "with a cause": _raise_chained,
    "with a context": _raise_with_context,
    "without its context": _raise_without_context,
    "with notes": _raise_with_notes,
    "notes in a group": _raise_with_notes_in_a_group,
    "with attributes": _raise_with_attributes,
    "its own argument": _raise_itself_as_argument,
    "large": _raise_large,
    "recursion": _raise_deep,
    "assertion": _raise_assertion,
    "missing key": _raise_by_the_interpreter("{}[('a', 1)]"),
    "missing name": _raise_by_the_interpreter("missing_name"),
    "missing attribute": _raise_by_the_interpreter("(5).missing"),
    "missing module": _raise_by_the_interpreter("import missing.module"),
    "missing file": _raise_by_the_interpreter("open('/missing/file')"),
    "bad syntax": _raise_by_the_interpreter("compile('a b', 'file.py', 'exec')"),
    "bad bytes": _raise_by_the_interpreter("b'\\xff'.decode()"),
    "bad number": _raise_by_the_interpreter("int('a')"),
    "bad call": _raise_by_the_interpreter("len(1, 2)"),
    "unpacking": _raise_by_the_interpreter("a, b = 1,"),
    "json": _raise_by_the_interpreter("import json; json.loads('{')"),
    "decimal": _raise_by_the_interpreter("import decimal; decimal.Decimal(1) / 0"),
    "struct": _raise_by_the_interpreter("import struct; struct.unpack('i', b'')"),
    "subprocess": _raise_by_the_interpreter("import subprocess; raise subprocess.CalledProcessError(3, ['a'], b'out')"),
    "queue": _raise_by_the_interpreter("import queue; queue.Queue().get_nowait()"),
    "pickle": _raise_by_the_interpreter("import pickle; pickle.loads(b'bad')"),
    "regular expression": _raise_by_the_interpreter("import re; re.compile('(')"),
    "unicode name": _raise_by_the_interpreter("import unicodedata; unicodedata.lookup('none such')"),
    "timeout": _raise_by_the_interpreter("import queue; queue.Queue().get(timeout=0)"),
}
MADE = {
    **dict(_builtin_errors()),
    "Plain": lambda: Plain(1, "a", [2]),
    "Plain without arguments": Plain,
    "WithState": lambda: WithState("text"),
    "Reduced": lambda: Reduced(5, "text"),
    "Becomes": lambda: Becomes("text"),
    "NoReason": lambda: NoReason(1),
    "Slotted": lambda: Slotted("text"),
    "Opaque": lambda: Opaque("text"),
    "Refuses": lambda: Refuses("text"),
    "BadText": lambda: BadText("text"),
    "Group": lambda: Group("group", [Plain(1)]),
    "Mixed": lambda: Mixed("text"),
    "with a lambda": lambda: Plain(lambda: 1),
    "a class as an argument": lambda: Plain(Plain, ValueError),
}
NAMES = (*MADE, *RAISED)


def fail(name):
    if name in RAISED:
        RAISED[name]()
    raise MADE[name]()


_FRAME_OF_POOL = re.compile(
    r'^[ |]*File "[^"]*/multiprocessing/pool.py", line .*\n(?:[ |]+(?!File ").*\n)*?(?=[ |]*File "|\S)', re.M
)


def _without_our_note(attributes):
    """Leave out the note that says which item has failed, which `multiprocessing` does not add."""
    notes = attributes.get("__notes__")
    if not isinstance(notes, list):
        return attributes
    others = [note for note in notes if not str(note).startswith("pool_party: in ")]
    return {
        key: others if key == "__notes__" else value
        for key, value in attributes.items()
        if key != "__notes__" or others
    }


def describe(error, depth=4):
    """Describe an exception, except for the place where it was raised, since the caller's side adds frames."""
    if error is None or depth == 0:
        return None
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    text = _text(error)
    if kind == "multiprocessing.pool.RemoteTraceback":
        return kind, _FRAME_OF_POOL.sub("", text)
    attributes = {key: corpus.describe(value) for key, value in _without_our_note(vars(error)).items()}
    names = (
        "name",
        "obj",
        "path",
        "errno",
        "strerror",
        "filename",
        "filename2",
        "lineno",
        "offset",
        "value",
        "object",
        "start",
        "reason",
    )
    special = {name: corpus.describe(getattr(error, name, "missing")) for name in names}
    inner = [describe(part, depth - 1) for part in getattr(error, "exceptions", ())]
    args = corpus.describe(error.args)
    around = describe(error.__cause__, depth - 1), describe(error.__context__, depth - 1), error.__suppress_context__
    return kind, text, args, attributes, special, inner, around


def _text(error):
    try:
        return re.sub(r"0x[0-9a-f]+|(?<=repeated )\d+", "", str(error))[-10_000:]
    except ZeroDivisionError:
        return "no text"
