"""The documentation site: `make docs` builds it into build/docs/html, with warnings as errors.

Some pages are files of the repository that are read there, too (ARCHITECTURE.md and others). Their page in docs/ has
a heading only, and their text comes in while Sphinx reads it: see `read_page`.
"""

import ast
import os
import re
import sys
import tomllib
import zlib
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))  # the checkout's own docstrings, wherever the package is installed

import pool_party  # noqa: E402

project = "pool_party"
author = "pool_party contributors"
copyright = author
release = version = pool_party.__version__

with (ROOT / "pyproject.toml").open("rb") as file:
    URLS = tomllib.load(file)["project"]["urls"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.intersphinx", "sphinx_copybutton"]
copybutton_selector = "div:not(.highlight-output) > div.highlight > pre"  # not what programs print
source_suffix = {".md": "markdown"}

html_theme = "pydata_sphinx_theme"
html_title = "pool_party"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "pool_party"},
    "github_url": URLS["Source"],
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_toc_level": 2,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "footer_start": ["copyright"],
    "footer_end": [],
    "navigation_with_keys": False,
}
PLAIN = ("index", "tutorial", "migrating", "policies", "performance", "gallery", "api", "faq")  # without a sidebar
html_sidebars = {page: [] for page in PLAIN}

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

autoclass_content = "both"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Guarantees", "Guarantees")]
toc_object_entries_show_parents = "hide"  # a class's name before each of its methods would not fit
smartquotes_action = "D"  # dashes only: quotes are code nearly everywhere, and readers copy them
default_role = "py:obj"  # in docstrings: a link where there is such a name, else code


# ---- other projects' documentation -----------------------------------------


def write_empty_inventory() -> str:
    """The way out without a network: links to other projects are plain text then, and the build goes on."""
    path = ROOT / "build" / "docs" / "empty.inv"
    path.parent.mkdir(parents=True, exist_ok=True)
    header = "# Sphinx inventory version 2\n# Project: none\n# Version: 0\n"
    path.write_bytes(f"{header}# The remainder of this file is compressed using zlib.\n".encode() + zlib.compress(b""))
    return str(path)


nothing = write_empty_inventory()
intersphinx_timeout = 5
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", (None, nothing)),
    "numpy": ("https://numpy.org/doc/stable", (None, nothing)),
    "joblib": ("https://joblib.readthedocs.io/en/stable", (None, nothing)),
    "dask": ("https://docs.dask.org/en/stable", (None, nothing)),
}
# `make docs` looks at links within the repository only, and with LINKCHECK=all at others, too.
linkcheck_ignore = [] if os.environ.get("LINKCHECK") == "all" else [r"https?://"]


# ---- pages that are files of the repository --------------------------------

FILES = {
    "architecture": "ARCHITECTURE.md",
    "protocol": "native/README.md",
    "glossary": "GLOSSARY.md",
    "changelog": "CHANGELOG.md",
    "benchmarks": "benchmarks/README.md",
}
PAGES = FILES | {"gallery": "examples/README.md"}  # where links to a file of the repository lead
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def read_file(name: str) -> str:
    """A file's text, with links that hold in docs/: to the page of a file that has one, else to the file."""
    pages = {(ROOT / file).resolve(): f"{page}.md" for page, file in PAGES.items()}

    def rewrite(match: re.Match[str]) -> str:
        target = (ROOT / name).parent.joinpath(match[1]).resolve()
        return pages.get(target) or os.path.relpath(target, DOCS)

    return LINK.sub(rewrite, (ROOT / name).read_text())


def link_to_pages(text: str, folder: Path) -> str:
    """A page's text, in which links to a file that is itself a page lead to that page."""
    pages = {(ROOT / file).resolve(): DOCS / f"{page}.md" for page, file in PAGES.items()}

    def rewrite(match: re.Match[str]) -> str:
        page = pages.get(folder.joinpath(match[1]).resolve())
        return os.path.relpath(page, folder) if page else match[1]

    return LINK.sub(rewrite, text)


# ---- the gallery -----------------------------------------------------------


def describe_example(program: Path) -> str:
    """A section of the gallery: the docstring, the picture and the output if there are any, and the code."""
    tree = ast.parse(program.read_text())
    title, _, rest = (ast.get_docstring(tree) or program.stem).partition("\n")
    parts = [f"## {title.strip().rstrip('.')}", rest.strip("\n")]
    results = program.parent / "output"
    for picture in sorted(p for p in results.glob(f"{program.stem}.*") if p.suffix in (".svg", ".png")):
        parts.append(f"![What {program.name} draws]({os.path.relpath(picture, DOCS)})")
    if (results / f"{program.stem}.txt").exists():
        path = os.path.relpath(results / f"{program.stem}.txt", DOCS)
        parts.append(f"It prints:\n\n```{{literalinclude}} {path}\n:language: output\n```")
    path = os.path.relpath(program, DOCS)
    first = tree.body[1].lineno if len(tree.body) > 1 else 1  # after the docstring, which is the text above
    options = f":language: python\n:lines: {first}-"
    parts.append(f"`examples/{program.name}`:\n\n```{{literalinclude}} {path}\n{options}\n```")
    return "\n\n".join(filter(None, parts))


def list_examples(folder: Path) -> str:
    """A section for each program of `folder`, in the order of their names."""
    programs = sorted(p for p in folder.glob("*.py") if not p.name.startswith("_"))
    return "\n\n".join(map(describe_example, programs)) or "There are no examples yet."


def read_page(app: object, page: str, source: list[str]) -> None:
    """Called by Sphinx for each page that it reads: fills in what comes from elsewhere in the repository."""
    if page in FILES:
        source[0] = read_file(FILES[page])
    elif page == "gallery":
        source[0] += "\n" + list_examples(ROOT / "examples") + "\n"
    else:
        source[0] = link_to_pages(source[0], (DOCS / page).parent)


def list_filled_pages(app: object, env: object, added: object, changed: object, removed: object) -> list[str]:
    """Called by Sphinx: pages to be read again although their own file has not changed."""
    return [*FILES, "gallery"]


def setup(app: object) -> None:
    """Called by Sphinx."""
    app.connect("source-read", read_page)
    app.connect("env-get-outdated", list_filled_pages)
