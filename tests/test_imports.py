"""Every module can be imported alone, without a warning; and the public names are what they seem."""

import copy
import dataclasses
import pathlib
import pickle
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
    """Start-up of a fresh interpreter: no pickle, no typing, no threading."""
    code = "import sys, pool_party.workers.loop; print({'_pickle', 'typing', 'threading', 'pickle'} & set(sys.modules))"
    fresh.check(fresh.run(["-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT.parent)!r}); {code}"]), "set()")


HEAVY = (
    *("asyncio", "cloudpickle", "ctypes", "dataclasses", "email", "hashlib", "importlib.metadata", "inspect", "json"),
    *("logging", "multiprocessing", "numpy", "pickle", "psutil", "re", "socket", "subprocess", "tempfile", "traceback"),
    *("concurrent.futures", "threadpoolctl", "ast", "annotationlib", "enum", "signal", "pool_party.observe"),
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
    """Import and start-up: nothing of the standard library that is slow to import, and nothing of others."""
    heavy = set(HEAVY)
    if sys.version_info < (3, 13):
        heavy -= {"enum", "re"}  # typing imports these
        if kind == "interp":
            pytest.skip("on 3.12 the main interpreter imports first what must not be first in another")
    code = f"import sys; sys.path.insert(0, {str(ROOT.parent)!r}); {OPEN.format(kind=kind, heavy=heavy)}"
    fresh.check(fresh.run(["-I", "-S", "-c", code], options=()), "set() set()")  # -W would import re


def test_a_worker_process_imports_no_typing():
    """What it has of its own to import, beside what multiprocessing does."""
    code = (
        "import sys, pool_party.workers.process, pool_party.budget.terms; print({'typing', 'ast'} & set(sys.modules))"
    )
    fresh.check(fresh.run(["-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT.parent)!r}); {code}"]), "set()")


def test_records_are_dataclasses_to_whoever_asks():
    """They are made without that module; replace, asdict, fields and subclasses work all the same."""
    share = pool_party.Share(2, (0, 1))
    assert repr(share) == "Share(n_threads=2, cpus=(0, 1))"
    assert dataclasses.replace(share, n_threads=1) == pool_party.Share(n_threads=1, cpus=(0, 1)) != share
    assert dataclasses.asdict(share) == {"n_threads": 2, "cpus": (0, 1)}
    assert pickle.loads(pickle.dumps(share)) == copy.deepcopy(share) == share
    assert hash(share) == hash(pool_party.Share(2, (0, 1)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        share.n_threads = 3
    with pytest.raises(TypeError, match="cpus"):
        pool_party.Share(1)

    @dataclasses.dataclass(frozen=True)
    class Named(pool_party.Share):
        name: str = "a"

    assert Named(1, (0,)) == Named(1, (0,), "a") != pool_party.Share(1, (0,))
