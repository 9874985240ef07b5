"""Extension modules that do not support interpreters, loaded in interpreters."""

import ctypes
import importlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import foreign
import fresh
import pytest

from pool_party import ComposableExecutor, ComposablePool, InterpreterPool
from pool_party._budget import packages
from pool_party._workers.interp import extensions
from pool_party._workers.interp.elf import Dynamic
from pool_party._workers.interp.extensions import IS_SUPPORTED
from pool_party._workers.interp.known import AT_RISK, PACKAGES, REFUSED, TESTED

np = pytest.importorskip("numpy")

import arrays  # noqa: E402  (it needs NumPy)

needs_support = pytest.mark.skipif(not IS_SUPPORTED, reason="needs CPython 3.14 with a GIL")


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


@needs_support
@pytest.mark.parametrize("module", ["msgpack._cmsgpack", "tornado.speedups"])
def test_packages_that_can_do_without_have_their_extension_modules(module):
    pytest.importorskip(module)
    with InterpreterPool(1, preload=[module]) as pool:
        assert pool.apply(len, ("ab",)) == 2
    pool.join(timeout=30)


def build(source, out, *flags):
    """Build an extension module."""
    options = ["-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", *flags]
    subprocess.run([os.environ.get("CC", "cc"), fresh.TESTS / "native" / source, *options, "-o", out], check=True)


def describe(folder, name, files, requirements):
    """Write the metadata of a distribution."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    required = "".join(f"Requires-Dist: {other}\n" for other in requirements)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{required}")
    (metadata / "RECORD").write_text("".join(f"{file},,\n" for file in files))


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
        build("extension.c", out, f"-DPREFIX={prefix}", f"-DNAME={in_c}", *flags)
    build("nested.c", folder / "alone" / f"nested{suffix}", "-pthread")
    shutil.copy(folder / "alone" / f"nested{suffix}", folder)
    describe(
        folder, "alone", ["alone/__init__.py"], ["All-Nested>=1; python_version > '3'", "absent", "no; extra == 'x'"]
    )
    describe(folder, "all_nested", [f"nested{suffix}", "pure.py"], ["alone"])
    describe(folder, "no", [f"no{suffix}"], [])
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
def test_a_module_that_mypyc_makes_beside_a_package_is_copied(tmp_path, monkeypatch, make_pool):
    name = "6ec57f__mypyc"
    out = tmp_path / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    build("extension.c", out, "-DPREFIX=PyInit_", f"-DNAME={name}", "-DMULTI_PHASE")
    monkeypatch.syspath_prepend(str(tmp_path))
    pool = make_pool(2, kind="interp", maxtasksperchild=1)
    assert pool.map(foreign.facts, [name] * 4, 1) == [(name, name, 42, 1)] * 4


@needs_support
def test_modules_guard_themselves_as_in_a_process(package, make_pool):
    """One interpreter has one copy of a file, however often the file is imported."""
    pool = make_pool(1, kind="interp", extensions=["alone"])
    assert pool.apply(foreign.import_twice, ("alone._single",)) == 2
    with pytest.raises(ImportError, match="more than once per process"):
        pool.apply(foreign.import_twice, ("alone._multi",))


@needs_support
def test_modules_make_submodules_while_they_are_executed(package, make_pool):
    """Those of Rust do. Modules of other packages are refused meanwhile."""
    pool = make_pool(2, kind="interp", extensions=["alone"])
    assert pool.map(foreign.inner, ["alone.nested"] * 2, 1) == [(True, 1)] * 2


@needs_support
def test_calls_are_scheduled_in_their_own_interpreter(package, make_pool):
    """CPython runs those of all interpreters in the main one."""
    pool = make_pool(2, kind="interp", extensions=["alone"])
    for own, ran_in in pool.map(foreign.run_scheduled, [("alone.nested", False)] * 2, 1):
        assert own == ran_in != 0


@needs_support
def test_calls_of_unknown_threads_are_scheduled_where_their_function_is(package, make_pool):
    """greenlet schedules one when a thread ends, which frees what the thread had."""
    pool = make_pool(2, kind="interp", extensions=["alone"])
    for own, ran_in in pool.map(foreign.run_scheduled, [("alone.nested", True)] * 2, 1):
        assert own == ran_in != 0


@needs_support
def test_calls_that_are_scheduled_after_their_interpreter_are_dropped(package):
    """greenlet schedules one when the worker's own thread ends."""
    (to_read, to_tell), (to_hear, to_write) = os.pipe(), os.pipe()
    with os.fdopen(to_tell, "wb", buffering=0) as tell, os.fdopen(to_hear, "rb", buffering=0) as hear:
        with ComposablePool(1, kind="interp", extensions=["alone"]) as pool:
            pool.apply(foreign.schedule_late, (("alone.nested", to_read, to_write),))
        pool.join(timeout=30)
        tell.write(b".")
        assert hear.read(1) == b"0"
        for _ in range(1000):  # the main interpreter would run it now
            pass
        tell.write(b".")
        assert hear.read() == b"-"
    os.close(to_read)


