"""The pages for contributors name files, functions and layers. All of them must exist."""

import pathlib
import re

import pytest
import test_layers

ROOT = pathlib.Path(__file__).parents[1]
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "GLOSSARY.md", "RELEASING.md", "native/README.md")
FOLDERS = ("pool_party", "native", "tests", "tools", "benchmarks", "docs", ".ci", ".github")
PATHS = [
    *(ROOT / "Makefile", ROOT / "pyproject.toml"),
    *(path for name in FOLDERS for path in (ROOT / name, *(ROOT / name).rglob("*")) if "results" not in path.parts),
]
CODE = "\n".join(path.read_text() for path in PATHS if path.suffix in {".py", ".pyi", ".c", ".h"})
WORDS = set(re.findall(r"\w+", CODE))


def is_path(name, folder):
    return (folder / name).exists() or any(f"{path}".endswith(f"/{name.rstrip('/')}") for path in PATHS)


def is_code(name):
    """Whether each part of a dotted name is in the code.

    The end of a word suffices, since a page may say `_notify`.
    """
    parts = set(re.findall(r"\w+", name))
    return parts <= WORDS or (name.startswith("_") and any(word.endswith(name) for word in WORDS))


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_what_there_is(page):
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    names = {name for name in re.findall(r"`([^`\n]+)`", text) if re.fullmatch(r"[\w./]*\w[\w./]*", name)}
    folder = (ROOT / page).parent
    assert {name for name in names if not is_path(name, folder) and not is_code(name)} == set()


def test_the_page_has_the_layers_of_the_tests():
    table = (ROOT / "ARCHITECTURE.md").read_text().split("| layer, from the top |")[1].split("\n\n")[0]
    named = [set(re.findall(r"`([\w.]+)`", row)) for row in table.splitlines()[2:]]
    parts = {test_layers.place_of(module)[1] for module in test_layers.MODULES} | {"_native"}
    rows = [
        {"pool_party" if part == "__init__" else part for part in row if part in parts} for row in test_layers.LAYERS
    ]
    joined = [*rows[:-3], rows[-3] | rows[-2], rows[-1]]  # the page has one row for what every layer may import
    assert named == joined
