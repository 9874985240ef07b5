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


def unpack(distribution, suite):
    """Return the folder that contains DISTRIBUTION/suite, unpacked.

    Only the folder with all tests is: the package, without its extension modules, must not be found beside them.
    """
    folder = re.match(r"(.*?/)??test(s|ing)?(?=/|$)", suite, re.IGNORECASE)[0]
    root = CACHE / f"{distribution}-{importlib.metadata.version(distribution)}"
    if not (root / distribution / folder).exists():
        with tarfile.open(_download(distribution, root)) as sdist:
            for member in sdist:
                member.name = member.name.partition("/")[2]
                if member.name.startswith(f"{folder}/"):
                    sdist.extract(member, root / distribution, filter="data")
    return root


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
