"""Run CPython's own tests of multiprocessing.Pool against our pools.

    python tests/cpython/run.py [--kind KIND] [--start-method METHOD] [-v]

The tests are those of the running interpreter's `test` package (`test._test_multiprocessing`:
_TestPool, _TestPoolWorkerErrors, _TestPoolWorkerLifetime). For kind="process" they run as its
"processes" type, for "thread" as its "threads", and for "interp" as "processes", since its values
are pickled. Exit status: 0 if all passed, 1 on a failure, when a kind ran next to no test, or when
the table of left-out tests (pool_cases.LEFT_OUT) names one that does not exist.
"""

import argparse
import faulthandler
import multiprocessing
import os
import pathlib
import sys
import time
import unittest
import unittest.mock
import warnings

import test.support.script_helper as script_helper

import pool_party

ROOT = str(pathlib.Path(pool_party.__file__).resolve().parents[1])
FEWEST_TESTS = 20  # CPython 3.12 has 28 for a kind, 3.14 has 31


def with_our_pool_in_scripts(kind):
    """One test runs a program with `from multiprocessing import Pool`: let that be ours."""
    original = script_helper.assert_python_ok
    old = "from multiprocessing import Pool\n"
    new = (
        f"import functools, sys; sys.path.insert(0, {ROOT!r}); import pool_party; "
        f"Pool = functools.partial(pool_party.ComposablePool, kind={kind!r})\n"
    )

    def assert_python_ok(*args, **env):
        assert any(old in arg for arg in args), "CPython's script has changed"
        return original(*(arg.replace(old, new) for arg in args), **env)

    return unittest.mock.patch.object(script_helper, "assert_python_ok", assert_python_ok)


def run_kind(pool_cases, kind, verbosity, hang_s):
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    suite = unittest.TestSuite(load(getattr(pool_cases, f"{kind}{name}")) for name in pool_cases.CLASSES)
    faulthandler.dump_traceback_later(hang_s, exit=True)  # a hang is a failure, with stacks
    with with_our_pool_in_scripts(kind), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process", DeprecationWarning)
        runner = unittest.TextTestRunner(sys.stdout, verbosity=verbosity)
        result = runner.run(suite)
    faulthandler.cancel_dump_traceback_later()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kind", choices=("thread", "process", "interp"), action="append")
    parser.add_argument("--start-method", choices=multiprocessing.get_all_start_methods())
    parser.add_argument("--hang-s", type=float, default=300)
    parser.add_argument("-v", "--verbose", action="store_true")
    args = parser.parse_args()
    if args.start_method:
        os.environ["POOL_PARTY_CPYTHON_START_METHOD"] = args.start_method
    import pool_cases

    problems = [f"LEFT_OUT names no test: {key}" for key in pool_cases.stale_rows()]
    rows = []
    for kind in args.kind or pool_cases.KINDS:
        print(f"== {kind}", flush=True)
        started = time.monotonic()
        result = run_kind(pool_cases, kind, 2 if args.verbose else 1, args.hang_s)
        n_skipped = len(result.skipped)
        bad = [case.id() for case, _ in result.failures + result.errors]
        n_passed = result.testsRun - n_skipped - len(bad)
        rows.append((kind, n_passed, len(bad), n_skipped, time.monotonic() - started))
        problems += bad
        if result.testsRun - n_skipped < FEWEST_TESTS:
            problems.append(f"{kind}: only {result.testsRun - n_skipped} tests ran")
        for case, reason in result.skipped:
            print(f"skipped {case.id().removeprefix('pool_cases.')}: {reason}")

    print(f"\n{sys.version.split()[0]}: CPython's Pool tests on ComposablePool")
    for kind, n_passed, n_bad, n_skipped, wall_s in rows:
        counts = f"{n_passed:3} passed {n_bad:3} failed {n_skipped:3} skipped"
        print(f"{kind:8} {counts}  {wall_s:5.1f} s")
    for problem in problems:
        print(f"FAILED {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
