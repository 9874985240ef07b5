"""What README and docs/ promise: programs run and print what the page says, and links lead somewhere.

A fence of `python` is a program. A fence of `output` right after it is what it prints, where `...` stands for any text.
A comment before the fence, `<!-- needs: numpy, CPython 3.14 -->`, names what a program needs beyond pool_party; if that
is missing the program is skipped. Fences of `pycon`, `sh` and `text` are not run.
"""

import ast
import functools
import importlib.util
import itertools
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

import fresh
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 100  # seconds for a program, even if the machine is busy
UNTRACKED = {"build", "dist", "venv"}  # and whatever begins with a dot


def list_pages():
    for folder, folders, files in ROOT.walk():
        folders[:] = [name for name in folders if name not in UNTRACKED and not name.startswith(".")]
        yield from (folder / name for name in files if name.endswith(".md"))


PAGES = sorted(list_pages())
FENCE = re.compile(r"^(?P<ticks>```+|:::+)(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=ticks)[ ]*$", re.M | re.S)
NEEDS = re.compile(r"<!-- needs: (.*?) -->\s*$")


def name_of(path):
    return str(path.relative_to(ROOT))


# ---- programs ----------------------------------------------------------------


class Program(NamedTuple):
    """A fence of `python`, with its context."""

    place: str
    text: str
    needs: tuple
    output: str | None


def programs_of(page):
    text = page.read_text()
    fences = list(FENCE.finditer(text))
    for fence, after in itertools.zip_longest(fences, fences[1:]):
        if fence["language"].strip() == "python":
            needs = NEEDS.search(text[: fence.start()])
            shows = after is not None and after["language"].strip() == "output"
            line = text.count("\n", 0, fence.start()) + 1
            yield Program(
                f"{name_of(page)}:{line}",
                fence["text"],
                tuple(needs[1].split(", ")) if needs else (),
                after["text"] if shows and not text[fence.end() : after.start()].strip() else None,
            )


PROGRAMS = [program for page in PAGES for program in programs_of(page)]
FIRST = {"README.md", "docs/index.md", "docs/tutorial.md"}  # always run, as new users try these first; others: slow


def as_parameter(program):
    marks = () if program.place.split(":")[0] in FIRST else pytest.mark.slow
    return pytest.param(program, id=program.place, marks=marks)


def is_there(need):
    if need.startswith("CPython "):
        has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()  # free-threaded interpreters cannot load NumPy
        return has_gil and sys.version_info >= tuple(map(int, need.split()[1].split(".")))
    return importlib.util.find_spec(need) is not None


def matches(pattern, text):
    """Whether `text` matches `pattern`, in which `...` stands for anything. Blanks at line ends are ignored."""
    parts = [re.escape(part) for part in "\n".join(map(str.rstrip, pattern.splitlines())).strip().split("...")]
    return re.fullmatch(".*".join(parts), "\n".join(map(str.rstrip, text.splitlines())).strip(), re.S) is not None


@pytest.mark.parametrize("program", [as_parameter(program) for program in PROGRAMS])
def test_programs_run_and_print_what_the_page_says(program, tmp_path):
    missing = [need for need in program.needs if not is_there(need)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    (tmp_path / "program.py").write_text(program.text)
    # As a reader runs it, except that it uses the checkout's package. On a busy machine it may take long.
    process = fresh.start(["program.py"], cwd=tmp_path, options=("-W", "ignore:This process:DeprecationWarning"))
    completed = fresh.finish(process, timeout=LIMIT_S)
    assert completed.returncode == 0, completed
    if program.output is not None:
        assert matches(program.output, completed.out), f"the page says:\n{program.output}\n{completed}"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.place)
