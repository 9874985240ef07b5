"""What the demonstration prints at its end: where its picture is, and what to read and do next."""

import importlib.metadata
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

_DISTRIBUTION = "composable-pool"
_PROGRAM = Path(__file__).resolve().parent
_CHECKOUT = _PROGRAM.parents[1]
_PAGES = (
    ("A tutorial of ten minutes", "tutorial"),
    ("Which kind of worker to choose", "howto/choose-a-kind"),
    ("From another pool to this one, line by line", "migrating"),
)


def _site() -> str:
    """Return the address of the documentation, or "" if the distribution is not installed."""
    try:
        urls: list[str] = importlib.metadata.metadata(_DISTRIBUTION).get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    prefix = "Documentation, "
    return next((url.removeprefix(prefix) for url in urls if url.startswith(prefix)), "")


def _links(checkout: Path, site: str) -> Iterator[str]:
    """Yield what to read: files of the checkout if there is one, else pages of the site."""
    width = max(len(title) for title, _ in _PAGES)
    for title, page in _PAGES:
        file = checkout / "docs" / f"{page}.md"
        if file.is_file():
            yield f"{title:{width}}  {file}"
        elif site:
            yield f"{title:{width}}  {site}/{page}.html"


def _newer_python(version: tuple[int, int], has_gil: bool, is_checkout: bool) -> Iterator[str]:
    """Yield how to get a CPython whose interpreters can load NumPy, if this one cannot."""
    if version >= (3, 14) and has_gil:
        return
    this = f"{version[0]}.{version[1]}{'' if has_gil else 't'}"
    yield f"NumPy in workers of kind 'interp' needs CPython 3.14 or later with a GIL, and this is {this}. Get one with"
    yield "    uv python install 3.14      or      pyenv install 3.14"
    yield "and run the demonstration with it:"
    if is_checkout:
        yield "    make demo PYTHON=3.14"
    else:
        yield f"    uv run --python 3.14 --with '{_DISTRIBUTION}[demo]' python {shlex.quote(str(_PROGRAM))}"


def next_steps(
    picture: Path,
    *,
    checkout: Path = _CHECKOUT,
    site: str | None = None,
    version: tuple[int, int] = sys.version_info[:2],
    has_gil: bool = "t" not in sys.abiflags,
) -> Iterator[str]:
    """Yield the lines to print. All arguments but the first describe this machine; tests set others."""
    yield f"The picture: {picture.absolute().as_uri()}"
    if links := list(_links(checkout, _site() if site is None else site)):
        yield ""
        yield "What next:"
        yield from (f"  - {link}" for link in links)
    is_checkout = (checkout / "Makefile").is_file()
    if more := list(_newer_python(version, has_gil, is_checkout)):
        yield ""
        yield from more
