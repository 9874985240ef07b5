"""Finds the modules of a program that PyInstaller has frozen, in an interpreter.

PyInstaller's importer is itself part of the executable, and only the main interpreter has it. It reads an archive in
which each module is compressed, marshalled code. Like `boot`, this module arrives as bare code.
"""

import marshal
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import SourcelessFileLoader, spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

PACKAGE, NAMESPACE = 1, 3  # kinds of entries; the others are modules

_file, _begin, _folder = "", 0, ""  # the archive, and the folder in which its modules seem to be
_entries: "dict[str, tuple[int, int, int]]" = {}  # name -> kind, offset, size


def install(file: str, begin: int, folder: str, entries: "dict[str, tuple[int, int, int]]") -> None:
    """Make this interpreter find the modules of the archive, before `sys.path` is used."""
    global _file, _begin, _folder, _entries
    _file, _begin, _folder, _entries = file, begin, folder, entries
    sys.frozen, sys._MEIPASS = True, folder  # type: ignore[attr-defined]  # as PyInstaller documents
    sys.path_hooks.insert(1, _Finder)  # after the one for zip files
    sys.path_importer_cache.clear()


class _Loader(SourcelessFileLoader):
    entry = ""

    def get_code(self, fullname: str) -> "CodeType":
        import zlib

        _, offset, size = _entries[self.entry]
        with open(_file, "rb") as archive:
            archive.seek(_begin + offset)
            code: CodeType = marshal.loads(zlib.decompress(archive.read(size)))
        return code


class _Finder:
    """Finds modules in a folder that is part of the archive, and may exist as well."""

    def __init__(self, path: str) -> None:
        if path != _folder and not path.startswith(f"{_folder}/"):
            raise ImportError("not a folder of the archive", path=path)
        inner = path[len(_folder) + 1 :]
        self._path = path
        self._prefix = inner.replace("/", ".") + "." if inner else ""
        self._others: Any = None  # the finder for what the folder itself contains, once it is needed

    def find_spec(self, name: str, target: object = None) -> "ModuleSpec | None":
        entry = self._prefix + name.rpartition(".")[2]
        if entry not in _entries:
            return self._find_in_folder(name)
        file = f"{_folder}/{entry.replace('.', '/')}"
        kind, _, _ = _entries[entry]
        if kind == NAMESPACE:
            spec = ModuleSpec(name, None)
            spec.submodule_search_locations = [file]
            return spec
        loader = _Loader(name, f"{file}/__init__.py" if kind == PACKAGE else f"{file}.py")
        loader.entry = entry
        return spec_from_file_location(name, loader.path, loader=loader)

    def _find_in_folder(self, name: str) -> "ModuleSpec | None":
        if self._others is None:
            for hook in sys.path_hooks[sys.path_hooks.index(_Finder) + 1 :]:
                try:
                    self._others = hook(self._path)
                    break
                except ImportError:  # it is not for folders, or the folder does not exist
                    continue
        found: ModuleSpec | None = self._others and self._others.find_spec(name)
        return found