@needs_support
def test_unknown_threads_enter_their_own_interpreter(package, make_pool):
    """CPython lets them enter the main one, where objects of a copy must not be used."""
    pool = make_pool(2, kind="interp", extensions=["alone"])
    for own, entered in pool.map(foreign.enter_in_raw_thread, ["alone.nested"] * 4, 1):
        assert own == entered != 0
    here = importlib.import_module("alone.nested")
    assert here.entered() == here.here() == 0


@needs_support
@pytest.mark.parametrize("how", ["ctypes", "keeps"])
def test_callbacks_in_unknown_threads_are_their_interpreters(package, how):
    """CPython runs those of ctypes in the main one. Those of cffi keep the states of threads that have ended."""
    fresh.check(fresh.run([fresh.TESTS / "isolated" / "calling_back.py", "check", package, how]), "ok")


@needs_support
def test_the_end_may_wait_for_unknown_threads_that_enter(package):
    with ComposablePool(1, kind="interp", extensions=["alone"]) as pool:
        pool.apply(foreign.enter_at_exit, ("alone.nested",))
    pool.join(timeout=60)  # raises if the interpreter has not ended


@pytest.fixture
def environment():
    """Return a function that reads a variable from the C library's environment, which extension modules set."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    names = []

    def read(name):
        if name not in names:
            libc.unsetenv(name)
            names.append(name)
        return libc.getenv(name)

    yield read
    for name in names:
        libc.unsetenv(name)


@needs_support
def test_functions_for_the_end_are_called_when_the_interpreter_ends(package, environment):
    """CPython calls them when the program ends, and copies are closed by then. DuckDB and nanobind register some."""
    assert environment(b"PP_TEST_EXIT") is None
    with ComposablePool(1, kind="interp", extensions=["alone"]) as pool:
        assert pool.apply(foreign.register_exit, ("alone.nested",))
        assert environment(b"PP_TEST_EXIT") is None
    pool.join(timeout=30)
    assert environment(b"PP_TEST_EXIT") == b"ended"


@pytest.fixture
def counting(tmp_path, monkeypatch):
    """Return a function that builds an extension module `counting`, and the library of that name that it needs."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(library):
        build("counting.c", tmp_path / f"lib{library}.so", f"-Wl,-soname,lib{library}.so")
        out = tmp_path / f"counting{sysconfig.get_config_var('EXT_SUFFIX')}"
        build("counting.c", out, "-DMODULE", f"-L{tmp_path}", f"-l{library}", "-Wl,-rpath,$ORIGIN")

    return make


@pytest.mark.parametrize(
    ("library", "counts"), [("hdf5_counting", [1, 1]), ("faiss_counting", [1, 1]), ("shared_counting", [1, 2])]
)
@needs_support
def test_some_libraries_are_copied_too(counting, library, counts, make_pool):
    """Each interpreter has its own HDF5, whose lock is a lock of the module's; others are shared.

    Symbols that are unique in a process are not in copies: each has its own.
    """
    counting(library)
    pools = [make_pool(1, kind="interp", extensions=["counting"]) for _ in range(2)]
    assert [pool.apply(foreign.count, ("counting",)) for pool in pools] == [(n, 1) for n in counts]


@needs_support
def test_a_copy_takes_two_mappings(package, make_pool):
    """One of the original file, for all that is only read, and one without a file for its data. The memfd is freed."""
    nested = str(package / "alone" / "nested")
    before = pathlib.Path("/proc/self/maps").read_text()  # with what other tests have loaded
    pool = make_pool(2, kind="interp", extensions=["alone"], maxtasksperchild=1)
    for _ in range(2):
        lines = pool.apply(foreign.lines_of_maps, ("alone.nested", nested))
        copies = [line for line in lines if nested in line and line not in before]
        assert copies and all(" r-xp " in line for line in copies) and "memfd:nested" not in str(lines)
        for line in copies:
            data = lines[lines.index(line) + 1].split()
            assert data[0].startswith(line.split()[0].partition("-")[2]) and data[1] == "rw-p" and data[4] == "0"


