"""Decides which modules stay in an interpreter that is kept for the next pool: those of the standard library, and of
packages.

A package's modules are files in a site-packages or dist-packages folder of this Python. Whatever was found elsewhere is
the user's own, be it a package with a development install.
"""

import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import ExtensionFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAIN = ("__main__", "__mp_main__")
MISSING = object()
Module: "Any" = type(sys)
_dict_of = Module.__dict__["__dict__"].__get__


class _Places:
    """Folders, each with a slash at its end."""

    def __init__(self) -> None:
        folder: str = sys._stdlib_dir  # type: ignore[attr-defined]
        dynamic = [entry for entry in sys.path if entry.endswith("/lib-dynload")]
        self.library = tuple(f"{place}/" for place in [folder, *dynamic] if place)
        site: Any = sys.modules.get("site")
        places = [] if site is None else site.getsitepackages(site.PREFIXES)
        if site is not None and site.ENABLE_USER_SITE:
            places.append(site.getusersitepackages())
        ours: Any = sys.modules["pool_party"].__file__
        self.packages = tuple(f"{place}/" for place in [*places, os.path.dirname(ours)])

    def has(self, name: str, origin: str) -> bool:
        """Return whether a module's file, or what stands for one, belongs to a library."""
        if origin in ("built-in", "frozen"):
            return name.partition(".")[0] in sys.stdlib_module_names
        return "/../" not in origin and (origin.startswith(self.packages) or self._is_in_library(origin))

    def _is_in_library(self, origin: str) -> bool:
        """There may be a folder of packages in it, and this Python need not be told to use that."""
        rest = next((origin.removeprefix(place) for place in self.library if origin.startswith(place)), "")
        return rest.partition("/")[0] not in ("", "site-packages", "dist-packages")


def contents_of(module: "Any") -> "dict[str, Any]":
    """Return a module's own namespace; an empty one if it is no module."""
    return _dict_of(module) if issubclass(type(module), Module) else {}


def spec_of(module: "Any") -> "ModuleSpec | None":
    spec = contents_of(module).get("__spec__")
    return spec if type(spec) is ModuleSpec else None


def is_extension(module: "Any") -> bool:
    spec = spec_of(module)
    return spec is not None and isinstance(spec.loader, ExtensionFileLoader)


def _is_own_name(name: str, spec: ModuleSpec, module: "Any") -> bool:
    """Return whether it is a top-level module's name. Cython's private copies are also found by their last names."""
    is_last = name == spec.name.rpartition(".")[2]
    return name == spec.name or (is_last and is_extension(module) and sys.modules.get(spec.name) is module)


class Libraries:
    """Which modules stay. first: those of the new interpreter."""

    def __init__(self, first: "dict[str, Any]") -> None:
        self._known = dict(first)  # the modules that were found to stay, by name
        self._places = _Places()

    def names(self) -> "set[str]":
        """Return the names of the modules in `sys.modules` that stay. A module stays only if its parent does."""
        kept: set[str] = set()
        names = sorted(name for name in list(sys.modules) if type(name) is str and name not in MAIN)
        for _ in range(2):  # in the second turn, those are known that make modules without a file
            for name in names:
                module, parent = sys.modules[name], name.rpartition(".")[0]
                if name in kept or (parent and parent not in kept):
                    continue
                if self._known.get(name, MISSING) is module or self._is_of_library(name, parent, module, kept):
                    kept.add(name)
                    self._known[name] = module
        return kept

    def _is_of_library(self, name: str, parent: str, module: "Any", kept: "set[str]") -> bool:
        spec = spec_of(module)
        if spec is None:
            return self._is_made_by_library(name, parent, module, kept)
        if spec.origin is not None:
            return (parent != "" or _is_own_name(name, spec, module)) and self._places.has(spec.name, spec.origin)
        if spec.loader is None or type(spec.loader).__name__ == "NamespaceLoader":
            folders = list(spec.submodule_search_locations or ())
            return parent != "" and all(self._places.has(name, f"{folder}/") for folder in folders)
        return self.is_of_package(kept, spec.loader) or self._is_made_by_library(name, parent, module, kept)

    def _is_made_by_library(self, name: str, parent: str, module: "Any", kept: "set[str]") -> bool:
        """Return whether a library has made a module without a file: a lazy one as of six, a submodule as of Rust's
        extension modules, or one that Cython's share.
        """
        if type(module) is not Module:
            return type(module).__module__ in kept
        return is_extension(sys.modules.get(parent)) or name == "cython_runtime" or name.startswith("_cython_")

    def has_made(self, kept: "set[str]", thing: "Any") -> bool:
        """Return whether a callable belongs to a library, and what it is bound to as well. kept: from `names`."""
        while type(thing).__name__ == "partial":
            thing = thing.func
        owner = getattr(thing, "__self__", None)
        things = [thing] if hasattr(thing, "__module__") else [type(thing)]
        if owner is not None and type(owner) is not Module:
            things.append(owner if isinstance(owner, type) else type(owner))
        homes = [each.__module__ for each in things]
        return all(home is None or home in kept for home in homes)

    def is_of_package(self, kept: "set[str]", thing: "Any") -> bool:
        """Return whether a function, a class or an object of a class comes from a package.

        The standard library makes such objects for others as well, for example importers for folders of the user's.
        """
        home = (thing if hasattr(thing, "__qualname__") else type(thing)).__module__
        spec = spec_of(sys.modules[home]) if home in kept else None
        return spec is not None and spec.origin is not None and spec.origin.startswith(self._places.packages)

    def drop_others(self) -> bool:
        """Remove the modules that do not stay, and each from its parent. False: an extension module is among them."""
        kept = self.names()
        others = [name for name in sys.modules if name not in kept and name not in MAIN]
        if any(is_extension(sys.modules[name]) for name in others):
            return False
        for name in others:
            module = sys.modules.pop(name)
            parent, _, own_name = str(name).rpartition(".")
            siblings = contents_of(sys.modules.get(parent))
            if siblings.get(own_name, MISSING) is module:
                del siblings[own_name]
        return True
