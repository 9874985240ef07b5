"""NumPy's own tests in interpreters, by tests/science/run.py, and whether that program notices failures."""

import io
import tarfile

import fresh
import pytest

from pool_party._workers.interp.extensions import IS_SUPPORTED

pytest.importorskip("numpy")

RUN = fresh.TESTS / "science" / "run.py"
needs_support = pytest.mark.skipif(not IS_SUPPORTED, reason="needs CPython 3.14 with a GIL")

SUITE = """
import ctypes

libc = ctypes.CDLL(None)

def test_passes(): pass
def test_fails_in_main_too(): assert False
def test_fails_in_interpreters(): libc.getpid() == libc.gettid() or 1 / 0
def test_crashes(): ctypes.string_at(0)
def test_after_the_crash(): pass
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "suspect"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return folder


@pytest.fixture
def sdist_of_pytest(tmp_path, monkeypatch):
    """A function that puts an sdist of pytest, with these {path: text}, where sdists.py finds it."""
    monkeypatch.syspath_prepend(RUN.parent)
    import sdists

    monkeypatch.setattr(sdists, "CACHE", tmp_path)
    root = tmp_path / f"pytest-{pytest.__version__}"
    root.mkdir()

    def make(texts):
        with tarfile.open(root / "sdist.tar.gz", "w:gz") as sdist:
            for name, text in texts.items():
                member = tarfile.TarInfo(f"{root.name}/{name}")
                member.size = len(text)
                sdist.addfile(member, io.BytesIO(text.encode()))
        return root

    return make


@pytest.mark.slow
@needs_support
def test_numpys_own_tests_in_two_interpreters():
    completed = fresh.run([RUN, "--interpreters", "2", "numpy.fft"], timeout=110)
    assert completed.returncode == 0 and completed.err == "", completed
    counts = [line.split(": ")[1].split()[0] for line in completed.out.splitlines() if "0 failed" in line]
    assert len(counts) == 2 and int(counts[0]) == int(counts[1]) > 100, completed


@pytest.mark.slow
@needs_support
def test_what_goes_wrong_is_seen(package):
    (package / "test_all.py").write_text(SUITE)
    completed = fresh.run([RUN, "suspect"], timeout=110, options=())
    assert completed.returncode == 1 and completed.err == "", completed
    assert "suspect: 2 passed, 3 failed" in completed.out, completed
    assert "2 failed: fails in the main interpreter, too" in completed.out, completed
    assert "UNEXPECTED suspect/test_all.py::test_fails_in_interpreters: ZeroDivisionError" in completed.out, completed
    assert "FAULT exit status -11" in completed.out and "['suspect/test_all.py::test_crashes']" in completed.out, (
        completed
    )


def test_a_difference_between_interpreters_is_seen(monkeypatch):
    monkeypatch.syspath_prepend(RUN.parent)
    from run import differences
    from suites import Seen

    same = {"a": ("passed", ""), "b": ("skipped", "why"), "c": ("failed", "an address")}
    other = {"a": ("passed", ""), "b": ("skipped", "why"), "c": ("failed", "another address")}
    assert differences([Seen(same), Seen(other)]) == {}
    assert list(differences([Seen(same), Seen(same | {"b": ("passed", "")}), Seen(same | {"d": ("passed", "")})])) == [
        "b",
        "d",
    ]


def test_an_sdist_is_unpacked_without_its_own_modules(sdist_of_pytest):
    import sdists

    data = ["docs/pytest.ini", "images/a.png", "setup.py", "tests/pytest/data"]
    tests = ["src/pytest/tests/deep/data", "src/pytest/tests/test_a.py", "testing/test_b.py"]
    own = ["src/pytest/__init__.py", "src/pytest/deep/data", "src/_pytest/a.c", "py.py"]
    root = sdist_of_pytest(dict.fromkeys((*data, *tests, *own), ""))
    assert sdists.unpack("pytest") == root
    found = [str(path.relative_to(root / "pytest")) for path in root.glob("pytest/**/*") if path.is_file()]
    assert sorted(found) == sorted([*data, *tests])


def test_a_suite_of_an_sdist_runs_in_its_folder(sdist_of_pytest):
    from suites import run_suite

    sdist_of_pytest({"tests/test_a.py": "def test_a(): open('tests/data').close()", "tests/data": ""})
    [seen], faults = run_suite("pytest:tests", "main", 1, 100)
    assert seen.outcomes == {"pytest/tests/test_a.py::test_a": ("passed", "")} and faults == [], seen


OWN_SUITE = """
import unittest

class Base(unittest.TestCase):
    def test_a(self): self.fails_here

class Derived(Base):
    fails_here = False
    def test_b(self): pass

def suite():
    return unittest.TestSuite([unittest.defaultTestLoader.loadTestsFromTestCase(Derived)])

def test(): assert not "all of the suite"
"""


def test_a_module_chooses_its_tests(sdist_of_pytest):
    from suites import run_suite

    sdist_of_pytest({"tests/test_a.py": OWN_SUITE})
    [seen], _ = run_suite("pytest:tests", "main", 1, 100)
    module = "pytest/tests/test_a.py"
    assert seen.outcomes == {f"{module}::Derived::{test}": ("passed", "") for test in ("test_a", "test_b")}


def test_counts_are_written_beside_the_table(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(RUN.parent)
    import said
    from suites import Seen

    monkeypatch.setattr(said, "RESULTS", tmp_path / "said.json")
    monkeypatch.setattr(said, "TABLE", tmp_path / "packages.md")
    said.TABLE.write_text("| the table |\n")
    for passed in ("first", "second"):
        seen = Seen({passed: ("passed", ""), "skipped": ("skipped", "why"), "crashes": ("left out", "")})
        said.record("pytest:testing", seen, {"fails": ("Error", "forks")}, {"crashes": "it crashes"})
    table, _, section = said.TABLE.read_text().partition("\n## ")
    assert table == "| the table |\n"
    assert section.count("| pytest:testing |") == 1
    assert section.endswith(" | 1 | 1: 1 forks; 1 not run: it crashes | 1 |\n")
