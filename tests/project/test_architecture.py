"""The pages for contributors name files, functions and layers, and what runs where. All of this must be true."""

import collections
import pathlib
import re

import pytest
import test_layers

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "GLOSSARY.md", "RELEASING.md", "native/README.md", "tests/README.md")
FOLDERS = ("pool_party", "native", "tests", "tools", "benchmarks", "examples", "docs", ".ci", ".github")
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


def test_examples_of_some_tests_select_some():
    examples = [found for page in PAGES for found in re.findall(r"(tests/\S+\.py) -k (\w+)", (ROOT / page).read_text())]
    assert len(examples) >= 3
    for path, words in examples:
        assert re.search(rf"^def test_\w*{words}", (ROOT / path).read_text(), re.M), (path, words)


def test_the_page_has_the_layers_of_the_tests():
    table = (ROOT / "ARCHITECTURE.md").read_text().split("| layer, from the top |")[1].split("\n\n")[0]
    named = [set(re.findall(r"`([\w.]+)`", row)) for row in table.splitlines()[2:]]
    parts = {test_layers.place_of(module)[1] for module in test_layers.MODULES} | {"_native"}
    rows = [
        {"pool_party" if part == "__init__" else part for part in row if part in parts} for row in test_layers.LAYERS
    ]
    joined = [*rows[:-3], rows[-3] | rows[-2], rows[-1]]  # the page has one row for the ground
    assert named == joined


# ---- what runs where ---------------------------------------------------------

MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = {path.name: path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")}
CI = (ROOT / ".ci" / "run").read_text()
NO_CHECKS = {
    "help": "it lists the others",
    "format": "it changes files, and lint says whether it would",
    "examples": "it keeps what they print, and the tests run them",
    "pyperformance": "it measures, and the tests run its workloads",
    "clean": "it removes files",
}
RULE = re.compile(r"^(?P<target>[a-z0-9-]+):(?P<parts>[a-z0-9 -]*)(?:#.*)?\n(?P<recipe>(?:\t.*\n)*)", re.M)
PARTS = {rule["target"]: rule["parts"].split() for rule in RULE.finditer(MAKEFILE)}


def called_by_workflow(text):
    """Return the targets that the jobs of a workflow make. A job with a matrix makes each `target` of it."""
    jobs = re.split(r"^  (?=[\w-]+:$)", text.partition("\njobs:\n")[2], flags=re.M)
    made = set()
    for job in jobs:
        called = set(re.findall(r"^ *(?:- )?run: make (\$\{\{ matrix\.target \}\}|[a-z0-9-]+)", job, re.M))
        if "${{ matrix.target }}" in called:
            rows = re.findall(r"\btarget: (\[[^]]*\]|[a-z0-9-]+)", job)
            called |= {target for row in rows for target in re.findall(r"[a-z0-9-]+", row)}
        made |= called - {"${{ matrix.target }}"}
    return made


def called_by_ci(text):
    """Return the targets that .ci/run makes, directly or by its variable `target`."""
    return set(re.findall(r"(?:\bmake |\btarget=)([a-z][a-z0-9-]*)", re.sub(r"^ *#.*", "", text, flags=re.M)))


def unmade(makefile, workflows):
    """Return the targets with tests or checks that no workflow makes, neither by name nor all parts of them."""
    made = set().union(*map(called_by_workflow, workflows))
    rules = [rule for rule in RULE.finditer(makefile) if rule["target"] not in made | NO_CHECKS.keys()]
    return {rule["target"] for rule in rules if rule["recipe"] or not set(rule["parts"].split()) <= made}


def test_every_check_of_the_makefile_runs_in_a_workflow():
    assert unmade(MAKEFILE, WORKFLOWS.values()) == set()


def test_a_check_that_no_workflow_runs_is_found():
    assert unmade(f"{MAKEFILE}\nnew-suite:  ## more tests\n\t@true\n", WORKFLOWS.values()) == {"new-suite"}
    for name in ("cpython", "lint", "soak-cluster", "science"):
        left = [re.sub(rf"(?:\btarget: |\bmake ){name}\b|\b{name}, ", "", text) for text in WORKFLOWS.values()]
        assert name in unmade(MAKEFILE, left)
    assert unmade(MAKEFILE, []) == PARTS.keys() - NO_CHECKS.keys()


def test_ci_and_the_workflows_make_the_same_targets():
    made = set().union(*map(called_by_workflow, WORKFLOWS.values()))
    in_ci = called_by_ci(CI)
    assert {"test", "lint", "cpython", "demo"} <= in_ci <= made <= PARTS.keys()
    assert NO_CHECKS.keys() <= PARTS.keys() - made


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "tests/README.md"])
def test_the_page_says_where_each_check_runs(page):
    """A row whose first cell has `make TARGET` names in its last cell the workflows that make it, and .ci/run."""
    callers = {name: called_by_workflow(text) for name, text in WORKFLOWS.items()} | {".ci/run": called_by_ci(CI)}
    rows = [line.strip("|").split(" | ") for line in (ROOT / page).read_text().splitlines() if "| `make " in line]
    said = {
        target: set(re.findall(r"`(\S+\.yml|\.ci/run)`", where))
        for command, *_, where in rows
        for target in re.findall(r"`make ([a-z0-9-]+)", command)
    }
    made = {target: {name for name in callers if target in callers[name]} for target in said}
    assert said == made
    assert said.keys() >= PARTS.keys() - NO_CHECKS.keys() - {"check"}


