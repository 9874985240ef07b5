"""Extension modules that do not support interpreters, loaded in interpreters."""

import ctypes
import importlib
import os
import pathlib
import re
import subprocess
import sys
import sysconfig

import foreign
import fresh
import pytest

from pool_party import ComposableExecutor, ComposablePool, InterpreterPool
from pool_party.workers.interp import extensions
from pool_party.workers.interp.elf import Dynamic
from pool_party.workers.interp.extensions import IS_SUPPORTED, PACKAGES

np = pytest.importorskip("numpy")

import arrays  # noqa: E402  (it needs NumPy)

needs_support = pytest.mark.skipif(not IS_SUPPORTED, reason="needs CPython 3.14 with a GIL")
HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def pool():
    with ComposablePool(2, kind="interp") as pool:
        yield pool
    pool.join(timeout=30)


# ---- modules ----


@needs_support
def test_functions_travel_by_reference(pool):
    for here, there in zip(arrays.callables(), pool.apply(arrays.callables), strict=True):
        assert here is there
    assert pool.map(np.sqrt, [4.0, 9.0]) == [2.0, 3.0]


@needs_support
def test_modules_name_their_originals(pool):
    assert pool.apply(arrays.private_modules) == arrays.private_modules()
    assert pool.apply(arrays.has_resource)


