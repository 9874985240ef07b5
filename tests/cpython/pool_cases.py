"""CPython's Pool test classes with our pools in them. Workers of every kind can import this module.

A worker that unpickles a test class's method imports this module to find the class.
"""

import functools
import importlib.util
import multiprocessing
import multiprocessing.pool
import os
import pathlib
import unittest
import unittest.mock

import test._test_multiprocessing as cpython_tests
import test.support.script_helper as script_helper

import pool_party
from pool_party import ComposablePool

TITLE = "Pool tests on ComposablePool"
FEWEST_TESTS = 20  # CPython 3.12 has 28 tests for a kind, 3.14 has 31
ROOT = str(pathlib.Path(pool_party.__file__).resolve().parents[1])
CLASSES = ("_TestPool", "_TestPoolWorkerErrors", "_TestPoolWorkerLifetime")
IS_PATCHED = "POOL_PARTY_CPYTHON_PATCHED" in os.environ
HAS_DASK = importlib.util.find_spec("dask") is not None and not IS_PATCHED  # `patch` knows three kinds
KINDS = ("thread", "process", "interp", *(["dask"] if HAS_DASK else []))
MIXINS = {
    "dask": cpython_tests.ProcessesMixin,
    "thread": cpython_tests.ThreadsMixin,
    "process": cpython_tests.ProcessesMixin,
    "interp": cpython_tests.ProcessesMixin,
}

# (kind, class, test) -> why it is left out. All other skips come from the tests themselves.
LEFT_OUT = {
    ("thread", "_TestPoolWorkerLifetime", "test_pool_worker_lifetime"): (
        "compares pids of worker processes; CPython does not run it for threads"
    ),
    ("interp", "_TestPoolWorkerLifetime", "test_pool_worker_lifetime"): (
        "compares pids of worker processes, and interpreters share one"
    ),
    ("thread", "_TestPoolWorkerErrors", "test_unpickleable_result"): (
        "threads pass results by reference; CPython does not run it for threads"
    ),
    **{
        (kind, "_TestPoolWorkerErrors", "test_unpickleable_result"): (
            "its result is a lambda, which pickles by value here; test_data.py has results that do not"
        )
        for kind in KINDS
        if kind != "thread"
    },
    **{
        (kind, "_TestPool", "test_resource_warning"): (
            "sets the private _state; test_pool.py has the warning of a pool that is really open"
        )
        for kind in KINDS
    },
}


if HAS_DASK:
    LEFT_OUT["dask", "_TestPool", "test_make_pool"] = "reads the private list of workers, which other machines have"
    LEFT_OUT["dask", "_TestPoolWorkerLifetime", "test_pool_worker_lifetime"] = (
        "compares pids of worker processes, which other machines have"
    )


def make_replaced_pool(kind, *args, **kwargs):
    """Return a pool of CPython's that has become one of ours of this kind."""
    with pool_party.patched(kind=kind):
        if kind == "thread" and not {"maxtasksperchild", "context"} & kwargs.keys():
            pool = multiprocessing.pool.ThreadPool(*args, **kwargs)
        else:
            kwargs.setdefault("context", multiprocessing.get_context(os.environ.get("POOL_PARTY_CPYTHON_START_METHOD")))
            pool = multiprocessing.pool.Pool(*args, **kwargs)
    assert isinstance(pool, ComposablePool) and pool.kind == kind
    pool.__dict__["_repopulate_pool"] = lambda: None
    return pool


def make_pool(kind, *args, **kwargs):
    """Return a pool of the kind. Process pools use the start method under test."""
    if IS_PATCHED:
        return make_replaced_pool(kind, *args, **kwargs)
    if kind == "process" and (method := os.environ.get("POOL_PARTY_CPYTHON_START_METHOD")):
        kwargs.setdefault("context", multiprocessing.get_context(method))
    pool = ComposablePool(*args, kind=kind, **kwargs)
    pool._repopulate_pool = lambda: None  # test_pool_worker_lifetime calls it; our pools replace workers by themselves
    return pool


def make_case(kind, class_name):
    """Return the CPython test class with our pool of the kind in place of CPython's."""
    our_pool = functools.partial(make_pool, kind)

    class Case(getattr(cpython_tests, class_name), MIXINS[kind], unittest.TestCase):
        Pool = staticmethod(our_pool)

        def setUp(self):
            super().setUp()
            # The worker tests call multiprocessing.Pool itself.
            patch = unittest.mock.patch.object(multiprocessing, "Pool", our_pool)
            patch.start()
            self.addCleanup(patch.stop)

    for key, reason in LEFT_OUT.items():
        if key[:2] == (kind, class_name):
            setattr(Case, key[2], unittest.skip(f"left out: {reason}")(getattr(Case, key[2])))
    if (kind, class_name) == ("interp", "_TestPool"):
        # CPython lets threads sleep 1 s instead of 5 min here, as they "can't be forced to quit". The same applies to
        # interpreters.
        shorten = unittest.mock.patch.object(cpython_tests.support, "LONG_TIMEOUT", 1)
        Case.test_terminate = shorten(Case.test_terminate)
    Case.__name__ = Case.__qualname__ = f"{kind}{class_name}"
    return Case


for _kind in KINDS:
    for _class_name in CLASSES:
        globals()[f"{_kind}{_class_name}"] = make_case(_kind, _class_name)


def make_suite(kind):
    """Return all tests of the kind."""
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    return unittest.TestSuite(load(globals()[f"{kind}{name}"]) for name in CLASSES)


def ours_in_scripts(kind):
    """One test runs a program with `from multiprocessing import Pool`. Replace that by ours."""
    original = script_helper.assert_python_ok
    old = "from multiprocessing import Pool\n"
    new = (
        f"import functools, sys; sys.path.insert(0, {ROOT!r}); import pool_party; "
        f"Pool = functools.partial(pool_party.ComposablePool, kind={kind!r})\n"
    )
    if IS_PATCHED:
        new = f"import sys; sys.path.insert(0, {ROOT!r}); import pool_party; pool_party.patch(kind={kind!r}); {old}"

    def assert_python_ok(*args, **env):
        assert any(old in arg for arg in args), "CPython's script has changed"
        return original(*(arg.replace(old, new) for arg in args), **env)

    return unittest.mock.patch.object(script_helper, "assert_python_ok", assert_python_ok)


def find_problems():
    """Return rows of LEFT_OUT that name no test."""
    return [
        f"LEFT_OUT names no test: {key}"
        for key in LEFT_OUT
        if key[0] not in KINDS or key[1] not in CLASSES or not hasattr(getattr(cpython_tests, key[1]), key[2])
    ]
