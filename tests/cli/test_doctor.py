"""`pool-party doctor`: what it finds, what it says of packages in interpreters, and its exit status."""

import pytest

from pool_party._cli import main as _cli
from pool_party._cli import packages as _packages
from pool_party._cli.packages import Package, advise, describe, find, judge
from pool_party._workers.interp.extensions import IS_SUPPORTED
from pool_party._workers.interp.known import PACKAGES

needs_support = pytest.mark.skipif(not IS_SUPPORTED, reason="needs CPython 3.14 with a GIL")


PUBLIC = [name for name in PACKAGES if not name.startswith("_")]  # the others come with these


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for the test's packages, which new processes find as well."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def rows(lines):
    """A table's rows, by their first cell."""
    table = next(line for line in lines if "installed" in line)
    return {row.split()[0]: row.split() for row in table.splitlines()[2:]}


def test_doctor(capsys):
    assert _cli.main(["doctor", "--workers", "3", "--import", "numpy,no_such_module"]) in (0, 1)
    text = capsys.readouterr().out
    for expected in ("openblas", "pthreads", "dynamic", "interp", "no_such_module cannot be imported", "may run on"):
        assert expected in text
    assert "max_map_count" in text and "RLIMIT_NOFILE" in text
    assert all((f"\n  {name} " in text) == (find(name).version is not None) for name in PUBLIC)


# ---- packages ----


def test_each_installed_package_of_the_list_is_described():
    installed = [name for name in PUBLIC if find(name).version is not None]
    assert list(rows(describe()))[: len(installed)] == installed


def test_installed_packages_that_are_refused_are_named_with_their_reason(folder):
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("")
    lines = list(describe())
    assert rows(lines)["torch"][-3:] == ["no:", "it", "crashes"]
    assert any("torch does not work" in line and "kind='process'" in line for line in lines[1:])


@needs_support
def test_what_puts_files_at_risk_is_said(folder):
    (folder / "rocksdict").mkdir(exist_ok=True)
    (folder / "rocksdict" / "__init__.py").write_text("")
    lines = list(describe(["rocksdict"]))
    assert " ".join(rows(lines)["rocksdict"]).count("only") == 2
    assert any("rocksdict is refused" in line and "at your own risk" in line for line in lines[1:])


def test_installed_packages():
    numpy = pytest.importorskip("numpy")
    assert find("numpy") == Package("numpy", numpy.__version__)
    assert find("no_such_package") == Package("no_such_package", None)


def test_a_namespace_has_no_importer_of_its_own(monkeypatch, tmp_path):
    (tmp_path / "only_a_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert find("only_a_folder") == Package("only_a_folder", "?")


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        (Package("numpy", None), "not installed"),
        (Package("other", "1.0"), "not known"),
        (Package("numpy", PACKAGES["numpy"]), "yes"),
        (Package("numpy", "1.0"), "very likely: another version was tested"),
        (Package("numpy", PACKAGES["numpy"], has_own_importer=True), "no: an editable install"),
    ],
)
def test_what_will_load(monkeypatch, package, expected):
    monkeypatch.setattr(_packages, "IS_SUPPORTED", True)
    assert judge(package) == expected
    assert any("wheel" in line for line in advise([package])) == package.has_own_importer
    monkeypatch.setattr(_packages, "IS_SUPPORTED", False)
    if package.tested and package.version:
        assert judge(package) == "no"
    assert any("these need" in line and "process" in line for line in advise([package]))


def test_an_importer_of_its_own_is_seen(monkeypatch, folder):
    (folder / "plain.py").write_text("")
    assert find("plain") == Package("plain", "?")

    class Importer:
        @staticmethod
        def find_spec(name, path=None, target=None):
            from importlib.machinery import ModuleSpec

            return ModuleSpec(name, Importer) if name == "edited" else None

    monkeypatch.setattr("sys.meta_path", [Importer])
    assert find("edited").has_own_importer


@needs_support
def test_packages_are_tried():
    pytest.importorskip("numpy")
    lines = list(describe(["numpy"]))
    row = rows(lines)["numpy"]
    assert row[-6:-4] == ["imported", "in"] and row[-1] == "mappings" and 10 < int(row[-2]) < 200
    assert not any("failed" in line for line in lines)


def test_what_fails_is_said(capsys, folder):
    (folder / "failing.py").write_text("raise LookupError('nothing here')")
    (folder / "crashing.py").write_text("import os; os.kill(os.getpid(), 11)")
    (folder / "working.py").write_text("")
    assert _cli.main(["doctor", "--import", "", "--check-extensions", "failing, crashing,working,absent"]) == 1
    out = capsys.readouterr().out
    assert "failing failed: LookupError: nothing here" in out
    assert "crashing failed: the process was killed by signal 11 (SIGSEGV)" in out
    working, absent = (next(line for line in out.splitlines() if line.strip().startswith(n)) for n in ("work", "abs"))
    assert "imported in" in working and absent.split() == ["absent", "-", "-", "not", "installed", "-"]
