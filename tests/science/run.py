"""The own tests of NumPy, SciPy, pandas and other packages, run inside interpreter workers.

    python tests/science/run.py                                  # a few suites of NumPy's
    python tests/science/run.py numpy scipy.fft                  # a package's suites, or single ones: see --list
    python tests/science/run.py --interpreters 2 numpy.random    # the same tests in two interpreters at the same time
    python tests/science/run.py --kind main numpy.ma             # in the main interpreter
    python tests/science/run.py --compare numpy.ma               # in both, and every difference is shown
    python tests/science/run.py --record msgpack yaml            # and the counts are written into docs/packages.md

A suite is a module or package, or a file below one ("numpy._core/tests/test_umath.py"); or the name of a distribution
and a folder or file of its sdist ("msgpack:test"), which uv finds and build/suites keeps. It runs in a fresh process. A
test that crashes that process, or that does not end within --timeout, counts as failed, and the suite continues after
it. Failed tests are run again in a plain main interpreter: those that fail there as well are not our concern.

Exits with 0 only if all failures are in expected.py or fail in the main interpreter as well, nothing crashed, and all
interpreters saw the same. Needs pytest and what the suites need (hypothesis, pooch).
"""

import argparse
import sys
import time
from collections import Counter

from expected import ERRORS, FAILING, LEFT_OUT, explain, why_left_out
from said import record
from suites import run_suite

FAST = ("numpy.linalg", "numpy.fft", "numpy.polynomial")
PANDAS_PARTS = (
    "api apply arithmetic arrays base computation config construction copy_view dtypes extension frame generic "
    "groupby indexes indexing interchange internals libs reductions reshape resample scalar series strings tools "
    "tseries tslibs util window"
)
PYARROW_PARTS = (
    "acero array builder cffi compute convert_builtin csv dataset exec_plan extension_type feather flight fs io ipc "
    "json memory misc orc pandas scalars schema substrait table tensor types udf util"
)
CRYPTOGRAPHY_PARTS = "x509 test_fernet.py hazmat/primitives/test_aead.py"
PACKAGES = {
    "numpy": ["numpy." + name for name in "_core fft lib linalg ma polynomial random".split()],
    "scipy": ["scipy." + name for name in "fft linalg ndimage optimize signal sparse special stats".split()],
    "pandas": ["pandas.tests." + name for name in PANDAS_PARTS.split()],
    "sklearn": ["sklearn.linear_model", "sklearn.ensemble", "sklearn.cluster"],
    "pyarrow": [f"pyarrow/tests/test_{name}.py" for name in PYARROW_PARTS.split()] + ["pyarrow/tests/parquet"],
    # in their wheels
    "bitarray": ["bitarray/test_bitarray.py"],
    "bottleneck": ["bottleneck.tests"],
    "greenlet": ["greenlet.tests"],
    "h5py": ["h5py.tests"],
    "numexpr": ["numexpr.tests"],
    "pywt": ["pywt.tests"],
    "regex": ["regex.tests"],
    "shapely": ["shapely.tests"],
    "simplejson": ["simplejson.tests"],
    "tables": ["tables.tests"],
    # in their sdists
    "bcrypt": ["bcrypt:tests"],
    "cryptography": [f"cryptography:tests/{name}" for name in CRYPTOGRAPHY_PARTS.split()],
    "gmpy2": ["gmpy2:test"],
    "httptools": ["httptools:tests"],
    "kiwisolver": ["kiwisolver:py/tests"],
    "lxml": ["lxml:src/lxml/tests"],
    "lz4": ["lz4:tests"],
    "markupsafe": ["markupsafe:tests"],
    "msgpack": ["msgpack:test"],
    "nacl": ["pynacl:tests"],
    "netCDF4": ["netCDF4:test"],
    "orjson": ["orjson:test"],
    "PIL": [f"pillow:Tests/test_{name}.py" for name in "image file_jpeg file_png imagefont".split()],
    "psutil": ["psutil:tests"],
    "rapidfuzz": ["rapidfuzz:tests"],
    "rpds": ["rpds-py:tests"],
    "ujson": ["ujson:tests"],
    "yaml": ["pyyaml:tests"],
    "zstandard": ["zstandard:tests"],
}
IN_MAIN = "fails in the main interpreter, too"


def judge(suite, seen, options):
    """Return why each test failed: {test: (error, reason or None)}."""
    failures = {test: error for one in seen for test, error in one.failures().items()}
    judged = {test: (error, explain(test, error)) for test, error in failures.items()}
    unknown = [test for test, (_, reason) in judged.items() if reason is None]
    if unknown and options.kind != "main":
        [here], _ = run_suite(suite, "main", 1, options.timeout, options.option, only=unknown)
        judged |= {test: (judged[test][0], IN_MAIN) for test in unknown if test in here.failures()}
    return judged


