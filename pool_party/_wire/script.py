"""What the file of a program defines, as processes find that import it as `__main__`.

Only the program itself needs this. Importing `ast` would take several milliseconds, so the compiler's own tree is used.
"""

import sys

from pool_party._wire.namespace import Function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST
_SCOPES = (
    *("FunctionDef", "AsyncFunctionDef", "ClassDef", "Lambda"),
    *("ListComp", "SetComp", "DictComp", "GeneratorExp"),
)


class Script:
    """The text of a program's file. It is parsed when something is first asked."""

    def __init__(self, text: "str | bytes") -> None:
        self._text = text
        self._n_bound: dict[str, int] | None = None
        self._certain: set[str] = set()
        self._defined: set[str] = set()

    @classmethod
    def of_main(cls) -> "Script | None":
        """Return the file that spawned processes import as `__main__`, or None if there is none that can be read."""
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if file is None or (spec is not None and (spec.name == "__main__" or spec.name.endswith(".__main__"))):
            return None
        try:
            with open(file, "rb") as source:
                return cls(source.read())
        except OSError:
            return None

    def sets(self, name: str) -> bool:
        """Return whether importing the file certainly binds the name."""
        self._parse()
        return name in self._certain

    def defines(self, name: str, value: "Any") -> bool:
        """Return whether the file defines the name once, at its outermost level, and `value` is that definition."""
        self._parse()
        if self._n_bound is None or name not in self._defined or self._n_bound[name] != 1:
            return False
        while hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        file = getattr(sys.modules["__main__"], "__file__", None)
        return type(value) is not Function or (value.__qualname__ == name and value.__code__.co_filename == file)

    def _parse(self) -> None:
        if self._n_bound is not None:
            return
        self._n_bound = {}
        try:
            tree: Any = compile(self._text, "<script>", "exec", _ONLY_AST, dont_inherit=True)
        except (SyntaxError, ValueError):
            return
        for statement in tree.body:
            names = list(_bound(statement))
            for name in names:
                self._n_bound[name] = self._n_bound.get(name, 0) + 1
            kind = type(statement).__name__
            if kind == "Delete":
                self._certain.difference_update(names)
            elif kind not in ("If", "For", "AsyncFor", "While", "Try", "TryStar", "Match"):
                self._certain.update(names)
            if kind in ("FunctionDef", "AsyncFunctionDef", "ClassDef", "Assign", "AnnAssign"):
                self._defined.update(names)


def _bound(node: "Any") -> "Iterator[str]":
    """Yield the names that a statement may bind in its own scope."""
    kind = type(node).__name__
    if kind == "AnnAssign" and node.value is None:
        return
    if kind == "Name":
        if type(node.ctx).__name__ != "Load":
            yield node.id
        return
    if kind in ("Import", "ImportFrom"):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0]
        return
    if kind in ("FunctionDef", "AsyncFunctionDef", "ClassDef"):
        yield node.name
    elif kind in ("ExceptHandler", "MatchAs", "MatchStar") and node.name:
        yield node.name
    if kind in _SCOPES:
        return
    for field in node._fields:
        part = getattr(node, field, None)
        for child in part if isinstance(part, list) else [part]:
            if hasattr(child, "_fields"):
                yield from _bound(child)