@needs_support
def test_reload_is_refused(pool):
    with pytest.raises(ImportError, match="cannot be reloaded"):
        pool.apply(arrays.reload, ("numpy.linalg._umath_linalg",))
    assert pool.apply(arrays.double, (np.ones(1),)).tolist() == [2.0]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A package `alone` of extension modules that refuse interpreters: single-phase, multi-phase, and one with a
    non-ASCII name.
    """
    folder = tmp_path_factory.mktemp("packages")
    (folder / "alone").mkdir()
    (folder / "alone" / "__init__.py").write_text("")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    punycode = "grün".encode("punycode").replace(b"-", b"_").decode()
    modules = [("_single", "PyInit_", "_single", ()), ("_multi", "PyInit_", "_multi", ("-DMULTI_PHASE",))]
    modules.append(("grün", "PyInitU_", punycode, ("-DMULTI_PHASE",)))
    for name, prefix, in_c, flags in modules:
        out = folder / "alone" / f"{name}{suffix}"
        options = ["-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", f"-DPREFIX={prefix}", f"-DNAME={in_c}"]
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, *options, *flags, HERE / "native" / "extension.c", "-o", out], check=True)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "alone"]:
        del sys.modules[name]


MODULES = ("alone._single", "alone._multi", "alone.grün")


@needs_support
@pytest.mark.parametrize("name", MODULES)
def test_other_packages_are_refused_with_advice(package, pool, make_pool, name):
    fresh_pool = make_pool(1, kind="interp")  # this pool's sys.path contains the package
    with pytest.raises(ImportError, match=r"does not support.*kind='process'.*extensions=\['alone'\].*own risk"):
        fresh_pool.apply(importlib.import_module, (name,))


@needs_support
@pytest.mark.parametrize("name", MODULES)
def test_others_load_at_ones_own_risk(package, make_pool, name):
    here = importlib.import_module(name)
    pool = make_pool(2, kind="interp", extensions=["alone"], maxtasksperchild=1)
    assert pool.map(foreign.facts, [name] * 4, 1) == [(name, name, 42, 1)] * 4
    assert here.count() == 1  # each interpreter has its own count
    assert pool.apply(here.count) == 1


@needs_support
def test_modules_guard_themselves_as_in_a_process(package, make_pool):
    """One interpreter has one copy of a file, however often the file is imported."""
    pool = make_pool(1, kind="interp", extensions=["alone"])
    assert pool.apply(foreign.import_twice, ("alone._single",)) == 2
    with pytest.raises(ImportError, match="more than once per process"):
        pool.apply(foreign.import_twice, ("alone._multi",))


def count_free_keys():
    """Count how many more TSS keys this process could create."""
    libc, key, keys = ctypes.CDLL(None), ctypes.c_uint(), []
    while libc.pthread_key_create(ctypes.byref(key), None) == 0:
        keys.append(key.value)
    for made in keys:
        libc.pthread_key_delete(made)
    return len(keys)


@needs_support
@pytest.mark.parametrize("name", MODULES)
def test_keys_are_deleted(package, name):
    """A process has some 1,000 keys, and modules made with pybind11 never delete theirs."""
    before = count_free_keys()
    with ComposablePool(2, kind="interp", extensions=["alone"]) as pool:
        pool.map(foreign.facts, [name] * 2, 1)
        assert count_free_keys() < before
    pool.join(timeout=30)
    assert count_free_keys() == before


@needs_support
def test_joblib_makes_no_pools_in_a_worker(pool):
    """Its pools need daemon threads. The variable is set in that interpreter only."""
    assert pool.apply(os.getenv, ("JOBLIB_MULTIPROCESSING",)) == os.environ.get("JOBLIB_MULTIPROCESSING", "0")
    assert "JOBLIB_MULTIPROCESSING=0" not in subprocess.check_output(["env"], text=True).splitlines()


@needs_support
def test_none_at_all(make_pool):
    with pytest.raises(ImportError, match="does not support loading in subinterpreters"):
        make_pool(1, kind="interp", extensions=()).apply(importlib.import_module, ("numpy",))


@pytest.mark.skipif(IS_SUPPORTED, reason="CPython 3.14 and later load it")
def test_older_versions_say_so(make_pool):
    with pytest.raises(ImportError, match=r"needs CPython 3\.14 or later.*kind='process'"):
        make_pool(1, kind="interp").apply(importlib.import_module, ("numpy",))


def test_another_c_library_is_named(monkeypatch):
    """On musl, whose loader never unloads a library, NumPy is refused before a copy is made."""
    monkeypatch.setattr(extensions, "IS_SUPPORTED", False)
    monkeypatch.setattr(extensions, "_IS_NEW", True)
    assert re.search("numpy .* needs glibc, .*kind='process'", str(extensions._unsupported("numpy")))


# ---- programs ----


@needs_support
@pytest.mark.parametrize("order", ["before", "during", "after", "busy"])
def test_beside_the_main_interpreter(order):
    fresh.check(fresh.run([HERE / "isolated" / "arrays_beside.py", "work", order]), "ok")


@needs_support
def test_a_library_is_limited_as_it_is_loaded():
    fresh.check(fresh.run([HERE / "isolated" / "arrays_beside.py", "limited"]), "ok")


@needs_support
def test_pools_leave_nothing_behind():
    fresh.check(fresh.run([HERE / "isolated" / "arrays_leaks.py", "check"], timeout=100), "ok")


@needs_support
@pytest.mark.parametrize("what", ["bytes", "array"])
def test_memory_that_others_use_outlives_the_interpreter(what):
    fresh.check(fresh.run([HERE / "isolated" / "arrays_lent.py", "read", what]), "ok")


# ---- the option ----


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_it_is_for_interpreters(kind):
    for make in (ComposablePool, ComposableExecutor):
        with pytest.raises(ValueError, match="extensions is for kind='interp'"):
            make(1, kind=kind, extensions=["numpy"])


@pytest.mark.parametrize("names", ["numpy", [1], 5])
def test_names_are_checked(names):
    with pytest.raises(TypeError):
        InterpreterPool(1, extensions=names)


@pytest.mark.parametrize("name", ["numpy.linalg", "", "scikit-learn"])
def test_names_are_of_top_level_packages(name):
    with pytest.raises(ValueError, match="top-level"):
        InterpreterPool(1, extensions=[name])


# ---- libraries that a library needs ----


def test_needed_libraries():
    extension = importlib.import_module("pool_party._native").__file__
    dynamic = Dynamic(extension)
    assert any(name.startswith("libc.so") for name in dynamic.needed) and "$ORIGIN" not in "".join(dynamic.folders)


def test_origin_is_the_files_folder():
    file = next(pathlib.Path(np.__file__).parent.glob("linalg/_umath_linalg*.so"))
    dynamic = Dynamic(str(file))
    assert all("$" not in folder for folder in dynamic.folders) and dynamic.needed


def test_no_elf_file_needs_nothing(tmp_path):
    for data in (b"", b"#!/bin/sh\n" * 20):
        (tmp_path / "file").write_bytes(data)
        dynamic = Dynamic(str(tmp_path / "file"))
        assert (dynamic.name, dynamic.needed, dynamic.folders) == ("", [], [])


def test_the_table_names_versions():
    assert {"numpy", "scipy", "pandas", "sklearn"} <= set(PACKAGES) and all(PACKAGES.values())
