"""CPython's tests of executors (`test.test_concurrent_futures`), with our executors in them.

A worker process that unpickles a test class's method imports this module to find the class.
"""

import concurrent.futures
import contextlib
import importlib
import multiprocessing
import os
import pathlib
import sys
import threading
import types
import unittest
import unittest.mock

import test.support
import test.support.script_helper as script_helper
from events import PipeEvent

import pool_party

PACKAGE = "test.test_concurrent_futures"
TITLE = "executor tests on ComposableExecutor"
FEWEST_TESTS = 25
KINDS = ("thread", "process", "interp")
ROOT = str(pathlib.Path(pool_party.__file__).resolve().parents[1])
NEWEST_OF_TESTS = (3, 14, 8)  # the version that LEFT_OUT is written for; older ones lack some of its tests
IS_PATCHED = "POOL_PARTY_CPYTHON_PATCHED" in os.environ
HAS_INTERPRETERS = sys.version_info >= (3, 14)

# The test classes, each with its module. Only the tests that a class itself defines run, so that no test runs twice for
# a kind.
FOR_ALL = {
    "ExecutorTest": "executor",
    "AsCompletedTests": "test_as_completed",
    "WaitTests": "test_wait",
    "ExecutorShutdownTest": "test_shutdown",
    "InitializerMixin": "test_init",
    "FailingInitializerMixin": "test_init",
}
CLASSES = {
    "thread": FOR_ALL
    | {
        "ThreadPoolExecutorTest": "test_thread_pool",
        "ThreadPoolWaitTests": "test_wait",
        "ThreadPoolShutdownTest": "test_shutdown",
    },
    "process": FOR_ALL
    | {
        "ProcessPoolExecutorTest": "test_process_pool",
        "ProcessPoolShutdownTest": "test_shutdown",
        "ExecutorDeadlockTest": "test_deadlock",
    },
    "interp": FOR_ALL
    | (
        {"InterpreterPoolExecutorTest": "test_interpreter_pool", "AsyncioTest": "test_interpreter_pool"}
        if HAS_INTERPRETERS
        else {}
    ),
}

_PRIVATE = "reads {} of CPython's executor, a private attribute"
_BY_VALUE = "expects what a worker cannot import to fail; here it goes by value, which README.md promises"


def _rows(kind, class_name, reason, *tests):
    return {(kind, class_name, test): reason for test in tests}


