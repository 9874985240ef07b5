"""Every module can be imported alone without a warning, and public names have their public module."""

import pathlib
import sys

import fresh
import pytest

import pool_party

ROOT = pathlib.Path(pool_party.__file__).parent
MODULES = sorted(
    ".".join(("pool_party", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
)


@pytest.mark.parametrize("module", MODULES)
def test_module_is_imported_alone(module):
    if module == "pool_party.integrations.joblib":
        pytest.importorskip("joblib")
    fresh.check(fresh.run(["-W", "error", "-c", f"import {module}"]), "")


def test_public_names():
    for name in pool_party.__all__:
        value = getattr(pool_party, name)
        assert name == "__version__" or value.__module__ == "pool_party"
        assert name in dir(pool_party)


def test_unknown_name():
    with pytest.raises(AttributeError, match="has no attribute 'Pool'"):
        _ = pool_party.Pool


def test_a_worker_starts_with_few_modules():
    """A fresh interpreter's start must not import pickle, typing or threading."""
    code = "import sys, pool_party.workers.loop; print({'_pickle', 'typing', 'threading', 'pickle'} & set(sys.modules))"
    fresh.check(fresh.run(["-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT.parent)!r}); {code}"]), "set()")


HEAVY = (
    *("asyncio", "cloudpickle", "ctypes", "dataclasses", "email", "hashlib", "importlib.metadata", "inspect", "json"),
    *("logging", "multiprocessing", "numpy", "pickle", "psutil", "re", "socket", "subprocess", "tempfile", "traceback"),
    *("concurrent.futures", "threadpoolctl", "signal", "pool_party.observe"),
)

OPEN = """
import sys
from pool_party import ComposablePool
with ComposablePool(2, kind={kind!r}) as pool:
    assert pool.apply(abs, (-2,)) == 2 and pool.map(abs, range(8)) == list(range(8))
    in_worker = pool.apply(eval, ("list(__import__('sys').modules)",))
print({heavy!r} & sys.modules.keys(), {heavy!r}.intersection(in_worker))
"""


@pytest.mark.parametrize("kind", ["thread", "interp"])
def test_a_pool_is_opened_and_used_with_few_modules(kind):
    """Import and start-up load no slow module of the standard library, and none of other packages."""
    heavy = set(HEAVY)
    if sys.version_info < (3, 13):
        heavy -= {"re"}  # typing imports it
        if kind == "interp":
            pytest.skip("on 3.12 the main interpreter imports first what must not be first in another")
    code = f"import sys; sys.path.insert(0, {str(ROOT.parent)!r}); {OPEN.format(kind=kind, heavy=heavy)}"
    fresh.check(fresh.run(["-I", "-S", "-c", code], options=()), "set() set()")  # -W would import re


def test_a_worker_process_imports_no_typing():
    """A worker process's own imports, beyond those of multiprocessing."""
    code = (
        "import sys, pool_party.workers.process, pool_party.budget.terms; print({'typing', 'ast'} & set(sys.modules))"
    )
    fresh.check(fresh.run(["-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT.parent)!r}); {code}"]), "set()")


FIRST_CALL = """
import multiprocessing, sys
from pool_party import ComposablePool
def double(x):
    return 2 * x
with ComposablePool(1, kind="process", context=multiprocessing.get_context("fork")) as pool:
    assert pool.map(double, range(3)) == [0, 2, 4]
print({"cloudpickle", "hashlib"} & sys.modules.keys())
"""


def test_a_function_of_a_script_needs_no_slow_modules(tmp_path):
    """Forked workers have the function, so nothing is pickled by value, and nothing is hashed."""
    script = tmp_path / "script.py"
    script.write_text(FIRST_CALL)
    fresh.check(fresh.run([str(script)]), "set()")
