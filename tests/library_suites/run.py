"""Run the tests of joblib, scikit-learn and Dask in our workers, in the place of those that they use themselves.

    python tests/library_suites/run.py SUITE [--kind KIND] [--all] [ARGUMENT OF PYTEST...]

joblib: our backend is the default, and wherever a test has parameters for backends, it has ours. patched: joblib's
tests as they are, with its own backends, under `pool_party.patch`. sklearn: every call of `Parallel` has two of our
workers. dask: our pools and executors stand for those of the standard library. joblib-runner, dask-runner: all tests of
joblib, and those of Dask's schedulers and bags, as they are, under `python -m pool_party --kind KIND -m pytest`.
Without --all, tests that take long and have little to do with workers are left out, too.

Exit status: 0 if all passed; 1 after a failure, if hardly any tests ran, or if a table names a test that is not there.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass, field

HERE = pathlib.Path(__file__).parent
KINDS = ("thread", "process", "interp")
LIMIT_S = 3600  # on a busy machine


@dataclass
class Suite:
    """The tests of a library: their modules by kind, and which are left out, and why: in all kinds, in one, as long."""

    modules: dict[str, tuple[str, ...]]
    fewest: int
    left_out: dict[str, str] = field(default_factory=dict)
    left_out_of: dict[str, dict[str, str]] = field(default_factory=dict)
    long: dict[str, str] = field(default_factory=dict)
    is_under_runner: bool = False

    def skipped(self, kind, with_long):
        return {**self.left_out, **self.left_out_of.get(kind, {}), **(self.long if with_long else {})}


NOT_OURS = "it names joblib's own classes, or a default that is not joblib's own here"
NO_FILES = "large arrays travel through shared memory, and not as maps of files"
JOBLIB_LEFT_OUT = {
    "test_nested_backend_context_manager": "nested calls use our backend, within the budget of their task",
    "test_nested_parallelism_limit": "nested calls use our backend, within the budget of their task",
    "test_backend_hinting_and_constraints": NOT_OURS,
    "test_auto_memmap_on_arrays_from_generator": NO_FILES,
    "test_memmapping_leaks": NO_FILES,
}
LOKY = "uses loky alone"
JOBLIB_LONG = {
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

SUBCLASSES = "it compares the exact class of a backend with joblib's own, from which ours derive"
PATCHED_LEFT_OUT = {
    **JOBLIB_LEFT_OUT,
    "test_backend_context_manager": SUBCLASSES,
    "test_backend_hinting_and_constraints_with_custom_backends": SUBCLASSES,
    "test_multiple_generator_call_separated_gc": "two calls cannot share loky's executor; ours have pools of their own",
    "test_overwrite_default_backend": SUBCLASSES,
    "test_nested_parallel_warnings": "it expects warnings that pools cannot nest; ours can",
    "test_parallel_pickling": "loky raises PicklingError, and we raise what the object raises when it is pickled",
}
NOT_ASYNC = "it needs a plugin of pytest for asyncio"
RUNNER_LEFT_OUT = {
    **PATCHED_LEFT_OUT,
    "test_parallel_config_no_backend": NO_FILES,
    "test_managed_backend_reuse_temp_folder": NO_FILES,
    "test_memmap_returned_as_regular_array": NO_FILES,
    "test_memmapping_temp_folder_thread_safety": NO_FILES,
    "test_parallel_isolated_temp_folders": NO_FILES,
    "test_threadpool_limitation_in_child_context_error": "it expects that threads of BLAS cannot be limited; ours are",
    "test_call_and_shelve_async": NOT_ASYNC,
    "test_memorized_func_call_async": NOT_ASYNC,
    "test_memory_integration_async": NOT_ASYNC,
    "test_memory_numpy_check_mmap_mode_async": NOT_ASYNC,
    "test_no_memory_async": NOT_ASYNC,
}

CALLERS = "it looks for callers on the stack, which a task in another thread has none of"
IN_PLACE = "its tasks change objects of the test, which processes and interpreters have copies of"
WARNINGS = "it expects warnings of tasks in the test's own process"
PRINTED = "it expects what tasks print in the test's own process"
PICKLED = "what it passes or raises does not pickle"
SKLEARN_CALLERS = {
    "test_multi_metric_search_forwards_metadata": CALLERS,
    "test_validation_functions_routing": CALLERS,
    "test_learning_curve_exploit_incremental_learning_routing": CALLERS,
    "test_metadata_routing_for_stacking_estimators": CALLERS,
    "test_metadata_routing_for_voting_estimators": CALLERS,
    "test_metadata_routing_with_dynamic_method_selection": CALLERS,
}
SKLEARN_APART = {
    "test_base_estimator_inputs": IN_PLACE,
    "test_cross_val_score_score_func": IN_PLACE,
    "test_cv_results": "its scores come from one generator of random numbers, which tasks have copies of",
    "test_search_callbacks_receive_search_instance": IN_PLACE,
    "test_cross_val_predict": WARNINGS,
    "test_cross_val_score_failing_scorer": WARNINGS,
    "test_cross_validate_failing_scorer": WARNINGS,
    "test_cross_validate_invalid_scoring_param": WARNINGS,
    "test_searchcv_raise_warning_with_non_finite_score": WARNINGS,
    "test_search_cv_verbose_3": PRINTED,
    "test_voting_verbose": PRINTED,
    "test_grid_search_cv_splits_consistency": PICKLED,
    "test_passed_unrequested_metadata": PICKLED,
    "test_search_callbacks_with_partial_fit_failures": PICKLED,
}


SKLEARN_MODULES = (
    "sklearn.model_selection",
    # The rest of sklearn.ensemble does not use joblib.
    *(f"sklearn.ensemble.tests.test_{name}" for name in ("bagging", "forest", "iforest", "stacking", "voting")),
)
DASK_MODULES = (
    *(f"dask.tests.test_{name}" for name in ("threaded", "multiprocessing", "local", "delayed", "base")),
    "dask.bag",
)
ONE_PROCESS = "it counts processes, and interpreters share one"
SUITES = {
    "joblib": Suite(
        dict.fromkeys(KINDS, ("joblib.test.test_parallel",)), 100, left_out=JOBLIB_LEFT_OUT, long=JOBLIB_LONG
    ),
    "patched": Suite(
        dict.fromkeys(KINDS, ("joblib.test.test_parallel",)), 100, left_out=PATCHED_LEFT_OUT, long=JOBLIB_LONG
    ),
    "sklearn": Suite(
        dict.fromkeys(KINDS, SKLEARN_MODULES),
        600,
        left_out=SKLEARN_CALLERS,
        left_out_of={"process": SKLEARN_APART, "interp": SKLEARN_APART},
    ),
    "dask": Suite(
        {
            "thread": ("dask.tests.test_threaded",),
            "process": ("dask.tests.test_multiprocessing",),
            "interp": ("dask.tests.test_multiprocessing",),
        },
        15,
        left_out_of={
            "interp": {"test_custom_context_used_python3_posix": "interpreters have no contexts"},
        },
    ),
    "joblib-runner": Suite(
        dict.fromkeys(KINDS, ("joblib",)), 1200, left_out=RUNNER_LEFT_OUT, long=JOBLIB_LONG, is_under_runner=True
    ),
    "dask-runner": Suite(
        dict.fromkeys(KINDS, DASK_MODULES),
        300,
        left_out_of={
            "interp": {
                "test_custom_context_used_python3_posix": "interpreters have no contexts",
                "test_num_workers_config": ONE_PROCESS,
            },
        },
        is_under_runner=True,
    ),
}


def names_of(output):
    """Return the names of tests, without parameters."""
    return set(re.findall(r"::(\w+)", output))


def environment(name, kind, left_out):
    paths = [str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH")]
    own = {"POOL_PARTY_SUITE": name, "POOL_PARTY_KIND": kind, "POOL_PARTY_LEFT_OUT": " ".join(left_out)}
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run_pytest(name, kind, left_out, *args):
    suite = SUITES[name]
    runner = ["-m", "pool_party", "--kind", kind] if suite.is_under_runner else []
    plugins = ["-p", "left_out"] if suite.is_under_runner else ["-p", f"{name}_plugin", "-p", "left_out"]
    command = [sys.executable, *runner, "-m", "pytest", *plugins, "--pyargs", *suite.modules[kind], *args]
    settings = ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(HERE)]
    hang = ["-o", "faulthandler_timeout=600", "-o", "faulthandler_exit_on_timeout=true"]
    return subprocess.run(
        [*command, *settings, *hang],
        env=environment(name, kind, left_out),
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
    )


def run_kind(name, kind, left_out, args):
    """Run the tests. Return a line that says what ran, and what is wrong."""
    completed = run_pytest(name, kind, left_out, "-q", "--tb=short", *args)
    summary = completed.stdout.strip().splitlines()[-1]
    problems = re.findall(r"^(?:FAILED|ERROR) \S*::(.*)$", completed.stdout, re.M)
    passed = re.search(r"(\d+) passed", summary)
    if completed.returncode != 0:
        print(completed.stdout)
        problems = problems or [f"pytest ended with {completed.returncode}"]
    elif not args and (passed is None or int(passed[1]) < SUITES[name].fewest):
        problems.append("hardly any tests ran")
    return f"{kind:8} {summary}", [f"{kind}: {problem}" for problem in problems]


def unknown_names(name, kind):
    """Return the names in the tables that no test has."""
    skipped = SUITES[name].skipped(kind, with_long=True)
    return sorted(skipped.keys() - names_of(run_pytest(name, kind, (), "--collect-only", "-q").stdout))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", choices=SUITES)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--all", action="store_true")
    options, args = parser.parse_known_args()
    suite, problems = SUITES[options.library], []
    for kind in options.kind or KINDS:
        problems += [f"{kind}: there is no test {name}" for name in unknown_names(options.library, kind)]
        line, bad = run_kind(options.library, kind, suite.skipped(kind, with_long=not options.all), args)
        print(line, flush=True)
        problems += bad
    print(*problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
