"""Explains why a value does not pickle: the path in it to the object that does not, and what to do."""

from collections.abc import Callable, Iterator
from typing import Any

MAX_DEPTH = 6  # deeper objects are reported by the container at this depth
MAX_ITEMS = 1000


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in list(value.items())[:MAX_ITEMS]:
            yield f"[{key!r}]", item
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(list(value)[:MAX_ITEMS]):
            yield f"[{index}]", item
    else:
        function = getattr(value, "__closure__", None)
        if function:
            for name, cell in zip(value.__code__.co_freevars, function, strict=False):
                yield f".{name} (closure)", cell.cell_contents
        for name, item in list(getattr(value, "__dict__", {}).items())[:MAX_ITEMS]:
            yield f".{name}", item


def _find(value: object, path: str, depth: int, fails: Callable[[object], bool]) -> tuple[str, object]:
    if depth < MAX_DEPTH and not isinstance(value, type):
        for step, part in _parts(value):
            if part is not value and fails(part):
                return _find(part, path + step, depth + 1, fails)
    return path, value


def _roots(value: object) -> Iterator[tuple[str, object]]:
    """Yield the parts of a call, (function, args, kwargs) or (args, kwargs), with the names that the user knows."""
    if (
        isinstance(value, tuple)
        and len(value) in (2, 3)
        and isinstance(value[-1], dict)
        and isinstance(value[-2], tuple)
    ):
        if len(value) == 3:
            yield "the function", value[0]
        yield "args", value[-2]
        yield "kwds", value[-1]
    else:
        yield "the value", value


def explain(value: object, fails: Callable[[object], bool]) -> str:
    """Return a sentence with the path to the first part that does not pickle, or '' if none is found.

    fails: returns whether an object does not pickle.
    """
    for name, root in _roots(value):
        if fails(root):
            path, culprit = _find(root, name, 0, fails)
            return f"pool_party: {path} does not pickle: {_short(culprit)}"
    return ""


def advice(failure: Exception, is_local: bool) -> str:
    """Return what to do about an exception from pickling, or '' if that is unknown. is_local: for an interpreter."""
    if is_local and type(failure) is RuntimeError and "through inheritance" in str(failure):
        return (
            "pool_party: interpreters cannot get locks, queues and values of multiprocessing, not even in initargs: "
            "use those of a multiprocessing.Manager(), or kind='process' or 'thread'"
        )
    return ""


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        text = "repr failed"
    return f"{type(value).__module__}.{type(value).__qualname__} object {text[:200]}"
