"""Finds the extension modules that come with a package: others of its distribution, and those of its requirements.

For example, cffi consists of a package of that name and a module `_cffi_backend`, and polars requires a distribution
with a package `_polars_runtime_32`. The metadata of the distributions tell.
"""

import importlib.metadata
import re
from collections.abc import Iterable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import Distribution, PackageNotFoundError

_NAME = re.compile(r"[\w.-]+")


def find(names: Iterable[str]) -> Iterator[str]:
    """Yield the top-level packages with extension modules that these packages come with, themselves included."""
    waiting = [home for name in names for home in _homes(name)]
    seen = set()
    while waiting:
        distribution = waiting.pop()
        if distribution.name not in seen:
            seen.add(distribution.name)
            yield from _extensions(distribution)
            waiting += _requirements(distribution)


def _homes(name: str) -> Iterator[Distribution]:
    """Yield the distributions that a package belongs to. Usually there is one, with the package's name."""
    try:
        distribution = importlib.metadata.distribution(name)
        if any(file.parts[0].partition(".")[0] == name for file in distribution.files or ()):
            yield distribution
            return
    except PackageNotFoundError:
        pass
    for other in importlib.metadata.packages_distributions().get(name, ()):  # reads the metadata of all: up to a second
        yield importlib.metadata.distribution(other)


def _extensions(distribution: Distribution) -> Iterator[str]:
    for file in distribution.files or ():
        top = file.parts[0] if len(file.parts) > 1 else file.name.partition(".")[0]
        if file.name.endswith(tuple(EXTENSION_SUFFIXES)) and top.isidentifier():  # not in a folder such as numpy.libs
            yield top


def _requirements(distribution: Distribution) -> Iterator[Distribution]:
    """Yield what a distribution requires and is installed, except for its extras."""
    for requirement in distribution.requires or ():
        name = _NAME.match(requirement)
        if name is None or "extra" in requirement.partition(";")[2]:
            continue
        try:
            yield importlib.metadata.distribution(name.group())
        except PackageNotFoundError:
            continue
