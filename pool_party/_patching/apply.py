"""Installs the patches of the table, and undoes them.

Nothing is imported for a patch: one for a module that the program has not imported is installed right after its
import. Programs that never open a pool import this module, too, so it imports little. `replacing.py` has the rest.

The originals change in place. Replacing names in modules would miss each `from concurrent.futures import ...` that ran
before, and a search of all modules for such names would still miss default arguments and closures. What changes is
`__init__`, since that can be restored without a trace. A class that once had a `__new__` of its own keeps the slot
for it, and refuses arguments afterwards.
"""

from __future__ import annotations

import sys

from pool_party._ground import imports
from pool_party._patching import state
from pool_party._patching.parts import PARTS
from pool_party._patching.table import PATCHES, Patch
from pool_party._workers.interp.steps import drop_step, set_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from typing import Any

    from pool_party._patching.settings import Settings

_undoers: dict[Patch, Callable[[], object]] = {}  # of the patches that are installed


def apply(settings: Settings) -> None:
    """Install all patches that the settings ask for, in the place of those that are installed.

    Modules that are not imported yet are patched as they are imported. Do not call it in two threads at once.

    Raises:
        ValueError: A name in `only` or `excluded` is not the name of a part.
    """
    for name in (*settings.only, *settings.excluded):
        if name not in PARTS:
            raise ValueError(f"a part must be one of {', '.join(map(repr, PARTS))}, not {name!r}")
    undo()
    state.change(settings)
    for module in {patch.module for patch in PATCHES}:
        if module in sys.modules:
            _install(module)
    sys.meta_path.insert(0, _Finder)
    set_step(__name__, apply_fields.__name__, *settings)


def apply_fields(*fields: Any) -> None:
    """Do the same in a new interpreter of this process. fields: of the `Settings`."""
    from pool_party._patching.settings import Settings

    apply(Settings(*fields))


def undo() -> None:
    """Restore exactly what was there before `apply`. Pools that are open stay as they are. It may be called again."""
    state.change(None)
    drop_step(__name__, apply_fields.__name__)
    while _undoers:
        _, undo_one = _undoers.popitem()
        undo_one()
    imports.remove(_Finder)


def _install(name: str) -> None:
    """Install the patches of a module that is imported."""
    module = sys.modules.get(name)
    for patch in PATCHES:
        if patch.module == name and patch not in _undoers and any(map(state.is_wanted, patch.parts)):
            target = getattr(module, patch.target, None)
            if target is not None:
                _undoers[patch] = _patch_class(target) if isinstance(target, type) else _patch_backends(target)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: object = None) -> ModuleSpec | None:
        """Have `_install` run after the import of a module of the table."""
        if not any(patch.module == name for patch in PATCHES):
            return None
        return imports.find_spec(name, _Finder, lambda: _install(name), path)


# ---- classes of pools ----


def _patch_class(original: type[Any]) -> Callable[[], object]:
    """Make objects of the class become ours as they are made. Return what undoes this."""
    init = original.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if not (_is_nearest(original, type(self)) and _become_ours(self, original, args, kwargs)):
            init(self, *args, **kwargs)

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(__init__, name, getattr(init, name))
    __init__.__dict__["__wrapped__"] = init  # for inspect.signature
    original.__init__ = __init__
    return lambda: setattr(original, "__init__", init)


def _is_nearest(original: type, cls: type) -> bool:
    """Whether this is the patched class that `cls` derives from first.

    If it is not, the `__init__` of a class that was left alone has called that of its base.
    """
    for base in cls.__mro__:
        if any(patch.target == base.__name__ and patch.module == base.__module__ for patch in PATCHES):
            return base is original
    return False


def _become_ours(pool: Any, original: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if original.__name__ == "Pool" and "pool_party._patching.replacing" not in sys.modules:
        _start_helpers(*args, **kwargs)
    from pool_party._patching import replacing

    return replacing.become_ours(pool, original, args, kwargs)


def _start_helpers(*args: Any, **kwargs: Any) -> None:
    """Start what `multiprocessing` needs for a pool of processes while `replacing` is being imported."""
    settings = state.current()
    context = kwargs.get("context", args[4] if len(args) > 4 else None)
    if settings is None or settings.kind != "process" or not state.is_wanted("multiprocessing"):
        return
    from multiprocessing import context as contexts
    from multiprocessing import get_context

    from pool_party._workers import process_helpers

    if context is None or isinstance(context, contexts.BaseContext):
        process_helpers.start_early((context or get_context()).get_start_method())


# ---- joblib ----


def _patch_backends(backends: dict[str, Any]) -> Callable[[], object]:
    """Replace the classes in joblib's dictionary of backends. Return what undoes this."""
    names: tuple[str, ...] = ("loky", "multiprocessing", "threading")
    originals = {name: backends[name] for name in names if name in backends}
    backends.update((name, _stand_in(name, original, backends)) for name, original in originals.items())
    return lambda: backends.update(originals)


def _stand_in(name: str, original: type, backends: dict[str, Any]) -> type:
    """Return a class that gives way to our backend, which is imported when joblib asks for the first object."""

    def __new__(cls: type, *args: Any, **options: Any) -> Any:
        from pool_party._patching.backends import make

        ours = make(name, original)
        if backends.get(name) is cls:
            backends[name] = ours
        return ours(*args, **options)

    names = {"__new__": __new__, "__module__": original.__module__, "__doc__": original.__doc__}
    return type(original.__name__, (original,), names)