def differences(seen):
    """Return tests that did not end in the same way everywhere: {test: outcomes}."""
    outcomes = {
        test: [one.outcomes.get(test, ("not run", "")) for one in seen] for one in seen for test in one.outcomes
    }
    return {test: found for test, found in outcomes.items() if len({outcome for outcome, _ in found}) > 1}


def show_counts(suite, seen, seconds, options):
    for n, one in enumerate(seen):
        which = f", {options.kind} {n + 1} of {len(seen)}" if len(seen) > 1 else ""
        print(
            f"{suite}{which}: {one.count('passed')} passed, {one.count('failed')} failed, "
            f"{one.count('skipped')} left out by the suite, {one.count('left out')} left out by us, {seconds:.0f} s"
        )


def not_run(seen):
    """Return why we left tests out: {test: reason}."""
    return {test: why_left_out(test) for test, (outcome, _) in seen.outcomes.items() if outcome == "left out"}


def show_reasons(judged, seen):
    failed = {test: f"failed: {reason}" for test, (_, reason) in judged.items() if reason}
    reasons = failed | {test: f"left out: {reason}" for test, reason in not_run(seen).items()}
    for reason, count in Counter(reasons.values()).items():
        print(f"    {count} {reason}")
        for test in [test for test, its in reasons.items() if its == reason][:20]:
            print(f"        {test}")


def show_details(seen, options):
    if options.reasons:
        skipped = Counter(text for outcome, text in seen.outcomes.values() if outcome == "skipped")
        for reason, count in sorted(skipped.items()):
            print(f"    {count} left out by the suite: {reason}")
    for test, took in sorted(seen.seconds.items(), key=lambda item: -item[1])[: options.slowest]:
        print(f"    {took:7.1f} s {test}")


def check_suite(suite, options):
    """Run a suite, print its outcome, and return whether that is as expected."""
    start = time.perf_counter()
    how = {"options": options.option, "left_out": [] if options.kind == "main" else list(LEFT_OUT)}
    seen, faults = run_suite(suite, options.kind, options.interpreters, options.timeout, **how)
    seconds = time.perf_counter() - start
    judged = judge(suite, seen, options)
    show_counts(suite, seen, seconds, options)
    show_reasons(judged, seen[0])
    if options.record:
        record(suite, seen[0], judged, not_run(seen[0]))
    if options.compare:
        main, more = run_suite(suite, "main", 1, options.timeout, **how)
        show_counts(f"{suite} in the main interpreter", main, time.perf_counter() - start - seconds, options)
        seen, faults = seen + main, faults + more
    bad = [f"UNEXPECTED {test}: {error}" for test, (error, reason) in judged.items() if reason is None]
    bad += [f"DIFFERS {test}: {found}" for test, found in differences(seen).items() if not judged.get(test, "  ")[1]]
    bad += [f"FAULT {fault}" for fault in faults]
    bad += ["NOTHING RAN"] if any(one.count("passed") == 0 for one in seen) else []
    for line in bad:
        print(f"    {line}")
    if bad and seen[0].printed:
        print(f"    printed past pytest: {seen[0].printed.rstrip()}")
    show_details(seen[0], options)
    sys.stdout.flush()
    return not bad


def show_lists():
    for package, suites in PACKAGES.items():
        print(f"{package}: {' '.join(suites)}")
    for title, table in (("errors", ERRORS), ("expected to fail", FAILING), ("left out", LEFT_OUT)):
        print(f"{title}:")
        for what, reason in table.items():
            print(f"    {what}: {reason}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", default=FAST)
    parser.add_argument("--interpreters", type=int, default=1, help="so many run the same suite at the same time")
    parser.add_argument("--kind", choices=("interp", "thread", "main"), default="interp")
    parser.add_argument("--timeout", type=float, default=600, metavar="S", help="for a single test")
    parser.add_argument("--compare", action="store_true", help="run all in the main interpreter, too")
    parser.add_argument("--record", action="store_true", help="write the counts into docs/packages.md")
    parser.add_argument("--reasons", action="store_true", help="print why the suites left tests out")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="print the slowest tests")
    parser.add_argument("--option", action="append", default=[], help="for pytest: --option=-k --option='not slow'")
    parser.add_argument("--list", action="store_true", help="print suites, and what cannot pass and why; run nothing")
    options = parser.parse_args()
    if options.list:
        show_lists()
        return 0
    suites = [suite for name in options.suites for suite in PACKAGES.get(name, [name])]
    good = [check_suite(suite, options) for suite in suites]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
