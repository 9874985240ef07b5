"""The command line of the runner. It imports neither argparse nor typing: every program would wait for them."""

from __future__ import annotations

import os

from pool_party._patching.settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

KINDS = ("process", "thread", "interp", "auto")
SCOPES = ("pool", "machine")
FORMATS = ("text", "json")

HELP = """\
usage: {name} [options] app.py ARGUMENT ...
       {name} [options] -m MODULE ARGUMENT ...
       {name} [options] -c CODE ARGUMENT ...
       {name} [options] - ARGUMENT ...

Run a program unchanged, with the pools of the standard library, joblib and others that it opens replaced by pools of
pool_party. The program may be a file, a directory or a zip file with a __main__.py, a module, code, or standard input.

  -p, --processes N           workers of pools for which the program names no number; default: the CPUs
  -f, --oversubscription X    threads of native libraries for each CPU, of all workers together; default: 1
  --policy NAME               who may use how many threads: {policies}
  --kind KIND                 what replaces processes: {kinds}; default: process
  --scope SCOPE               whose threads share the CPUs: {scopes}; default: pool
  --only PART,...             replace only these: {parts}
  --except PART,...           replace all but these
  --trace FILE                record what the workers of the first pool do; a second pool's file: FILE with -2, etc.
  --report [FORMAT]           tell on standard error, at the end, what was replaced: {formats}; default: text
  -h, --help                  show this
  --version                   show the version
"""
_NO_PROGRAM = "which program is to run? --help shows how it is named"


class UsageError(Exception):
    """The command line is wrong. Its message is one line that says how."""


class Program:
    """What to run. form: "file" (or directory, or zip), "module", "code" or "stdin"."""

    def __init__(self, form: str, target: str, arguments: list[str]) -> None:
        self.form = form
        self.target = target
        self.arguments = arguments


class Request:
    """A command line that was read. trace: a file; report: its format."""

    def __init__(self, program: Program, settings: Settings, trace: str | None, report: str | None) -> None:
        self.program = program
        self.settings = settings
        self.trace = trace
        self.report = report


def policies() -> tuple[str, ...]:
    """Return the names of policies. Imported when asked for."""
    from pool_party._budget.policies import NAMES

    return NAMES


def _parts() -> tuple[str, ...]:
    from pool_party._patching.parts import PARTS

    return PARTS


def help_text(name: str) -> str:
    """Return what `--help` prints. name: how the runner was called."""
    return HELP.format(
        name=name,
        policies=_listed(policies()),
        kinds=_listed(KINDS),
        scopes=_listed(SCOPES),
        formats=_listed(FORMATS),
        parts=", ".join(_parts()),
    )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _one_of(names: Callable[[], Sequence[str]]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names():
            raise UsageError(f"{text!r} is not {_listed(names())}")
        return text

    return read


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):  # importing re would take longer than all this
        raise UsageError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise UsageError(f"{text!r} is not a number above 0")
    return factor


def _some_parts(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        _one_of(_parts)(name)
    return names


def _file(text: str) -> str:
    folder = os.path.dirname(os.path.abspath(text))
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder}")
    return os.path.abspath(text)  # the program may change its directory


_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {  # of each option: the name of its value, and what reads it
    "-p": ("n_workers", _positive),
    "--processes": ("n_workers", _positive),
    "-f": ("oversubscription", _factor),
    "--oversubscription": ("oversubscription", _factor),
    "--policy": ("policy", _one_of(policies)),
    "--kind": ("kind", _one_of(lambda: KINDS)),
    "--scope": ("scope", _one_of(lambda: SCOPES)),
    "--only": ("only", _some_parts),
    "--except": ("excluded", _some_parts),
    "--trace": ("trace", _file),
    "--report": ("report", _one_of(lambda: FORMATS)),
}
_FORMS = {"-m": "module", "-c": "code"}


def read(argv: Sequence[str]) -> Request:
    """Read a command line without its program's name.

    Raises:
        UsageError: It is wrong.
    """
    words = list(argv)
    values: dict[str, Any] = {}
    program = None
    while words and program is None:
        program = _program(words)
        if program is None:
            _option(words, values)
    if program is None:
        raise UsageError(_NO_PROGRAM)
    trace, report = values.pop("trace", None), values.pop("report", None)
    settings = Settings(**values)
    _check(settings)
    return Request(program, settings, trace, report)


def _program(words: list[str]) -> Program | None:
    """Return the program that the rest of the command line names, or None if it begins with an option of ours."""
    first = words[0]
    if first == "-":
        return Program("stdin", first, words[1:])
    if (form := _FORMS.get(first[:2])) is not None:
        target = first[2:] or (words[1] if len(words) > 1 else None)
        if target is None:
            raise UsageError(f"{first} needs the name of a module" if form == "module" else f"{first} needs code")
        return Program(form, target, words[1 if first[2:] else 2 :])
    if first == "--":
        del words[0]
        if not words:
            raise UsageError(_NO_PROGRAM)
    elif first.startswith("-"):
        return None
    return Program("file", words[0], words[1:])


def _option(words: list[str], values: dict[str, Any]) -> None:
    """Read the option at the beginning of the command line into `values`, and remove it."""
    name, text = _split(words.pop(0))
    if name not in _READERS:
        raise UsageError(f"{name} is no option: --help shows them")
    if text is None and name == "--report":
        text = words.pop(0) if words and words[0] in FORMATS else FORMATS[0]
    if text is None and not words:
        raise UsageError(f"{name} needs a value")
    key, read_value = _READERS[name]
    try:
        value = read_value(words.pop(0) if text is None else text)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    values[key] = values.get(key, ()) + value if isinstance(value, tuple) else value


def _split(word: str) -> tuple[str, str | None]:
    """Return an option and the value that it is written in one word with, such as "--kind=thread" or "-p4"."""
    if word.startswith("--"):
        name, separator, text = word.partition("=")
        return name, text if separator else None
    return word[:2], word[2:] or None


def _check(settings: Settings) -> None:
    """Check values that exclude each other."""
    if settings.only and settings.excluded:
        raise UsageError("--only and --except exclude each other")
