"""Names a call and quotes its arguments in few characters, for messages about tasks that fail.

A worker does that for what its task has raised, since it has the arguments. The pool puts it into the message.
"""

from __future__ import annotations

import operator

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

MAX_NAME = 200  # characters of a function's name
MAX_QUOTE = 200  # characters of a call, without the rest of the last value
MAX_VALUE = 60  # characters of a value in it
MAX_PARTIALS = 20  # of a function that are looked through

START = "pool_party: in "
MAX_NOTES = 8  # of ours, since many tasks may raise one object; pools within each other's tasks add one each; guess

type Call = tuple[Any, Any, int, int]  # function, argument, mode, which item of a chunk: see `Worker.serve`
type Place = tuple[int, str | None]  # which item of the task has raised, and its call


def call_star(fn: Callable[..., Any], args: Iterable[Any]) -> Any:
    """Run one item of `starmap` whose function travels with it."""
    return fn(*args)


def call_each(fn: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """Run a chunk of an input that is read while tasks run."""
    done: list[Any] = []
    for item in items:
        done.append(fn(item))  # `item_in` looks at the list
    return done


def call_each_star(fn: Callable[..., Any], items: list[Iterable[Any]]) -> list[Any]:
    """As `call_each`, for items that are the arguments of calls."""
    done: list[Any] = []
    for item in items:
        done.append(fn(*item))
    return done


def unwrapped(fn: Any, args: Sequence[Any] = ()) -> tuple[Any, Sequence[Any]]:
    """Return the user's function and its arguments, without the package's wrappers."""
    from functools import partial

    while True:
        if fn is call_star and args:
            fn, args = args[0], tuple(args[1])
        elif (fn is call_each or fn is call_each_star or fn is operator.call) and args:
            fn, args = args[0], args[1:]
        elif isinstance(fn, partial) and type(fn).__module__ == "pool_party._core.contexts":
            fn = fn.func
        elif type(fn).__module__ == "pool_party._cluster.slots":
            fn = fn.function
        else:
            return fn, args


def name_of(fn: Any, args: Sequence[Any] = ()) -> str:
    """Return the name of a call: that of the user's function, without wrappers and `functools.partial`."""
    fn, _, _ = _spread(unwrapped(fn, args)[0], (), {})
    try:
        name = fn.__qualname__
    except Exception:
        name = type(fn).__qualname__
    return str(name)[:MAX_NAME]


def _spread(fn: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> tuple[Any, Iterable[Any], dict[str, Any]]:
    """Return what a partial calls in the end. One that was made to contain itself is followed for some steps only."""
    from functools import partial

    for _ in range(MAX_PARTIALS):
        if not isinstance(fn, partial):
            break
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    return fn, args, kwargs


def quote(fn: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> str:
    """Return a call as one would write it, with its values cut to some characters."""
    fn, args, kwargs = _spread(fn, args, kwargs)
    text = f"{name_of(fn)}("
    for name, value in [*(("", value) for value in args), *kwargs.items()]:
        text += ", " * (text[-1] != "(") + f"{name}=" * bool(name)
        if len(text) > MAX_QUOTE:
            return f"{text}...)"
        text += short(value)
    return f"{text})"


def short(value: object) -> str:
    """Return the value's repr, cut to some characters."""
    from reprlib import Repr

    try:
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if isinstance(shape, tuple) and dtype is not None:  # an array, perhaps a large one
            return f"<{type(value).__name__} of shape {shape} and type {dtype}>"
        cut = Repr()
        cut.maxstring = cut.maxother = cut.maxlong = MAX_VALUE
        return cut.repr(value)
    except Exception:  # of a user's object, or of an int of very many digits
        return f"<{type(value).__name__} object>"


def add_note(error: BaseException, where: str, quoted: str | None, quotes: bool) -> None:
    """Add a note that says where a task has failed, unless there is one. Never raises.

    where: the item or the call. quoted: what `quote` returns, or nothing. quotes: whether arguments may be quoted.
    """
    try:
        text = START + where
        if quoted is not None:
            text += f": {quoted if quotes else quoted.partition('(')[0]}"
        notes = getattr(error, "__notes__", [])
        ours = [other for other in notes if isinstance(other, str) and other.startswith(START)]
        if not any(other.startswith(text) for other in ours):
            if len(ours) >= MAX_NOTES:
                notes.remove(ours[0])
            error.add_note(text)
    except Exception:  # the class of the error is the user's, and may refuse notes
        pass


def note_call(
    error: BaseException, where: str, fn: Any, args: Iterable[Any], kwargs: dict[str, Any], quotes: bool
) -> None:
    """As `add_note`, and quote the call. Raises nothing but interrupts."""
    try:
        quoted = quote(*unwrapped(fn, tuple(args)), kwargs)
    except Exception:  # of `args`, which may be any iterable
        quoted = None
    add_note(error, where, quoted, quotes)


def item_text(number: int) -> str:
    """Return how an item of an input is named."""
    return f"item {number} (counted from 0)"


def place_of(error: BaseException, call: Call | None) -> Place | None:
    """Return which item of a task has raised the error, and what was called for it; None if that is unknown.

    Raises nothing but interrupts.
    """
    if call is None:
        return None
    function, argument, mode, at = call
    try:
        if mode in (_native.MODE_CHUNK, _native.MODE_STARCHUNK):
            argument = argument[at]
        if mode in (_native.MODE_ITEM, _native.MODE_CHUNK):
            return at, quote(*unwrapped(function, (argument,)), {})
        if mode in (_native.MODE_STAR, _native.MODE_STARCHUNK):
            return at, quote(*unwrapped(function, tuple(argument)), {})
        *own, args, kwargs = argument
        function = own[0] if own else function
        if function is call_each or function is call_each_star:
            at = item_in(error)
            args = (args[0], *((args[1][at],) if function is call_each else args[1][at]))
        return at, quote(*unwrapped(function, args), kwargs)
    except Exception:  # of an argument of `starmap` that is no longer what it was, for example
        return at, None


def item_in(error: BaseException) -> int:
    """Return which item `call_each` or `call_each_star` had called the function with that has raised the error."""
    traceback, codes = error.__traceback__, (call_each.__code__, call_each_star.__code__)
    while traceback is not None and traceback.tb_frame.f_code not in codes:
        traceback = traceback.tb_next
    return 0 if traceback is None else len(traceback.tb_frame.f_locals["done"])