def test_the_page_names_every_folder_of_tests():
    tests = ROOT / "tests"
    folders = {f"tests/{path.name}/" for path in tests.iterdir() if path.is_dir() and re.match("[a-z]", path.name)}
    assert set(re.findall(r"`(tests/\w+/)`", (tests / "README.md").read_text())) == folders


def test_nothing_looks_beside_the_repository_but_for_interpreters():
    """Programs begin in the root of the repository, so a path that begins with `..` is outside of it."""
    programs = [ROOT / ".ci/run", *(ROOT / "tools").iterdir(), *(ROOT / "tests/native").iterdir()]
    texts = [path.read_text() for path in programs if path.is_file()] + list(WORKFLOWS.values())
    assert {path for text in texts for path in re.findall(r"(?<![\w/])\.\./[\w./-]+", text)} == {
        "../shared/tools/get-python"
    }


STATIC_FUNCTION = re.compile(
    r"^(?:__attribute__\(\(.*?\)\) )?static\b[^;={}()]*?(?:\(\*)?\b(?!_Atomic\b|__attribute__\b)(\w+)\(", re.MULTILINE
)


def static_functions(path):
    return set(STATIC_FUNCTION.findall(c_code(path)))


C_LAYERS = ("prim", "budget", "channel", "values", "interp", "python")  # each calls only itself and those before it
GLOBAL_FUNCTION = re.compile(
    r"^(?!static|typedef|extern|struct \w+ \{)[a-z][\w *()]*?\b(pp_\w+)\([^;{}]*\) \{", re.MULTILINE
)


def c_code(path):
    return re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)


def calls_upwards(code):
    """Return calls of functions of higher layers: layer of the caller, function, layer of the function.

    code: by layer.
    """
    home = {name: layer for layer, text in code.items() for name in GLOBAL_FUNCTION.findall(text)}
    return {
        (layer, name, home[name])
        for layer, text in code.items()
        for name in re.findall(r"\bpp_\w+", text)
        if C_LAYERS.index(home.get(name, layer)) > C_LAYERS.index(layer)
    }


def test_calls_in_c_point_one_way():
    code = {layer: "\n".join(map(c_code, sorted((ROOT / "native" / layer).glob("*.c")))) for layer in C_LAYERS}
    assert {path.name for path in (ROOT / "native").iterdir() if path.is_dir()} == set(C_LAYERS)
    assert sum(len(GLOBAL_FUNCTION.findall(text)) for text in code.values()) > 350
    assert calls_upwards(code) == set()
    code["channel"] += "\nstatic void f(void) { pp_channel_enter(NULL); }"
    assert calls_upwards(code) == {("channel", "pp_channel_enter", "python")}


def test_static_functions_of_c_have_one_file_each():
    files = sorted((ROOT / "native").rglob("*.[ch]"))
    found = [(name, path.name) for path in files for name in static_functions(path)]
    names = collections.Counter(name for name, _ in found)
    assert len(names) > 500, "the pattern does not fit the code any more"
    assert sorted(pair for pair in found if names[pair[0]] > 1) == []
