"""Modules that workers import at their start."""

import subprocess
import sys
import sysconfig
import traceback

import fresh
import gates
import pytest
import tasks

import pool_party
from pool_party import ComposableExecutor, ComposablePool, InterpreterPool, ProcessPool, ThreadPool
from pool_party._workers import preloading
from pool_party._workers.interp.extensions import IS_SUPPORTED

TIMEOUT_S = 60


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for the test's modules, which every kind of worker finds."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and sys.modules[name].__file__.startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder, name, text):
    (folder / f"{name}.py").write_text(text)


def test_modules_are_there_before_the_first_task(make_pool, kind, folder):
    write(folder, "preloaded_one", "import tasks\ntasks.set_local('by the module')\n")
    (folder / "preloaded_two").mkdir()
    write(folder / "preloaded_two", "__init__", "")
    write(folder / "preloaded_two", "part", "")
    pool = make_pool(1, kind=kind, preload=["preloaded_one", "preloaded_two.part"])
    assert pool.apply(tasks.is_imported, ("preloaded_one", "preloaded_two", "preloaded_two.part"))
    assert pool.apply(tasks.get_local) == "by the module"  # imported in the worker's own thread


def test_each_worker_imports_for_itself_but_threads_once(make_pool, kind, folder):
    log = folder / "log"
    write(folder, "preloaded_log", f"import tasks\ntasks.log_line({str(log)!r}, 'imported')\n")
    pool = make_pool(3, kind=kind, preload=["preloaded_log", "preloaded_log"])
    pool.close()
    pool.join(timeout=TIMEOUT_S)
    assert log.read_text().split() == ["imported"] * (1 if kind == "thread" else 3)


def test_before_the_initializer(make_pool, kind, folder):
    write(folder, "preloaded_early", "import tasks\ntasks.set_local('by the module')\n")
    pool = make_pool(1, tasks.set_local, ("by the initializer",), kind=kind, preload=iter(["preloaded_early"]))
    assert pool.apply(tasks.get_local) == "by the initializer"


def test_replacements_preload_too(make_pool, kind, folder):
    write(folder, "preloaded_again", "")
    pool = make_pool(1, kind=kind, maxtasksperchild=1, preload=["preloaded_again"])
    assert pool.map(tasks.is_imported, ["preloaded_again"] * 3, 1) == [True] * 3
    assert pool.statistics().n_workers_started >= 3


def test_processes_of_every_start_method(make_pool, context, folder):
    write(folder, "preloaded_there", "")
    pool = make_pool(2, context=context, kind="process", preload=["preloaded_there"])
    assert pool.map(tasks.is_imported, ["preloaded_there"] * 4, 1) == [True] * 4
    assert "preloaded_there" not in sys.modules


def test_executor(make_executor, kind, folder):
    write(folder, "preloaded_executor", "")
    executor = make_executor(1, kind=kind, preload=["preloaded_executor"])
    assert executor.submit(tasks.is_imported, "preloaded_executor").result(TIMEOUT_S)


@pytest.mark.parametrize("make", [ThreadPool, ProcessPool, InterpreterPool])
def test_pools_of_one_kind(make, folder):
    write(folder, "preloaded_kind", "")
    with make(1, preload=("preloaded_kind",)) as pool:
        assert pool.apply(tasks.is_imported, ("preloaded_kind",))


# ---- failures ----

