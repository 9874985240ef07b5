"""Modules that have been imported, and functions that run right after an import, before the importing code goes on."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def loaded(name: str) -> Any:
    """Return a module if it has been imported, otherwise None.

    If another thread is importing it, wait for that, as an import does: `sys.modules` has only a part of it. In a
    forked child that thread is missing, so this must not be called there before the child runs the program's code.
    """
    if name not in sys.modules:
        return None
    __import__(name)
    return sys.modules.get(name)


def find_spec(name: str, this: object, then: Callable[[], object], path: object = None) -> ModuleSpec | None:
    """Return the module's spec from the finders other than `this`.

    Its loader calls `then` after it has run the module. path: of the package that the module is in.
    """

    def run(load: Callable[[ModuleType], None], module: ModuleType) -> None:
        load(module)
        then()

    return find_spec_around(name, this, run, path)


def find_spec_around(
    name: str, this: object, run: Callable[[Callable[[ModuleType], None], ModuleType], None], path: object = None
) -> ModuleSpec | None:
    """Do the same, but its loader calls `run` in the place of the function that runs the module, which it passes."""
    others: list[Any] = [finder for finder in sys.meta_path if finder is not this]
    found = (finder.find_spec(name, path, None) for finder in others)
    spec: ModuleSpec | None = next(filter(None, found), None)
    if spec is not None and spec.loader is not None:
        _wrap(spec.loader, run)
    return spec


def remove(finder: object) -> None:
    """Remove a finder from `sys.meta_path`, if it is there. Before CPython 3.14, a new list replaces the old one.

    There, an import in another thread goes through the list itself. It would pass over a finder, and not find its
    module, if those after the removed one moved (CPython issue 130094).
    """
    if finder not in sys.meta_path:
        return
    if sys.version_info >= (3, 14):
        sys.meta_path.remove(finder)
    else:
        sys.meta_path = [other for other in sys.meta_path if other is not finder]


def _wrap(loader: Any, run: Callable[[Callable[[ModuleType], None], ModuleType], None]) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        loader.exec_module = load
        run(load, module)

    loader.exec_module = exec_module
