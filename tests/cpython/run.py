"""Run CPython's own tests of multiprocessing.Pool and of executors against ours.

    python tests/cpython/run.py [--only pool|executor] [--kind KIND] [--start-method METHOD] [--patched] [-v]

The tests are those of the running interpreter's `test` package. From `test._test_multiprocessing` they are _TestPool,
_TestPoolWorkerErrors and _TestPoolWorkerLifetime. For kind="process" these run as the type "processes", for "thread" as
"threads", and for "interp" and "dask" as "processes", since their values are pickled. From
`test.test_concurrent_futures` they are the classes in executor_cases.CLASSES, without "dask".

With --patched the tests use CPython's own classes, under `pool_party.patch`. Some more tests are left out then, since
only replaced pools read attributes of CPython's.

Exit status: 0 if all passed; 1 after a failure, if a test class is missing, if a kind ran hardly any tests, or if a
table of left-out tests (LEFT_OUT in pool_cases and executor_cases) names one that does not exist.
"""

import argparse
import faulthandler
import multiprocessing
import os
import sys
import time
import unittest
import warnings


def run_kind(cases, kind, verbosity, hang_s):
    faulthandler.dump_traceback_later(hang_s, exit=True)  # a hang is a failure, with stacks
    with cases.ours_in_scripts(kind), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process", DeprecationWarning)
        runner = unittest.TextTestRunner(sys.stdout, verbosity=verbosity)
        result = runner.run(cases.make_suite(kind))
    faulthandler.cancel_dump_traceback_later()
    return result


def bad_tests(result):
    """Return the names of failed tests. A test counts once, however many of its parts failed."""
    cases = [getattr(case, "test_case", case) for case, _ in result.failures + result.errors]
    return list(dict.fromkeys(case.id() for case in cases + result.unexpectedSuccesses))


def run_all(cases, kinds, verbosity, hang_s):
    """Run all tests of these kinds. Return lines that say what ran and what is wrong."""
    lines = [f"{sys.version.split()[0]}: CPython's {cases.TITLE}"]
    problems = cases.find_problems()
    for kind in kinds:
        print(f"== {cases.__name__} {kind}", flush=True)
        started = time.monotonic()
        result = run_kind(cases, kind, verbosity, hang_s)
        skipped, bad = len(result.skipped), bad_tests(result)
        n_ran = result.testsRun - skipped
        counts = f"{n_ran - len(bad):3} passed {len(bad):3} failed {skipped:3} skipped"
        lines.append(f"{kind:8} {counts}  {time.monotonic() - started:5.1f} s")
        problems += bad
        if n_ran < cases.FEWEST_TESTS:
            problems.append(f"{kind}: only {n_ran} of CPython's {cases.TITLE} ran")
        for case, reason in result.skipped:
            print(f"skipped {case.id().removeprefix(f'{cases.__name__}.')}: {reason}")
    return lines, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=("pool", "executor"))
    parser.add_argument("--kind", choices=("thread", "process", "interp", "dask"), action="append")
    parser.add_argument("--start-method", choices=multiprocessing.get_all_start_methods())
    parser.add_argument("--patched", action="store_true")
    parser.add_argument("--hang-s", type=float, default=300)
    parser.add_argument("-v", "--verbose", action="store_true")
    args = parser.parse_args()
    if args.start_method:
        os.environ["POOL_PARTY_CPYTHON_START_METHOD"] = args.start_method
    if args.patched:
        os.environ["POOL_PARTY_CPYTHON_PATCHED"] = "1"
    import executor_cases
    import pool_cases

    lines, problems = [], []
    for only, cases in {"pool": pool_cases, "executor": executor_cases}.items():
        if args.only in (None, only):
            kinds = [kind for kind in args.kind or cases.KINDS if kind in cases.KINDS]
            more = run_all(cases, kinds, 2 if args.verbose else 1, args.hang_s)
            lines += more[0]
            problems += more[1]
    print("", *lines, *(f"FAILED {problem}" for problem in problems), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
