"""Interpreters find modules that only PyInstaller's archive has. The archive is made here, as PyInstaller makes it."""

import marshal
import os
import sys
import tempfile
import types
import zlib

from probe import TIMEOUT_S, ComposablePool

SOURCES = {  # the kinds of entries: 0 for a module, 1 for a package
    "only_frozen": (1, "from only_frozen.inner import N\nimport json, only_outside"),
    "only_frozen.inner": (0, "N = 7"),
}


def make_archive(folder):
    entries, data = {}, b"something else"
    begin = len(data)
    for name, (kind, source) in SOURCES.items():
        code = zlib.compress(marshal.dumps(compile(source, name, "exec")))
        entries[name] = (kind, len(data) - begin, len(code))
        data += code
    path = os.path.join(folder, "archive")
    with open(path, "wb") as file:
        file.write(data)
    return types.SimpleNamespace(_filename=path, _start_offset=begin, toc=entries)


def look(name):
    module = __import__(name)
    return module.N, module.__file__, list(module.__path__), sys.frozen, sys._MEIPASS


def main():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "only_outside.py"), "w") as file:
            file.write("")
        importers = sys.modules["pyimod02_importers"] = types.ModuleType("pyimod02_importers")
        importers.pyz_archive = make_archive(folder)
        sys._MEIPASS = folder
        sys.path.append(folder)
        package = os.path.join(folder, "only_frozen")
        with ComposablePool(1, kind="interp") as pool:
            found = pool.apply_async(look, ("only_frozen",)).get(TIMEOUT_S)
            assert found == (7, os.path.join(package, "__init__.py"), [package], True, folder), found
        pool.join(timeout=TIMEOUT_S)


if __name__ == "__main__":
    main()