def test_programs_name_the_packages_that_they_need(program):
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(program.text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported - sys.stdlib_module_names - {"pool_party"} <= set(program.needs)


def test_the_pages_have_programs():
    assert len(PROGRAMS) > 10
    assert any(program.output for program in PROGRAMS)


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        ("a\n", "a", True),
        ("a  \nb", "a\nb\n", True),
        ("a ... c", "a b\nb c", True),
        ("a ... c", "a b", False),
        ("[1, 2]", "[1, 3]", False),
        ("a.c", "abc", False),
    ],
)
def test_what_matches(pattern, text, is_match):
    assert matches(pattern, text) is is_match


# ---- links -------------------------------------------------------------------

LINK = re.compile(r"!?\[(?:[^\]\\]|\\.)*\]\((?P<target>[^)\s]+)\)")
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.S)


def prose_of(text):
    """Return the text without fences and code, in which brackets have other meanings."""
    return CODE.sub("", FENCE.sub("", text))


def slug_of(heading):
    """Return a heading's anchor, which is the same on the site and on code hosts."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    text = re.sub(r"(?<!\w)\*+|\*+(?!\w)", "", text).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@functools.cache
def anchors_of(path):
    slugs = set()
    for heading in re.findall(r"^#{1,6}[ ]+(.+?)[ #]*$", FENCE.sub("", path.read_text()), re.M):
        slug = slug_of(heading)
        repeats = sum(1 for known in slugs if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", known))
        slugs.add(f"{slug}-{repeats}" if slug in slugs else slug)
    return slugs


def what_is_wrong(page, target):
    """Return why a relative link of a page leads nowhere, or None."""
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.is_relative_to(ROOT):
        return "it leaves the repository"
    if not file.exists():
        return "there is no such file"
    if anchor and file.suffix == ".md" and anchor not in anchors_of(file):
        return f"{name_of(file)} has no such heading, but {sorted(anchors_of(file))}"
    return None


def links_of(page):
    return [match["target"] for match in LINK.finditer(prose_of(page.read_text()))]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_and_anchors_lead_somewhere(page):
    inner = [target for target in links_of(page) if not re.match(r"[a-z]+:", target)]
    wrong = {target: reason for target in inner if (reason := what_is_wrong(page, target))}
    assert not wrong


def test_the_pages_have_links():
    assert sum(len(links_of(page)) for page in PAGES) > 30


def test_a_dead_link_is_found():
    page = ROOT / "README.md"
    assert what_is_wrong(page, "docs/nowhere.md") == "there is no such file"
    assert "no such heading" in what_is_wrong(page, "ARCHITECTURE.md#nothing")
    assert what_is_wrong(page, "ARCHITECTURE.md#layers") is None
    assert what_is_wrong(page, "../elsewhere.md") == "it leaves the repository"


@pytest.mark.parametrize(
    ("heading", "slug"),
    [
        ("What lives in `__main__`", "what-lives-in-__main__"),
        ("The walk of one `pool.map(f, xs)`", "the-walk-of-one-poolmapf-xs"),
        ("[A link](x.md), and *more*", "a-link-and-more"),
    ],
)
def test_anchors_are_those_of_the_site(heading, slug):
    assert slug_of(heading) == slug


# ---- the site ----------------------------------------------------------------


def test_every_page_is_in_the_site():
    """A page that no table of contents names cannot be found, and Sphinx would reject it."""
    docs = ROOT / "docs"
    entries = set()
    for page in docs.rglob("*.md"):
        for fence in FENCE.finditer(page.read_text()):
            if fence["language"].strip() == "{toctree}":
                names = re.findall(r"^(?:[^:\n].*<(.+)>|([^:\n<]+))$", fence["text"], re.M)
                entries |= {(page.parent / f"{''.join(name)}.md").resolve() for name in names}
    assert entries == {*docs.rglob("*.md")} - {docs / "index.md"}


def test_the_readme_is_a_front_page():
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


GALLERY = """
import sys, types
sys.modules["pool_party"] = types.SimpleNamespace(__version__="0")
import pathlib
sys.path.insert(0, {docs!r})
import conf
print(conf.list_examples(pathlib.Path({folder!r})))
"""


def test_the_gallery_lists_examples_with_their_output(tmp_path):
    (tmp_path / "output").mkdir()
    (tmp_path / "render.py").write_text('"""Draws a ball.\n\nIn four processes.\n"""\n')
    (tmp_path / "sweep.py").write_text('"""Sweeps."""\n')
    (tmp_path / "_helper.py").write_text("")
    (tmp_path / "output" / "render.txt").write_text("done\n")
    (tmp_path / "output" / "render.svg").write_text("<svg/>")
    code = GALLERY.format(docs=str(ROOT / "docs"), folder=str(tmp_path))
    text = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout
    assert re.findall("^## (.*)$", text, re.M) == ["Draws a ball", "Sweeps"]
    assert "In four processes." in text
    assert re.findall(r"literalinclude\} \S*/(\S+)", text) == ["render.txt", "render.py", "sweep.py"]
    assert re.search(r"!\[.*\]\(\S*output/render.svg\)", text)


@pytest.mark.parametrize("page", ["README.md", "docs/policies.md", "docs/howto/choose-a-kind.md"])
def test_figures_are_of_commits_that_the_page_of_performance_names(page):
    """Figures of another commit would be ones that nobody finds again."""
    commit = re.compile(r"\b(?=\w*\d)[0-9a-f]{10}\b")
    named = set(commit.findall((ROOT / page).read_text()))
    assert named and named <= set(commit.findall((ROOT / "docs" / "performance.md").read_text()))


def test_the_table_of_packages_is_what_was_measured(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "science"))
    import measured

    assert (ROOT / "docs" / "packages.md").read_text() == measured.page()


# ---- the tables of docs/migrating.md -----------------------------------------

MIGRATING = ROOT / "docs" / "migrating.md"
ROW = re.compile(r"^\| `(?P<old>[^`]+)` \| `(?P<new>[^`]+)` \|", re.M)
SECTION = re.compile(r"^## (?P<name>.*)\n\n<!-- needs: (?P<needs>.*?) -->\n(?P<text>(?:(?!^## ).*\n?)*)", re.M)
TABLES = {section["name"]: section for section in SECTION.finditer(MIGRATING.read_text())}
NAMES = """
xs = list(range(20))
pairs = [(x, x + 1) for x in xs]