@pytest.mark.parametrize("names", [["libpart", "counting", "libpart"], ["counting", "libpart", "counting"]])
@needs_support
def test_a_module_that_another_one_needs_as_a_library_is_copied_once(names, tmp_path, monkeypatch, make_pool):
    """It has no name of its own, so the linker finds it by its file, which a copy is not."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    folders = "-Wl,-rpath,$ORIGIN:$ORIGIN/libraries"
    build("counting.c", tmp_path / f"libpart{suffix}", "-DPART", folders)
    build("counting.c", tmp_path / f"counting{suffix}", "-DMODULE", f"-L{tmp_path}", f"-l:libpart{suffix}", folders)
    monkeypatch.syspath_prepend(str(tmp_path))
    pools = [make_pool(1, kind="interp", extensions=["counting", "libpart"]) for _ in range(2)]
    assert [pool.apply(foreign.count_in, (names,)) for pool in pools] == [[1, 2, 3]] * 2


@pytest.mark.parametrize("name", ["lib", "libalone"])
@needs_support
def test_a_module_that_no_other_needs_may_be_named_like_a_library(name, tmp_path, monkeypatch, make_pool):
    """pandas has one whose name is "lib"."""
    out = tmp_path / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    build("extension.c", out, "-DPREFIX=PyInit_", f"-DNAME={name}", "-DMULTI_PHASE")
    monkeypatch.syspath_prepend(str(tmp_path))
    pool = make_pool(2, kind="interp", extensions=[name], maxtasksperchild=1)
    assert pool.map(foreign.facts, [name] * 4, 1) == [(name, name, 42, 1)] * 4


@needs_support
def test_copies_are_closed_together(counting, environment):
    """A library may call what a module that needs it has registered: Arrow does. The module must still be there."""
    assert environment(b"PP_TEST_CLOSED") is None
    counting("hdf5_closing")
    with ComposablePool(1, kind="interp", extensions=["counting"]) as pool:
        pool.apply(foreign.call_at_end, ("counting",))
        assert environment(b"PP_TEST_CLOSED") is None
    pool.join(timeout=30)
    assert environment(b"PP_TEST_CLOSED") == b"called"


@needs_support
def test_arrows_threads_end_with_the_interpreter(counting, environment):
    assert environment(b"PP_TEST_THREADS") is None
    counting("arrow")
    with ComposablePool(1, kind="interp", extensions=["counting"]) as pool:
        assert pool.apply(foreign.count, ("counting",)) == (1, 1)
        assert environment(b"PP_TEST_THREADS") is None
    pool.join(timeout=30)
    assert environment(b"PP_TEST_THREADS") == b" cpu io"


def test_a_package_brings_its_requirements_extensions(package):
    default = extensions.choose(None)
    assert extensions.choose(["alone"]) == (*default, "alone", "nested")
    assert extensions.choose(["nested"]) == (*default, "nested")  # the distribution has another name
    assert extensions.choose(["unknown", "numpy"]) == (*default, "unknown")


@needs_support
def test_requirements_are_loaded_as_well(package, make_pool):
    assert make_pool(1, kind="interp", extensions=["alone"]).apply(foreign.inner, ("nested",)) == (True, 1)


def count_free_keys():
    """Count how many more TSS keys this process could create."""
    libc, key, keys = ctypes.CDLL(None), ctypes.c_uint(), []
    while libc.pthread_key_create(ctypes.byref(key), None) == 0:
        keys.append(key.value)
    for made in keys:
        libc.pthread_key_delete(made)
    return len(keys)


@needs_support
@pytest.mark.parametrize(
    ("function", "name"), [*((foreign.facts, name) for name in MODULES), (foreign.make_key, "alone.nested")]
)
def test_keys_are_deleted(package, function, name):
    """A process has some 1,000 keys, and modules made with pybind11 or in Rust never delete theirs."""
    before = count_free_keys()
    with ComposablePool(2, kind="interp", extensions=["alone"]) as pool:
        pool.map(function, [name] * 2, 1)
        assert count_free_keys() < before
    pool.join(timeout=30)
    assert count_free_keys() == before


@needs_support
@pytest.mark.parametrize("name", MODULES)
def test_constructors_run_once_in_their_order(package, make_pool, name):
    here = foreign.constructed(name)
    assert here[0] == 2 and here[1] > 0
    assert make_pool(1, kind="interp", extensions=["alone"]).apply(foreign.constructed, (name,)) == here


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
    assert re.search("numpy .* needs glibc, .*kind='process'", extensions._unsupported("numpy"))


# ---- what is refused ----

_DEADLY = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Return a function that makes a package with this source. New pools find it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name, source=""):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(source)
        return tmp_path / name

    return make


@pytest.mark.parametrize("asked_for", [None, ["torch"], ()])
def test_what_crashes_is_refused_with_its_reason(library, make_pool, asked_for):
    library("torch", _DEADLY)
    pool = make_pool(1, kind="interp", extensions=asked_for)
    with pytest.raises(
        ImportError, match=r"^torch does not work .* because .*crashes.*: use kind='process' or 'thread'"
    ):
        pool.apply(importlib.import_module, ("torch",))


def test_everything_refused_has_its_sentence(library, make_pool):
    for name in REFUSED:
        package, _, module = name.partition(".")
        library(package, "" if module else _DEADLY)
        if module:
            library(f"{package}/{module}", _DEADLY)
    pool = make_pool(1, kind="interp")
    for name in REFUSED:
        with pytest.raises(
            ImportError, match=f"^{name.partition('.')[0]} does not work .* because .* use kind='process'"
        ):
            pool.apply(importlib.import_module, (name,))


@needs_support
@pytest.mark.parametrize("name", [name for name in AT_RISK if not name.startswith("_")])
def test_what_puts_files_at_risk_is_refused_unless_it_is_named(library, make_pool, name):
    library(name, "answer = 42")
    sentence = rf"^{name} is refused .*\(fcntl\) do not conflict.*kind='process'.*extensions=\['{name}'\] at your own"
    with pytest.raises(ImportError, match=sentence):
        make_pool(1, kind="interp").apply(importlib.import_module, (name,))
    assert make_pool(1, kind="interp", extensions=[name]).apply(foreign.attribute, (name, "answer")) == 42


@needs_support
@pytest.mark.parametrize("how", ["fcntl", "fcntl waiting", "lockf", "flock"])
@pytest.mark.parametrize("is_default", [True, False])
def test_locks_that_do_not_conflict_are_refused(tmp_path, how, is_default):
    """Two copies in one process could have a lock of the process for one file.

    Those who name a package in `extensions` take the risk.
    """
    name = "ujson" if is_default else "locking"
    assert (name in PACKAGES) == is_default
    build("locking.c", tmp_path / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}", f"-DNAME={name}")
    done = fresh.run([fresh.TESTS / "isolated" / "locking.py", "check", tmp_path, name, how])
    assert done.returncode == 0 and done.out.split() == ["ok"], done
    is_refused = is_default and how != "flock"
    assert (
        bool(re.search("was refused a lock .*two workers could damage the file.*kind='process'", done.err))
        == is_refused
    )


def test_those_who_can_do_without_it_go_on(library, make_pool):
    """They try to import it, or ask `importlib.util.find_spec` first."""
    library("torch", _DEADLY)
    library(
        "asks", "import importlib.util\nfound = importlib.util.find_spec('torch'), importlib.util.find_spec('json')"
    )
    library("tries", "try:\n    import torch.sql\nexcept ImportError:\n    torch = None")
    assert make_pool(1, kind="interp").apply(foreign.imports_of, (("asks", "tries"),)) == [True, True]


def test_a_module_of_the_users_own_may_have_such_a_name(library, make_pool):
    (library("unused").parent / "jax.py").write_text("answer = 42")
    assert make_pool(1, kind="interp").apply(foreign.attribute, ("jax", "answer")) == 42


@pytest.mark.parametrize(("name", "setter"), [(name, packages.SETTINGS[name][1]) for name in extensions.ENDLESS])
def test_threads_of_some_packages_end_with_the_interpreter(library, make_pool, tmp_path, name, setter):
    """OpenCV and NumExpr end them if they are told to use one; by themselves they never do."""
    count = tmp_path / "count"
    library(name, f"def {setter}(n):\n    with open({str(count)!r}, 'a') as out:\n        print(n, file=out)")
    pool = make_pool(1, kind="interp")
    assert pool.apply(foreign.attribute, (name, "__name__")) == name
    assert not count.exists()
    pool.close()
    pool.join(timeout=30)
    assert count.read_text() == "1\n"


def test_what_is_not_installed_is_not_found(make_pool):
    if importlib.util.find_spec("torch") is None:
        with pytest.raises(ModuleNotFoundError, match=r"^No module named 'torch'"):
            make_pool(1, kind="interp").apply(importlib.import_module, ("torch",))


# ---- programs ----


@needs_support
@pytest.mark.parametrize("order", ["before", "during", "after", "busy"])
def test_beside_the_main_interpreter(order):
    fresh.check(fresh.run([fresh.TESTS / "isolated" / "arrays_beside.py", "work", order]), "ok")


@needs_support
def test_a_library_is_limited_as_it_is_loaded():
    fresh.check(fresh.run([fresh.TESTS / "isolated" / "arrays_beside.py", "limited"]), "ok")


@pytest.mark.skipif("ASAN_OPTIONS" in os.environ, reason="freed memory stays allocated for a while")
@needs_support
def test_pools_leave_nothing_behind():
    fresh.check(fresh.run([fresh.TESTS / "isolated" / "arrays_leaks.py", "check"], timeout=100), "ok")


@pytest.fixture(scope="module")
def staying(tmp_path_factory):
    """A folder with an extension module `staying`, whose threads outlive interpreters, and a library that it needs."""
    folder = tmp_path_factory.mktemp("staying")
    build("staying.c", folder / "libshared_starter.so", "-DLIBRARY", "-Wl,-soname,libshared_starter.so", "-pthread")
    needed = [f"-L{folder}", "-lshared_starter", "-Wl,-rpath,$ORIGIN", "-pthread"]
    if shutil.which("c++"):
        needed += ["-DCXX", str(fresh.TESTS / "native" / "staying.cpp"), "-lstdc++"]
    build("staying.c", folder / f"staying{sysconfig.get_config_var('EXT_SUFFIX')}", *needed)
    return folder


@needs_support
@pytest.mark.parametrize(
    "how",
    [
        *("sleeps", "spins", "python", "elsewhere", "begins", "c++", "handles", "refers"),
        *("ends", "forks", "takes back", "nothing"),
    ],
)
def test_what_is_left_behind_may_go_on(staying, how):
    """The copy of a module stays loaded as long as a thread may run or return to its code, or signals or the data of a
    library lead there.
    """
    if how == "c++" and not shutil.which("c++"):
        pytest.skip("needs a C++ compiler")
    if how == "begins" and "ASAN_OPTIONS" in os.environ:
        pytest.skip("ASAN keeps what threads begin with in memory of its own")
    fresh.check(fresh.run([fresh.TESTS / "isolated" / "staying.py", "check", staying, how]), "ok")


@pytest.mark.slow
@needs_support
@pytest.mark.parametrize("n", [int(os.environ.get("PP_INTERPRETERS", "12"))])
def test_many_interpreters_with_packages_chosen_at_random(n):
    """PP_INTERPRETERS says how many."""
    program = [fresh.TESTS / "isolated" / "random_packages.py", "check", str(n)]
    done = fresh.run(program, timeout=3000, options=())
    assert done.returncode == 0 and done.out.split() == ["ok"], done


@needs_support
@pytest.mark.parametrize("what", ["bytes", "array"])
def test_memory_that_others_use_outlives_the_interpreter(what):
    fresh.check(fresh.run([fresh.TESTS / "isolated" / "arrays_lent.py", "read", what]), "ok")


# ---- limits of the system ----


@needs_support
@pytest.mark.parametrize("what", ["mappings", "static_tls"])
def test_what_is_used_up_by_copies_is_named(counting, tmp_path, what):
    counting("shared_counting")
    build("hungry.c", tmp_path / f"hungry{sysconfig.get_config_var('EXT_SUFFIX')}")
    fresh.check(fresh.run([fresh.TESTS / "isolated" / "exhausting.py", what, tmp_path], timeout=100), "ok")


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


def test_texts_are_replaced(tmp_path):
    extension = importlib.import_module("pool_party._native").__file__
    copy = tmp_path / "copy"
    shutil.copy(extension, copy)
    with copy.open("r+b") as file:
        Dynamic(extension).replace(file.fileno(), {b"open_copy": b"copy_open", b"nowhere at all": b"somewhere else"})
    before, after = pathlib.Path(extension).read_bytes(), copy.read_bytes()
    assert b"open_copy" in before and after == before.replace(b"open_copy", b"copy_open")


def test_the_table_names_versions():
    assert {"numpy", "scipy", "pandas", "sklearn"} == set(TESTED) <= set(PACKAGES) and all(PACKAGES.values())


def test_where_copies_are_not_supported_packages_may_do_without(monkeypatch):
    """Others than those that would crash have their pure Python form there, if they have one."""
    monkeypatch.setattr(extensions, "IS_SUPPORTED", False)
    assert extensions.choose(None) == tuple(TESTED)
    monkeypatch.setattr(extensions, "_allowed", frozenset(TESTED))
    assert not extensions._is_private("6ec57f__mypyc")
