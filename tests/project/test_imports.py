"""Every module can be imported alone without a warning, and public names have their public module."""

import concurrent.futures
import importlib.util
import pathlib
import sys

import fresh
import pytest

import pool_party
from pool_party._ground import imports

ROOT = pathlib.Path(pool_party.__file__).parent
MODULES = sorted(
    ".".join(("pool_party", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
)


NEED = {  # what else must be installed
    "pool_party._integrations.joblib": "joblib",
    "pool_party._cluster.node.dask": "distributed",
    "pool_party._cluster.node.mpi": "mpi4py",
    "pool_party._patching.backends": "joblib",
    "pool_party._cluster.dask": "distributed",
    "pool_party._cluster.mpi": "mpi4py",
    "pool_party._cluster.outbox": "distributed",
    "pool_party._cluster.ranks": "mpi4py",
}
IMPORT_EACH = """
import os, sys
for module in sys.argv[1:]:
    if (pid := os.fork()) == 0:
        __import__(module)
        sys.exit()
    if os.waitpid(pid, 0)[1]:
        print(module)
"""


def test_modules_are_imported_alone():
    """Each in a child of a process that has imported nothing, which is faster than a new process for each."""
    modules = [name for name in MODULES if name not in NEED or importlib.util.find_spec(NEED[name])]
    assert len(modules) > 100
    fresh.check(fresh.run(["-c", IMPORT_EACH, *modules], options=("-W", "error")), "")


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
    code = (
        "import sys, pool_party._workers.loop; print({'_pickle', 'typing', 'threading', 'pickle'} & set(sys.modules))"
    )
    fresh.check(fresh.run(["-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT.parent)!r}); {code}"]), "set()")


HEAVY = (
    *("asyncio", "cloudpickle", "ctypes", "dataclasses", "email", "hashlib", "importlib.metadata", "inspect", "json"),
    *("logging", "multiprocessing", "numpy", "pickle", "psutil", "re", "socket", "subprocess", "tempfile", "traceback"),
    *("concurrent.futures", "threadpoolctl", "signal", "pool_party._observe"),
)

BY_THE_IMPORT = {
    *("__future__", "_collections", "_contextvars", "_operator", "_types", "_weakrefset", "atexit"),
    *("collections", "collections.abc", "gc", "itertools", "keyword", "math", "operator", "reprlib"),
    *("threading", "types", "weakref"),
    *("errno", "resource"),  # by `limits`, which cannot import anything when a limit is reached
    *("warnings", "math.integer", "_math_integer"),  # by `threading` before 3.14, and by `math` from 3.15 on
    *(("functools", "_functools") if sys.version_info < (3, 13) else ()),  # by `threading`
    *("pool_party", "pool_party._native", "pool_party._config", "pool_party._pool", "pool_party._core"),
    *(
        f"pool_party._core.{name}"
        for name in (
            "callbacks",
            "deferring",
            "engine",
            "exit",
            "following",
            "functions",
            "greenlets",
            "inputs",
            "outcomes",
        )
    ),
    *(f"pool_party._core.{name}" for name in ("places", "results", "submit", "waiting", "watching", "workers")),
    *(f"pool_party._ground{name}" for name in ("", ".errors", ".limits", ".log", ".quoting", ".records", ".threads")),
    *(f"pool_party._budget{name}" for name in ("", ".environment", ".plan", ".policies", ".split", ".topology")),
    *(f"pool_party._workers{name}" for name in ("", ".base", ".preloading")),
}

BY_THE_OPENING = {  # and by the first call, beyond the import
    "thread": {
        *("pool_party._ground.descriptors", "pool_party._ground.imports"),
        *(f"pool_party._budget.{name}" for name in ("limiter", "enforcer", "neighbours", "user_limits")),
        *(f"pool_party._workers.{name}" for name in ("loop", "thread")),
    },
    "process": {
        *("functools", "_functools", "contextlib", "select"),
        *("pool_party._ground.descriptors", "pool_party._ground.imports"),
        *(
            f"pool_party._budget.{name}"
            for name in ("limiter", "enforcer", "neighbours", "process_budget", "user_limits")
        ),
        *(f"pool_party._wire{name}" for name in ("", ".beside", ".codec", ".definitions", ".fd_handle")),
        *("pool_party._wire.making", "pool_party._wire.namespace"),
        *(f"pool_party._workers.{name}" for name in ("loop", "process", "process_helpers", "watcher")),
    },
}
OPENING = """
import sys
from pool_party import ComposablePool
if {kind!r} == "process":  # what a process of multiprocessing's own needs
    import multiprocessing
    process = multiprocessing.get_context("fork").Process()
    process.start()
    process.join()
before = {{*sys.modules}}
with ComposablePool(2, kind={kind!r}, context="fork" if {kind!r} == "process" else None) as pool:
    pool.apply(abs, (-2,))
print(*{{*sys.modules}} - before)
"""


GATES = "import threading\nbegun, may_end = threading.Event(), threading.Event()\n"
SLOWLY_MADE = "import gates_of_it\ngates_of_it.begun.set()\ngates_of_it.may_end.wait(30)\nx = 1\n"


def test_a_module_that_another_thread_imports_is_not_taken_half_made(tmp_path, monkeypatch):
    (tmp_path / "slowly_made.py").write_text(
        "import gates_of_it\ngates_of_it.begun.set()\ngates_of_it.may_end.wait(30)\nx = 1\n"
    )
    (tmp_path / "gates_of_it.py").write_text(GATES)
    monkeypatch.syspath_prepend(tmp_path)
    import gates_of_it

    assert imports.loaded("slowly_made") is None
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        threads.submit(__import__, "slowly_made")
        assert gates_of_it.begun.wait(30)
        assert not hasattr(sys.modules["slowly_made"], "x")
        found = threads.submit(imports.loaded, "slowly_made")
        assert not concurrent.futures.wait([found], 0.05).done
        gates_of_it.may_end.set()
        assert found.result(30).x == 1


def test_the_import_loads_few_modules():
    """Each further module costs a program time before it begins. To add one here, state in its commit what it costs."""
    code = "import os; before = {*sys.modules}; from pool_party import ComposablePool; print(*{*sys.modules} - before)"
    done = fresh.run(["-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT.parent)!r}); {code}"], options=())
    assert set(fresh.check(done).out.split()) <= BY_THE_IMPORT


@pytest.mark.parametrize("kind", BY_THE_OPENING)
def test_opening_and_the_first_call_load_few_modules(kind):
    """A program pays for these beside the import, before its first result."""
    code = f"import sys; sys.path.insert(0, {str(ROOT.parent)!r}); {OPENING.format(kind=kind)}"
    done = fresh.run(["-I", "-S", "-c", code], options=())
    assert set(fresh.check(done).out.split()) <= BY_THE_OPENING[kind]


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


@pytest.mark.parametrize(
    "modules",
    [
        pytest.param("pool_party._workers.process, pool_party._budget.process_budget", id="process"),
        pytest.param("pool_party._workers.interp.worker, pool_party._budget.enforcer", id="interp"),
    ],
)
def test_opening_a_pool_imports_no_typing(modules):
    """What is imported for a pool's first workers, beyond what multiprocessing imports."""
    code = f"import sys, {modules}; print({{'typing', 'ast'}} & set(sys.modules))"
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


OF_A_SCRIPT = """
import enum, math, sys
import callees
from pool_party import ComposablePool
STEP = 3
def of_script(x):
    return math.ceil(x) + STEP, sorted(sys.modules)
class Point:
    def __init__(self, x):
        self.x = x
    @property
    def double(self):
        return 2 * self.x
    @classmethod
    def at_zero(cls):
        return cls(0)
class Color(enum.Enum):
    RED = 1
    def next(self):
        return self.value + len(Color)
def of_enum(color):
    return color.next(), sorted(sys.modules)
def of_class(point):
    return point.double + Point.at_zero().x, sorted(sys.modules)
CALLS = {{
    "importable": (callees.importable, 1.5),
    "script": (of_script, 1.5),
    "lambda": (lambda x: (math.ceil(x) + STEP, sorted(sys.modules)), 1.5),
    "class": (of_class, Point(2)),
    "enum": (of_enum, Color.RED),
}}
if __name__ == "__main__":
    with ComposablePool(1, kind={kind!r}, context={method!r}) as pool:
        function, argument = CALLS[{what!r}]
        result, in_worker = pool.apply(function, (argument,))
    print(result, {slow!r} & sys.modules.keys(), {slow!r}.intersection(in_worker))
    print([name for name in in_worker if name.startswith("pool_party._wire")])
"""
SLOW = {"ast", "cloudpickle", "dataclasses", "inspect", "logging", "uuid", "hashlib"}
RESULTS = {"importable": 2, "script": 5, "lambda": 5, "class": 4, "enum": 2}
WIRE = {
    "importable": [],
    "script": [
        "pool_party._wire",
        "pool_party._wire.definitions",
        "pool_party._wire.making",
        "pool_party._wire.namespace",
    ],
    "lambda": [
        "pool_party._wire",
        "pool_party._wire.definitions",
        "pool_party._wire.making",
        "pool_party._wire.namespace",
    ],
    "class": [
        "pool_party._wire",
        "pool_party._wire.definitions",
        "pool_party._wire.making",
        "pool_party._wire.namespace",
    ],
    "enum": [
        "pool_party._wire",
        "pool_party._wire.definitions",
        "pool_party._wire.making",
        "pool_party._wire.namespace",
    ],
}


@pytest.mark.parametrize("what", RESULTS)
@pytest.mark.parametrize(("kind", "method"), [("interp", None), ("process", "fork"), ("process", "spawn")])
def test_a_first_call_imports_little(tmp_path, kind, method, what):
    """Neither the caller nor the worker needs cloudpickle for functions, modules, enumerations and simple classes."""
    (tmp_path / "callees.py").write_text("import sys\ndef importable(x):\n    return round(x), sorted(sys.modules)\n")
    script = tmp_path / "script.py"
    script.write_text(OF_A_SCRIPT.format(kind=kind, method=method, what=what, slow=SLOW))
    done = fresh.run([str(script)])
    head = f"{RESULTS[what]} set() set()"
    if kind == "interp":
        fresh.check(done, f"{head}\n{WIRE[what]}")
    else:  # these import the program's file, and with it what the caller imports
        assert done.out.splitlines()[:1] == [head], done


def test_the_types_that_cloudpickle_handles_are_known():
    """Its reducers are found without importing it, so a version with a reducer for one more type needs a change."""
    from cloudpickle import cloudpickle

    from pool_party._wire import main_module

    theirs = {
        f"{cls.__module__}.{cls.__qualname__}" for cls in cloudpickle.Pickler._dispatch_table if isinstance(cls, type)
    }
    ours = {f"{cls.__module__}.{cls.__qualname__}" for cls in main_module._own} | {"builtins.cell"}
    assert theirs - ours - main_module._OURS.keys() <= main_module._OF_CLOUDPICKLE


@pytest.mark.parametrize("how", ["the_last_pool_ends", "patches_are_undone"])
def test_an_import_amid_a_change_finds_its_module(how, tmp_path):
    (tmp_path / "late.py").write_text("VALUE = 1\n")
    fresh.check(fresh.run([fresh.TESTS / "isolated" / "importing.py", how, tmp_path]), "ok")