# (kind, class, test) -> why it is left out. All other skips come from the tests themselves.
LEFT_OUT = {
    **{
        (kind, "ExecutorShutdownTest", "test_cancel_futures"): (
            "expects that a worker has begun a task, while workers are still starting; "
            "test_executor.py has shutdown(cancel_futures=True) while one runs"
        )
        for kind in KINDS
    },
    **_rows(
        "thread",
        "ThreadPoolExecutorTest",
        _PRIVATE.format("_threads"),
        "test_saturation",
        "test_idle_thread_reuse",
    ),
    ("thread", "ThreadPoolExecutorTest", "test_default_workers"): (
        "expects more threads than CPUs; max_workers=None is the CPUs here, as the docstring says"
    ),
    **_rows(
        "thread",
        "ThreadPoolShutdownTest",
        _PRIVATE.format("_threads"),
        "test_threads_terminate",
        "test_context_manager_shutdown",
        "test_del_shutdown",
        "test_shutdown_no_wait",
        "test_thread_names_assigned",
        "test_thread_names_default",
    ),
    **_rows(
        "process",
        "ProcessPoolExecutorTest",
        _PRIVATE.format("_processes"),
        "test_killed_child",
        "test_broken_process_pool_traceback",
        "test_saturation",
        "test_idle_process_reuse_one",
        "test_idle_process_reuse_multiple",
        "test_max_tasks_per_child",
    ),
    ("process", "ProcessPoolExecutorTest", "test_max_tasks_per_child_defaults_to_spawn_context"): _PRIVATE.format(
        "_mp_context"
    ),
    ("process", "ProcessPoolExecutorTest", "test_traceback"): (
        "expects the cause to be of the private type _RemoteTraceback; test_executor.py has ours"
    ),
    **_rows(
        "process",
        "ProcessPoolExecutorTest",
        _PRIVATE.format("_executor_manager_thread"),
        "test_shutdown_no_wait_max_tasks_gh119592",
        "test_gc_during_max_tasks_worker_exit_gh152967",
        "test_force_shutdown_during_max_tasks_worker_exit",
        "test_failed_worker_replacement_breaks_pool",
    ),
    ("process", "ProcessPoolExecutorTest", "test_python_finalization_error"): (
        "counts the threads that CPython's executor starts, and lets one fail"
    ),
    **_rows(
        "process",
        "ProcessPoolExecutorTest",
        _PRIVATE.format("_force_shutdown"),
        "test_terminate_workers",
        "test_kill_workers",
        "test_force_shutdown_workers_invalid_op",
    ),
    **_rows(
        "process",
        "ProcessPoolExecutorTest",
        _PRIVATE.format("_processes") + "; test_executor.py tests terminate_workers and kill_workers",
        "test_force_shutdown_workers",
        "test_force_shutdown_workers_stops_pool",
    ),
    ("process", "ProcessPoolExecutorTest", "test_force_shutdown_workers_not_started_yet"): (
        "expects that no worker starts before the first call; ours start at once"
    ),
    **_rows(
        "process",
        "ProcessPoolShutdownTest",
        _PRIVATE.format("_processes"),
        "test_processes_terminate",
        "test_context_manager_shutdown",
        "test_del_shutdown",
        "test_shutdown_no_wait",
    ),
    **_rows(
        "process",
        "ExecutorDeadlockTest",
        "expects what cannot be unpickled to break the executor; here it fails its own task with the error that it "
        "raised, or with RemoteError if it is a result (docs/howto/faults.md), and test_data.py has both",
        "test_exit_at_task_unpickle",
        "test_error_at_task_unpickle",
        "test_exit_during_result_unpickle_in_result_handler",
        "test_error_during_result_unpickle_in_result_handler",
    ),
    ("process", "ExecutorDeadlockTest", "test_gh105829_should_not_deadlock_if_wakeup_pipe_full"): (
        "replaces private parts of CPython's executor by slow ones"
    ),
    **_rows(
        "interp",
        "InterpreterPoolExecutorTest",
        _BY_VALUE,
        "test_init_closure",
        "test_init_instance_method",
        "test_submit_closure",
        "test_submit_local_instance",
        "test_submit_instance_method",
    ),
    **_rows(
        "interp",
        "InterpreterPoolExecutorTest",
        "gives a program's text instead of a function; CPython, too, expects this to fail",
        "test_init_script",
        "test_init_script_args",
        "test_init_exception_in_script",
        "test_submit_script",
        "test_submit_exception_in_script",
    ),
    **_rows(
        "interp",
        "InterpreterPoolExecutorTest",
        "expects errors of InterpreterPoolExecutor's own; ours are those of the other kinds",
        "test_init_exception_in_func",
        "test_submit_exception_in_func",
        "test_pickle_errors_propagate",
    ),
    **_rows(
        "interp",
        "InterpreterPoolExecutorTest",
        _PRIVATE.format("_threads"),
        "test_saturation",
        "test_idle_thread_reuse",
    ),
    **_rows(
        "interp",
        "InterpreterPoolExecutorTest",
        "expects CPython's private names of threads",
        "test_thread_name_prefix",
        "test_thread_name_prefix_with_thread_get_name",
    ),
    **_rows(
        "interp",
        "InterpreterPoolExecutorTest",
        "CPython's own is skipped as well; ExecutorTest, which runs for interp, has the test",
        "test_no_stale_references",
        "test_free_reference",
    ),
    ("interp", "AsyncioTest", "test_default_executor"): (
        "asyncio takes nothing but a ThreadPoolExecutor as its default executor"
    ),
}
if IS_PATCHED:
    for _kind in KINDS:
        LEFT_OUT |= _rows(_kind, "FailingInitializerMixin", _PRIVATE.format("_broken"), "test_initializer")
    LEFT_OUT |= _rows(
        "process",
        "ProcessPoolShutdownTest",
        _PRIVATE.format("_executor_manager_thread"),
        "test_shutdown_gh_132969_case_1",
        "test_shutdown_gh_132969_case_2",
    )
    LEFT_OUT |= _rows(
        "process",
        "ExecutorDeadlockTest",
        _PRIVATE.format("_executor_manager_thread"),
        "test_shutdown_deadlock_pickle",
    )


def find(class_name, module_name):
    """Return CPython's test class. Raises ImportError or AttributeError if this CPython lacks it."""
    return getattr(importlib.import_module(f"{PACKAGE}.{module_name}"), class_name)


def start_method():
    return os.environ.get("POOL_PARTY_CPYTHON_START_METHOD")


class _Executor(pool_party.ComposableExecutor):
    """Our executor with the arguments of the tests, which call the context mp_context."""

    # The test of a failing initializer waits until this is true, and then expects that submit raises. Before that a
    # result has raised BrokenExecutor, so our executor is broken already.
    _broken = True
    kind = ""

    def __init__(self, max_workers=None, mp_context=None, **kwargs):
        context = (mp_context or start_method()) if self.kind == "process" else None
        super().__init__(max_workers, kind=self.kind, context=context, **kwargs)

    @property
    def _executor_manager_thread(self):
        """Tests join this to wait for the end of a shutdown."""
        return types.SimpleNamespace(join=self.shutdown)


EXECUTORS = {kind: type(f"{kind}Executor", (_Executor,), {"kind": kind}) for kind in KINDS}
# CPython's names for executors of the kinds. Some tests make theirs by these names.
CPYTHON_NAMES = {
    "thread": "ThreadPoolExecutor",
    "process": "ProcessPoolExecutor",
    "interp": "InterpreterPoolExecutor",
}


if IS_PATCHED:
    EXECUTORS = {
        kind: getattr(concurrent.futures, CPYTHON_NAMES[kind]) for kind in KINDS if kind != "interp" or HAS_INTERPRETERS
    }