FAILURES = {
    "missing": (None, "ModuleNotFoundError: No module named 'preloaded_broken'"),
    "error": ("raise LookupError('nothing here')", "LookupError: nothing here"),
    "syntax": ("def", "SyntaxError: "),
    "exit": ("raise SystemExit(3)", "SystemExit: 3"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_breaks_the_pool_and_names_the_module(kind, folder, failure):
    text, message = FAILURES[failure]
    if text is not None:
        write(folder, "preloaded_broken", text)
    with pytest.raises(pool_party.InitializerFailed, match="'preloaded_broken' could not be imported") as caught:
        with ComposablePool(2, kind=kind, preload=["preloaded_broken"]) as pool:
            pool.apply_async(tasks.square, (2,)).get(TIMEOUT_S)
    cause = caught.value.__cause__
    assert type(cause) is ImportError and cause.name == "preloaded_broken" and message in str(cause)
    assert str(caught.value).count(message) == 1 and str(caught.value).endswith(str(cause))
    shown = "".join(traceback.format_exception(caught.value))
    assert f"\n{message}" not in shown, "the module's own error is told beside the one that names the module"


def test_what_came_before_a_failure_is_shown(kind, folder):
    write(folder, "preloaded_broken", "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise LookupError")
    with pytest.raises(pool_party.InitializerFailed) as caught:
        with ComposablePool(1, kind=kind, preload=["preloaded_broken"]) as pool:
            pool.apply_async(tasks.square, (2,)).get(TIMEOUT_S)
    assert "ZeroDivisionError" in "".join(traceback.format_exception(caught.value))


FAILS_WHILE_ANOTHER_WAITS = """
import sys, time

def someone_waits():
    codes = [frame.f_code for frame in sys._current_frames().values()]
    return any((code.co_filename, code.co_name) == ("<frozen importlib._bootstrap>", "acquire") for code in codes)

deadline = time.monotonic() + 30
while sys.preload_waits and not someone_waits() and time.monotonic() < deadline:
    time.sleep(0.001)
sys.preload_waits = False
raise LookupError("nothing here")
"""


def test_a_failure_that_another_thread_waits_for(folder, monkeypatch):
    """Both threads raise. A worker that took such a module for imported would begin tasks."""
    monkeypatch.setattr(sys, "preload_waits", True, raising=False)
    write(folder, "preloaded_broken", FAILS_WHILE_ANOTHER_WAITS)

    class Worker:
        must_stop = False

    imports = [gates.call_in_thread(preloading.load, ["preloaded_broken"], Worker) for _ in range(2)]
    for each in imports:
        with pytest.raises(ImportError, match="LookupError: nothing here"):
            each.result(TIMEOUT_S)


def test_a_failure_starts_no_more_workers(kind):
    pool = ComposablePool(2, kind=kind, preload=["no_such_module"])
    with pytest.raises(pool_party.InitializerFailed):
        pool.apply_async(tasks.square, (2,)).get(TIMEOUT_S)
    assert pool.statistics().n_workers_started == 2
    pool.terminate()
    pool.join(timeout=TIMEOUT_S)


@pytest.mark.skipif(IS_SUPPORTED, reason="CPython 3.14 and later load it")
def test_what_interpreters_cannot_load_is_said():
    pytest.importorskip("numpy")
    with pytest.raises(pool_party.InitializerFailed, match=r"'numpy'.*needs CPython 3\.14.*kind='process'"):
        with ComposablePool(1, kind="interp", preload=["numpy"]) as pool:
            pool.apply_async(tasks.square, (2,)).get(TIMEOUT_S)


@pytest.mark.parametrize("names", ["numpy", [1], 5, [None], [["os"]], b"os"])
@pytest.mark.parametrize("make", [ComposablePool, ComposableExecutor])
def test_names_are_checked(make, names):
    with pytest.raises(TypeError, match="preload must be names of modules"):
        make(1, kind="thread", preload=names)


@pytest.mark.parametrize("name", ["", ".core", "numpy.", "scikit-learn", "a b"])
def test_names_are_full_names(name):
    with pytest.raises(ValueError, match="full names of modules"):
        ComposablePool(1, kind="thread", preload=[name])


# ---- in fresh processes ----


def test_a_library_is_limited_before_the_first_task(kind):
    pytest.importorskip("numpy")
    if kind == "interp" and not IS_SUPPORTED:
        pytest.skip("needs CPython 3.14 with a GIL")
    fresh.check(fresh.run([fresh.TESTS / "isolated" / "preloading.py", "limited", kind]), "ok")


@pytest.fixture
def openmp_extension(tmp_path, openmp_library):
    """A package with an extension module that needs libgomp."""
    (tmp_path / "with_openmp").mkdir()
    (tmp_path / "with_openmp" / "__init__.py").write_text("")
    out = tmp_path / "with_openmp" / f"_part{sysconfig.get_config_var('EXT_SUFFIX')}"
    options = ["-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", "-DPREFIX=PyInit_", "-DNAME=_part"]
    subprocess.run(
        ["gcc", *options, fresh.TESTS / "native" / "extension.c", "-Wl,--no-as-needed", "-lgomp", "-o", out], check=True
    )
    return "with_openmp._part"


def test_an_openmp_library_is_limited_before_the_first_task(kind, tmp_path, openmp_library, request):
    arguments = ["limited_openmp", kind, tmp_path, openmp_library]
    if kind == "interp":
        if not IS_SUPPORTED:
            pytest.skip("needs CPython 3.14 with a GIL")
        arguments.append(request.getfixturevalue("openmp_extension"))
    fresh.check(fresh.run([fresh.TESTS / "isolated" / "preloading.py", *arguments]), "ok")


def test_a_pool_is_terminated_while_its_workers_import(kind, tmp_path):
    fresh.check(fresh.run([fresh.TESTS / "isolated" / "preloading.py", "ended", kind, tmp_path]), "ok")
