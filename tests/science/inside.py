"""Runs one suite by pytest in interpreters, or in another kind of worker, and reports the outcome of each test.

suites.py starts it with the name of a file that contains its orders. Each worker writes to its own pipe, one JSON list
per line: ["start", test], then ["end", test, outcome, text, seconds]; at the end ["status", pytest's, output].
"""

import fnmatch
import json
import os
import sys
import time
import types
import unittest

# These plugins act on the whole process, or need what CPython forbids in an interpreter.
NO_PLUGINS = ("faulthandler", "cacheprovider", "timeout", "threadexception", "unraisableexception")
MAX_TEXT = 600  # so that a line is shorter than PIPE_BUF, and is written atomically


class Outcomes:
    """A pytest plugin that writes events to a pipe, and skips tests that were run before."""

    def __init__(self, job, n):
        self._pipe = job["pipes"][n]
        self._done = frozenset(job["done"][n])
        self._only = None if job["only"] is None else frozenset(job["only"])
        self._left_out = job["left_out"]
        self._suites = {}  # module: the tests of its TestSuite, or None
        self._worst = {}

    def _write(self, *line):
        os.write(self._pipe, json.dumps(line).encode() + b"\n")

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if self._is_chosen(item) and self._is_to_run(item.nodeid)]

    def _is_chosen(self, item):
        """Return whether a test is in the TestSuite that its module makes, if it makes one.

        The others are base classes, tests that take hours, and functions that run the whole suite.
        """
        module = getattr(item, "module", None)
        if module not in self._suites:
            self._suites[module] = _own_suite(module)
        return self._suites[module] is None or (item.cls, item.name) in self._suites[module]

    def _is_to_run(self, test):
        if test in self._done or (self._only is not None and test not in self._only):
            return False
        is_left_out = any(fnmatch.fnmatchcase(test, pattern) for pattern in self._left_out)
        if is_left_out:
            self._write("end", test, "left out", "", 0.0)
        return not is_left_out

    def pytest_collectreport(self, report):
        if report.failed:
            self._write("end", report.nodeid, "failed", _error(report), 0.0)
        elif report.skipped:
            self._write("end", report.nodeid, "skipped", _reason(report), 0.0)

    def pytest_runtest_logstart(self, nodeid):
        self._worst = {"outcome": "passed", "text": "", "start": time.perf_counter()}
        self._write("start", nodeid)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._worst.update(outcome="failed", text=_error(report))
        elif report.skipped and self._worst["outcome"] == "passed":
            self._worst.update(outcome="skipped", text=_reason(report))

    def pytest_runtest_logfinish(self, nodeid):
        seconds = time.perf_counter() - self._worst["start"]
        self._write("end", nodeid, self._worst["outcome"], self._worst["text"], round(seconds, 3))


def _own_suite(module):
    """Return {(class, method)} of the TestSuite that a module's function makes, None if there is no such function."""
    make = getattr(module, "test_suite", None) or getattr(module, "suite", None)
    if not isinstance(make, types.FunctionType) or make.__code__.co_argcount:
        return None
    suite = make()
    return {*_tests_in(suite)} if isinstance(suite, unittest.TestSuite) else None


def _tests_in(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _tests_in(test)
        else:
            yield type(test), test._testMethodName


def _reason(report):
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", ""))[:MAX_TEXT]


def _error(report):
    """Return the error in one line: the first that pytest marks in the traceback."""
    errors = [line for line in report.longreprtext.splitlines() if line.startswith("E  ")]
    return " ".join((errors[0][1:] if errors else report.longreprtext[-200:]).split())[:MAX_TEXT]


def run(job, n):
    """Run in worker n. Return pytest's exit status and the end of its output."""
    import importlib.util
    import io
    from contextlib import redirect_stderr, redirect_stdout

    import pytest

    if job["kind"] == "interp":  # so that only the tests that use it fail, and not the whole file
        sys.modules["tracemalloc"] = types.ModuleType("tracemalloc")
    root, tests = job["root"], os.path.join(job["root"] or "", job["suite"])
    if root is None:
        name, _, part = job["suite"].partition("/")
        spec = importlib.util.find_spec(name)
        tests = spec.submodule_search_locations[0] if spec.submodule_search_locations else spec.origin
        tests = os.path.join(tests, part) if part else tests
        root = os.path.dirname(os.path.dirname(importlib.util.find_spec(name.partition(".")[0]).origin))
    arguments = [tests, "-q", "--capture=sys", "-c", os.devnull, "--rootdir", root]
    arguments += ["-W", "ignore", "--continue-on-collection-errors", *job["options"]]
    for plugin in NO_PLUGINS:
        arguments += ["-p", f"no:{plugin}"]
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        status = pytest.main(arguments, plugins=[Outcomes(job, n)])
    return int(status), output.getvalue()[-3000:]


def main():
    with open(sys.argv[1]) as file:
        job = json.load(file)
    tasks = [(job, n) for n in range(len(job["pipes"]))]
    if job["kind"] == "main":
        results = [run(*task) for task in tasks]
    else:
        from pool_party import ComposablePool

        options = {"extensions": ["hypothesis"]} if job["kind"] == "interp" else {}
        with ComposablePool(len(tasks), kind=job["kind"], maxtasksperchild=1, **options) as pool:
            results = pool.starmap(run, tasks, 1)
        pool.join()
    for pipe, result in zip(job["pipes"], results, strict=True):
        os.write(pipe, json.dumps(["status", *result]).encode() + b"\n")


if __name__ == "__main__":
    main()
