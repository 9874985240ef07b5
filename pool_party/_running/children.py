"""Child processes of `multiprocessing`, and workers of loky, in which pools are replaced, too.

A forked child has the patches. One that was started by spawn or by a fork server unpickles its preparation data before
it imports the program's main module, and before it unpickles what it is to do. We add a value to these data that
installs the patches when it is unpickled. So there is no environment variable, and no file in the folders that Python
reads at its start. A fork server may import the main module before it forks. It gets its `sys.path` as the text of a
list, which it evaluates before that; the text of ours also installs the patches.
"""

from __future__ import annotations

import sys

from pool_party._ground import imports
from pool_party._patching import apply, state
from pool_party._patching.settings import Settings
from pool_party._running import spinning
from pool_party._workers.interp.steps import set_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from pool_party._running.journal import Address

_KEY = "pool_party"  # in the preparation data, whose readers ignore keys that they do not know
_FOR_SERVER = "ignore"  # the name for which a fork server's data are made
_MODULES = ("multiprocessing.spawn", "loky.backend.spawn", "joblib.externals.loky.backend.spawn")
_FUNCTION = "get_preparation_data"

_INSTALL = """
import sys
sys.path.append(folder)  # the preparation data replace sys.path next
try:
    from pool_party._running.children import install_from
except ImportError:  # the program has chosen another interpreter for its children
    pass
else:
    install_from(settings, journal)
"""

_patched: set[str] = set()  # the modules that were patched
_journal: Address | None = None


def install(settings: Settings, journal: Address | None = None) -> None:
    """Replace pools in this process and in the child processes that it starts from now on.

    Children get the options that apply when they start, and no patches if there are none then.

    journal: where children note their figures for the report, if there is to be one.
    """
    if state.current() != settings:  # in the child of a fork server they are in force
        apply.apply(settings)
    spinning.shorten()
    follow(journal)
    set_step(__name__, follow.__name__, journal)


def follow(journal: Address | None) -> None:
    """Add our value to the preparation data of child processes. A new interpreter of this process calls this alone."""
    global _journal
    _journal = journal
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    for name in _MODULES:
        _follow(name)


def install_from(fields: tuple[Any, ...], journal: Address | None) -> None:
    """Do the same in a child process. fields: of the `Settings`."""
    install(Settings(*fields), journal)
    if journal is not None:
        from pool_party._running import report

        report.join(journal)


class _Finder:
    """Finds the modules that make preparation data, when they are imported."""

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        if name not in _MODULES:
            return None
        return imports.find_spec(name, self, lambda: _follow(name), path)


_finder: Any = _Finder()


def _follow(name: str) -> None:
    """Add our value to the preparation data that a module makes, if it is imported."""
    module: ModuleType | None = sys.modules.get(name)
    original: Any = getattr(module, _FUNCTION, None)  # None while the module is being imported
    if module is None or original is None or name in _patched:
        return
    _patched.add(name)

    def get_preparation_data(process_name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        data: dict[str, Any] = original(process_name, *args, **kwargs)
        if state.current() is None:
            return data
        if process_name == _FOR_SERVER and "sys_path" in data:
            data["sys_path"] = _PathOfServer(data["sys_path"])
        return {_KEY: _Installer(), **data}

    setattr(module, _FUNCTION, get_preparation_data)


def _call() -> tuple[str, dict[str, Any]]:
    """Return the arguments for `exec` that install us in another process, which may not find us in its `sys.path`."""
    folder = __file__.removesuffix("/pool_party/_running/children.py")
    return _INSTALL, {"folder": folder, "settings": tuple(state.current() or ()), "journal": _journal}


class _Installer:
    """Unpickles to None, and installs us."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, _call()


class _PathOfServer(list[str]):
    """A `sys.path` whose text, when it is evaluated in the fork server, installs us first."""

    def __repr__(self) -> str:
        source, names = _call()
        return f"(exec({source!r}, {names!r}), {list(self)!r})[1]"

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)  # of a child that the program gave this name
