"""Run joblib's own tests of `Parallel` with our backend in the place of joblib's own.

    python tests/joblib_suite/run.py [--kind KIND] [--all] [ARGUMENT OF PYTEST...]

Our backend is joblib's default meanwhile, and wherever a test has parameters for backends, it has ours. Without --all,
tests that take long and have little to do with the backend are left out, too.

Exit status: 0 if all passed; 1 after a failure, if hardly any tests ran, or if a table names a test that is not there.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
KINDS = ("thread", "process", "interp")
FEWEST_TESTS = 100
LIMIT_S = 1500  # on a busy machine

NOT_OURS = "it names joblib's own classes, or a default that is not joblib's own here"
NO_FILES = "large arrays travel through shared memory, and not as maps of files"
LEFT_OUT = {
    "test_nested_backend_context_manager": "nested calls use our backend, within the budget of their task",
    "test_nested_parallelism_limit": "nested calls use our backend, within the budget of their task",
    "test_backend_hinting_and_constraints": NOT_OURS,
    "test_auto_memmap_on_arrays_from_generator": NO_FILES,
    "test_memmapping_leaks": NO_FILES,
}
LOKY = "uses loky alone"
LONG = {
    "test_default_mp_context": "starts programs, with multiprocessing alone",
    "test_globals_update_at_each_parallel_call": "starts a program",
    "test_initializer_not_reused": LOKY,
    "test_initializer_reused": LOKY,
    "test_loky_reuse_workers": LOKY,
    "test_nested_loop_with_exception_with_loky": LOKY,
    "test_no_blas_crash_or_freeze_with_subprocesses": "large products, and no other use of the backend",
    "test_parallel_with_interactively_defined_bound_method_loky": LOKY,
    "test_parallel_with_interactively_defined_functions": "starts programs",
    "test_parallel_with_interactively_defined_functions_loky": LOKY,
    "test_parallel_with_unpicklable_functions_in_args": "starts many programs",
    "test_thread_bomb_mitigation": "nests joblib's own backends",
    "test_threadpool_limitation_in_child_context": LOKY,
    "test_threadpool_limitation_in_child_loky": LOKY,
    "test_threadpool_limitation_in_child_override": LOKY,
}


def names_of(output):
    """Return the names of tests, without parameters."""
    return set(re.findall(r"::(\w+)", output))


def environment(kind):
    paths = [str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH")]
    return {**os.environ, "POOL_PARTY_KIND": kind, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run_pytest(kind, *args):
    command = [sys.executable, "-m", "pytest", "-p", "ours", "--pyargs", "joblib.test.test_parallel", *args]
    settings = ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(HERE)]
    hang = ["-o", "faulthandler_timeout=240", "-o", "faulthandler_exit_on_timeout=true"]
    return subprocess.run(
        [*command, *settings, *hang], env=environment(kind), stdout=subprocess.PIPE, text=True, timeout=LIMIT_S
    )


def run_kind(kind, left_out, args):
    """Run the tests. Return a line that says what ran, and what is wrong."""
    skips = " and ".join(f"not {name}" for name in left_out)
    completed = run_pytest(kind, "-q", "--tb=short", "-k", skips, *args)
    summary = completed.stdout.strip().splitlines()[-1]
    problems = re.findall(r"^(?:FAILED|ERROR) \S*::(.*)$", completed.stdout, re.M)
    passed = re.search(r"(\d+) passed", summary)
    if completed.returncode != 0:
        print(completed.stdout)
        problems = problems or [f"pytest ended with {completed.returncode}"]
    elif not args and (passed is None or int(passed[1]) < FEWEST_TESTS):
        problems.append("hardly any tests ran")
    return f"{kind:8} {summary}", [f"{kind}: {problem}" for problem in problems]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--all", action="store_true")
    options, args = parser.parse_known_args()
    known = names_of(run_pytest("thread", "--collect-only", "-q").stdout)
    problems = [f"there is no test {name}" for name in sorted({*LEFT_OUT, *LONG} - known)]
    lines = []
    for kind in options.kind or KINDS:
        line, bad = run_kind(kind, LEFT_OUT if options.all else LEFT_OUT | LONG, args)
        print(line, flush=True)
        lines.append(line)
        problems += bad
    print(*problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
