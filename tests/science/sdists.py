"""Fetches the tests of packages whose wheels have none, from the sdists of the installed versions. Needs uv."""

import importlib.metadata
import pathlib
import re
import subprocess
import sys
import tarfile
import tomllib
import urllib.request

CACHE = pathlib.Path(__file__).resolve().parents[2] / "build" / "suites"


def unpack(distribution):
    """Return the folder that contains the folder DISTRIBUTION: the sdist without the distribution's own modules.

    These must not be found in place of the installed ones, since their extension modules are not built. Folders with
    tests are unpacked wherever they are, and so is all else, since tests read pictures, documents and examples.
    """
    root = CACHE / f"{distribution}-{importlib.metadata.version(distribution)}"
    if not (root / distribution).exists():
        own, part = _modules(distribution), root / "unpacked.part"
        with tarfile.open(_download(distribution, root)) as sdist:
            for member in sdist:
                member.name = member.name.partition("/")[2]
                if member.name and not _is_own(member.name, own):
                    sdist.extract(member, part, filter="data")
        part.rename(root / distribution)
    return root


def _modules(distribution):
    """Return the names of the top-level modules and packages that a distribution has installed."""
    files = importlib.metadata.files(distribution)
    return {file.parts[0].partition(".")[0] for file in files if not file.parts[0].endswith((".dist-info", ".libs"))}


def _is_own(path, modules):
    """Return whether a path of an sdist is one of these modules, or in one, but not in a folder with tests."""
    names = pathlib.PurePath(path).parts
    if any(re.fullmatch("test(s|ing)?", name, re.IGNORECASE) for name in names[:-1]):
        return False
    return any(name.removesuffix(".py") in modules for name in names)


def _download(distribution, root):
    """Return the path of an sdist. uv finds it, and unlike pip does not build it."""
    path = root / "sdist.tar.gz"
    if not path.exists():
        root.mkdir(parents=True, exist_ok=True)
        command = [*"uv pip compile --quiet --no-deps --format pylock.toml --python".split(), sys.executable, "-"]
        wanted = f"{distribution}=={importlib.metadata.version(distribution)}"
        lock = subprocess.run(command, input=wanted, stdout=subprocess.PIPE, text=True, check=True)
        [package] = tomllib.loads(lock.stdout)["packages"]
        part, _ = urllib.request.urlretrieve(package["sdist"]["url"], root / "sdist.part")
        pathlib.Path(part).rename(path)
    return path
