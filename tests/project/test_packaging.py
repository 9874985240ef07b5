"""What is published: the distribution's name and metadata, and the files from which it is built."""

import importlib.metadata
import pathlib
import platform
import re
import runpy
import sys
import tomllib
import types

import fresh
import pytest

import pool_party

ROOT = pathlib.Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
INTERPRETERS = re.search(r"^versions=\((.*)\)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)[1].split()


def test_the_distribution_is_called_otherwise_than_the_package():
    metadata = importlib.metadata.metadata("composable-pool")
    assert metadata["Name"] == "composable-pool"
    assert metadata["Version"] == pool_party.__version__


def test_the_command_keeps_its_name():
    (command,) = importlib.metadata.distribution("composable-pool").entry_points.select(group="console_scripts")
    assert (command.name, command.value) == ("pool-party", "pool_party._cli.main:main")


def test_classifiers_name_the_interpreters_that_are_tested():
    prefix = "Programming Language :: Python :: "
    named = {classifier.removeprefix(prefix) for classifier in PROJECT["project"]["classifiers"]}
    tested = {name.removesuffix("t") for name in INTERPRETERS}
    assert {name for name in named if re.fullmatch(r"3\.\d+", name)} == tested
    assert ("Free Threading" in named) == any(name.endswith("t") for name in INTERPRETERS)


def test_the_extension_is_built_from_all_of_native():
    (extension,) = PROJECT["tool"]["setuptools"]["ext-modules"]
    assert sorted(extension["sources"]) == sorted(
        str(path.relative_to(ROOT)) for path in (ROOT / "native").rglob("*.c")
    )


# ---- the text for PyPI -------------------------------------------------------

TARGET = re.compile(r"\]\((?P<target>[^)\s]+)\)")
SOURCE = PROJECT["project"]["urls"]["Source"]


@pytest.fixture
def setup(monkeypatch):
    """What setup.py makes of the README as it is now, and its build command, without building anything."""
    settings = {}
    build_ext = types.SimpleNamespace(build_ext=object)
    monkeypatch.setitem(sys.modules, "setuptools", types.SimpleNamespace(setup=settings.update))
    monkeypatch.setitem(sys.modules, "setuptools.command", types.SimpleNamespace(build_ext=build_ext))
    monkeypatch.setitem(sys.modules, "setuptools.command.build_ext", build_ext)
    names = runpy.run_path(str(ROOT / "setup.py"))
    return settings["long_description"], names["BuildExtension"]


@pytest.fixture
def long_description(setup):
    return setup[0]


def test_a_build_for_another_machine_ends_with_one_sentence(setup, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(SystemExit, match="supports Linux on x86-64 and arm64; this is Linux on riscv64"):
        setup[1]().build_extensions()


def test_all_links_of_the_built_metadata_are_absolute():
    metadata = importlib.metadata.metadata("composable-pool")
    assert metadata["Description-Content-Type"] == "text/markdown"
    links = TARGET.findall(metadata.get_payload() or metadata["Description"])
    assert len(links) > 10
    assert not [link for link in links if not link.startswith("https://")]


def test_links_for_pypi_lead_to_files_of_the_repository(long_description):
    links = TARGET.findall(long_description)
    assert len(links) == len(TARGET.findall((ROOT / "README.md").read_text())) > 10
    paths = [re.fullmatch(rf"{re.escape(SOURCE)}/(?:blob|raw)/main/([^#]+)(?:#.*)?", link)[1] for link in links]
    assert all((ROOT / path).exists() for path in paths)


def test_the_picture_for_pypi_is_linked_as_a_file(long_description):
    pictures = re.findall(r"!\[[^\]]*\]\((\S+)\)", long_description)
    assert pictures == [f"{SOURCE}/raw/main/docs/pictures/figures.svg"]


def test_code_is_left_alone(long_description):
    def code(text):
        return re.findall("```.*?```", text, re.S)

    assert code(long_description) == code((ROOT / "README.md").read_text()) != []


# ---- wheels ------------------------------------------------------------------


@pytest.mark.slow
def test_the_smoke_test_of_wheels():
    done = fresh.run([ROOT / "tests" / "smoke.py"])
    assert done.returncode == 0, done
    assert done.out.count("an executor") == 5