def f(x):
    return x


def g(x, y):
    return x + y
"""


def program_of(lines):
    """Make a program from a table's lines: the imports, the first `with`, and in it each other line by itself."""
    imports = [line for line in lines if line.startswith("from ")]
    opening, *rest = [line for line in lines if line not in imports]
    assert opening.startswith("with ")
    ends = [line for line in rest if re.match(r"\w+\.(terminate|join|shutdown)\(", line)]  # no calls may follow these
    body = [f"{line} pass" if line.startswith("with ") else line for line in rest if line not in ends] + ends
    indented = [*(f"        {line}" for line in body), '        print("done")']
    return "\n".join([*imports, NAMES, 'if __name__ == "__main__":', f"    {opening}", *indented, ""])


# Old lines run only if their library is installed, which need not be so in the tests' environment.
COLUMNS = [(name, "new") for name in TABLES] + [
    (name, "old") for name, section in TABLES.items() if is_there(section["needs"])
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "column"), COLUMNS)
def test_lines_of_migrating_run(name, column, tmp_path):
    lines = [row[column] for row in ROW.finditer(TABLES[name]["text"])]
    (tmp_path / "program.py").write_text(program_of(lines))
    process = fresh.start(["program.py"], cwd=tmp_path, options=("-W", "ignore"))
    completed = fresh.finish(process, timeout=LIMIT_S)
    assert completed.returncode == 0 and completed.out.endswith("done\n"), f"{program_of(lines)}\n{completed}"


def test_there_is_a_table_for_each_library():
    assert len(TABLES) == 7
    assert all(len(ROW.findall(section["text"])) >= 5 for section in TABLES.values())