class _Case:
    """Our part of every test, for all kinds."""

    def setUp(self):
        if IS_PATCHED:
            pool_party.patch(kind="process")
            self.addCleanup(pool_party.unpatch)
            super().setUp()
            return
        for kind, name in CPYTHON_NAMES.items():
            if kind != "interp" or HAS_INTERPRETERS:
                patch = unittest.mock.patch.object(concurrent.futures, name, EXECUTORS[kind])
                patch.start()
                self.addCleanup(patch.stop)
        super().setUp()

    def get_context(self):
        return multiprocessing.get_context(start_method())

    def create_event(self):
        if self.kind == "thread":
            return threading.Event()
        if self.kind == "interp":
            event = PipeEvent()
            self.addCleanup(event.close)
            return event
        manager = self.get_context().Manager()
        self.addCleanup(manager.shutdown)
        return manager.Event()


def make_case(kind, class_name, module_name):
    """Return the test class with our executor of the kind in place of CPython's."""
    tests = find(class_name, module_name)
    util = importlib.import_module(f"{PACKAGE}.util")
    bases = [base for base in (util.ExecutorMixin, util.BaseTestCase) if not issubclass(tests, base)]
    if issubclass(tests, unittest.TestCase):
        bases = []
    name = f"{kind}{class_name}"
    own = {"kind": kind, "executor_type": EXECUTORS[kind], "__module__": __name__}
    if class_name == "ExecutorDeadlockTest":
        own["TIMEOUT"] = 60  # CPython allows 5 min
    for key, reason in LEFT_OUT.items():
        if key[:2] == (kind, class_name) and hasattr(tests, key[2]):
            own[key[2]] = unittest.skip(f"left out: {reason}")(lambda self: None)
    return type(name, (_Case, tests, *bases), own)


def _test_names(tests):
    return [name for name in vars(tests) if name.startswith("test") and callable(getattr(tests, name))]


_missing = []
for _kind in KINDS:
    for _class_name, _module_name in CLASSES[_kind].items():
        try:
            globals()[f"{_kind}{_class_name}"] = make_case(_kind, _class_name, _module_name)
        except (ImportError, AttributeError) as error:
            _missing.append(f"{_kind}: no tests {_class_name} in this CPython's {PACKAGE}.{_module_name}: {error}")


def make_suite(kind):
    """Return all tests of the kind."""
    suite = unittest.TestSuite()
    for class_name, module_name in CLASSES[kind].items():
        if case := globals().get(f"{kind}{class_name}"):
            suite.addTests(case(name) for name in _test_names(find(class_name, module_name)))
    return suite


@contextlib.contextmanager
def ours_in_scripts(kind):
    """Some tests run a program that imports an executor by name. Replace that by ours."""
    run, make = script_helper.assert_python_ok, script_helper.make_script
    context = f", context={start_method()!r}" if kind == "process" and start_method() else ""

    def replace(text):
        if IS_PATCHED:
            name = CPYTHON_NAMES[kind]
            patch = f"import sys; sys.path.insert(0, {ROOT!r}); import pool_party; pool_party.patch(kind='process'); "
            return text.replace(
                f"from concurrent.futures import {name}\n", f"{patch}from concurrent.futures import {name}\n"
            )
        for name in (EXECUTORS[kind].__name__, CPYTHON_NAMES[kind]):
            text = text.replace(
                f"from concurrent.futures import {name}\n",
                f"import functools, sys; sys.path.insert(0, {ROOT!r}); import pool_party; "
                f"{name} = functools.partial(pool_party.ComposableExecutor, kind={kind!r}{context})\n",
            )
        return text

    def assert_python_ok(*args, **env):
        assert args[:-1] != ("-c",) or replace(args[-1]) != args[-1], "CPython's script has changed"
        result = run(*map(replace, args), **env)
        # The name in a traceback. The program itself checks that it is a RuntimeError.
        return result._replace(err=result.err.replace(b"pool_party.PoolClosed:", b"RuntimeError:"))

    def make_script(folder, name, text, *args, **kwargs):
        assert replace(text) != text, "CPython's script has changed"
        return make(folder, name, replace(text), *args, **kwargs)

    with contextlib.ExitStack() as patches:
        patch = unittest.mock.patch.object
        patches.enter_context(patch(test.support, "verbose", 0))  # otherwise tests print how long each took
        patches.enter_context(patch(script_helper, "make_script", make_script))
        patches.enter_context(patch(script_helper, "assert_python_ok", assert_python_ok))
        shutdown = sys.modules.get(f"{PACKAGE}.test_shutdown")
        if shutdown:
            patches.enter_context(patch(shutdown, "assert_python_ok", assert_python_ok))
        yield


def find_problems():
    """Return missing classes, and rows of LEFT_OUT that name no test."""
    return _missing + (_stale_rows() if sys.version_info >= NEWEST_OF_TESTS and not _missing else [])


def _stale_rows():
    return [
        f"LEFT_OUT names no test: {key}"
        for key in LEFT_OUT
        if key[1] not in CLASSES.get(key[0], ()) or key[2] not in _test_names(find(key[1], CLASSES[key[0]][key[1]]))
    ]
