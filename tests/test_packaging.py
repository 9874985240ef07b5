"""What is published: the distribution's name and metadata, and the files from which it is built."""

import importlib.metadata
import pathlib
import re
import tomllib

import fresh
import pytest

import pool_party

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
INTERPRETERS = re.search(r"^versions=\((.*)\)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)[1].split()


def test_the_distribution_is_called_otherwise_than_the_package():
    metadata = importlib.metadata.metadata("composable-pool")
    assert metadata["Name"] == "composable-pool"
    assert metadata["Version"] == pool_party.__version__


def test_the_command_keeps_its_name():
    (command,) = importlib.metadata.distribution("composable-pool").entry_points.select(group="console_scripts")
    assert (command.name, command.value) == ("pool-party", "pool_party.cli.main:main")


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


@pytest.mark.slow
def test_the_smoke_test_of_wheels():
    done = fresh.run([ROOT / "tests" / "smoke.py"])
    assert done.returncode == 0, done
    assert done.out.count("an executor") == 5
