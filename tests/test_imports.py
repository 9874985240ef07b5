"""Every module can be imported alone, without a warning; and the public names are what they seem."""

import pathlib

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
