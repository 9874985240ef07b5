"""NumPy's, SciPy's, pandas' and scikit-learn's own tests, run inside interpreter workers.

    python tests/science/run.py numpy.linalg numpy.fft      # modules or packages; some by default
    python tests/science/run.py --workers 2 numpy.random    # the same tests in two interpreters at the same time
    python tests/science/run.py --kind process numpy.ma     # for comparison

Prints for each suite what passed, failed and was left out. Exits with 1 if a test failed that is not in EXPECTED, or if
two workers saw different things. Needs pytest and what the suites need (hypothesis, pooch), which no test of ours does.
"""

import argparse
import sys
import time

from pool_party import ComposablePool

DEFAULT = ("numpy.linalg", "numpy.fft", "numpy.random", "numpy.polynomial", "numpy.ma")

# What cannot pass in an interpreter, by a part of the test's error or of its name, and why.
EXPECTED = {
    "fork not supported for isolated subinterpreters": "forks, which CPython forbids there",
    "daemon threads are disabled in this interpreter": "uses multiprocessing.Pool, whose threads CPython forbids there",
    "module 'tracemalloc' has no attribute": "uses tracemalloc, which CPython forbids there",
}

NO_PLUGINS = ("faulthandler", "cacheprovider", "timeout", "threadexception", "unraisableexception")


class Report:
    """A pytest plugin that counts outcomes and keeps the first lines of failures."""

    def __init__(self):
        self.passed = 0
        self.skipped = {}
        self.failed = {}

    def pytest_runtest_logreport(self, report):
        if report.passed:
            self.passed += report.when == "call"
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "xfail")
            self.skipped[reason] = self.skipped.get(reason, 0) + 1
        else:
            self.failed[report.nodeid] = _last_line(report.longreprtext)

    def pytest_collectreport(self, report):
        if report.failed:
            self.failed[report.nodeid] = _last_line(report.longreprtext)


def _last_line(text):
    errors = [line for line in text.splitlines() if line.startswith("E  ")]
    return (errors[0][1:].strip() if errors else text[-200:]).strip()


def run_suite(name, kind, options):
    """Runs in a worker. Returns passed, {reason: count} of skipped, {test: error} of failed, and seconds."""
    import importlib.util
    import io
    import os
    import types
    from contextlib import redirect_stderr, redirect_stdout

    import pytest

    if kind == "interp":  # the tests that use it fail, and not the whole file
        sys.modules["tracemalloc"] = types.ModuleType("tracemalloc")
    report = Report()
    root = os.path.dirname(os.path.dirname(importlib.util.find_spec(name.partition(".")[0]).origin))
    spec = importlib.util.find_spec(name)
    tests = spec.submodule_search_locations[0] if spec.submodule_search_locations else spec.origin
    arguments = [tests, "-q", "--capture=sys", "-c", os.devnull, "--rootdir", root]
    arguments += ["-W", "ignore", "--continue-on-collection-errors", *options]
    for plugin in NO_PLUGINS:
        arguments += ["-p", f"no:{plugin}"]
    start = time.perf_counter()
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        status = pytest.main(arguments, plugins=[report])
    if status not in (0, 1, 2):
        report.failed[f"pytest {name}"] = f"status {status}: {output.getvalue()[-2000:]}"
    return report.passed, report.skipped, report.failed, time.perf_counter() - start


def explain(test, error):
    """Why this test is expected to fail, or None."""
    return next((reason for part, reason in EXPECTED.items() if part in error or part in test), None)


def show(name, outcome):
    """Prints the outcome of a suite; whether it is as expected."""
    passed, skipped, failed, seconds = outcome
    unexpected = [test for test, error in failed.items() if explain(test, error) is None]
    print(
        f"{name}: {passed} passed, {len(failed)} failed ({len(unexpected)} unexpected), "
        f"{sum(skipped.values())} left out by the suite, {seconds:.0f} s"
    )
    for test, error in failed.items():
        print(f"    {test}: {explain(test, error) or error}")
    return not unexpected


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", default=DEFAULT)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--kind", default="interp")
    parser.add_argument("--reasons", action="store_true", help="print why the suites left tests out")
    parser.add_argument("--option", action="append", default=[], help="for pytest, as --option=-k --option='not slow'")
    options = parser.parse_args()
    good = True
    for name in options.suites:
        # an interpreter for each: what a suite leaves behind does not reach the next one
        with ComposablePool(options.workers, kind=options.kind, maxtasksperchild=1) as pool:
            jobs = [pool.apply_async(run_suite, (name, options.kind, options.option)) for _ in range(options.workers)]
            outcomes = [job.get() for job in jobs]
        for outcome in outcomes:
            good &= show(name, outcome)
        if options.reasons:
            for reason, count in sorted(outcomes[0][1].items()):
                print(f"    left out {count}: {reason}")
        good &= all(outcome[2].keys() == outcomes[0][2].keys() for outcome in outcomes)
        sys.stdout.flush()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
