"""Tests that cannot pass in an interpreter, and tests that must not be tried there, each with its reason.

A test is named by its pytest id below site-packages. Names are patterns as in fnmatch ("[" only in "[[]").
"""

from fnmatch import fnmatchcase

FORK = "forks or starts a process, which CPython forbids in such interpreters"
DAEMON = "starts a daemon thread, as multiprocessing's pools, queues and managers do; CPython forbids that there"
TRACEMALLOC = "uses tracemalloc, which CPython forbids there"
SIGNALS = "sets a signal handler, which CPython allows in the main interpreter only"

# Errors whose message says what is forbidden.
ERRORS = {
    "fork not supported for isolated subinterpreters": FORK,
    "exec not supported for isolated subinterpreters": FORK,
    "daemon threads are disabled in this": DAEMON,
    "signal only works in main thread of the main interpreter": SIGNALS,
    "module 'tracemalloc' has no attribute": TRACEMALLOC,
}

# Tests that fail.
FAILING = {
    # ProcessPoolExecutor's queue starts a thread; the error is then that a process ended abruptly
    "numpy/_core/tests/test_multiprocessing.py::test_read_write_bool_array": DAEMON,
    "h5py/tests/test_file.py::TestFileLocking::test_multiprocess": DAEMON,
}

# Tests that are not run, since they would crash or hang the process, or change it for other tests.
LEFT_OUT: dict[str, str] = {}


def explain(test, error):
    """Return why this test is expected to fail with this error, or None."""
    reasons = [reason for part, reason in ERRORS.items() if part in error]
    reasons += [reason for pattern, reason in FAILING.items() if fnmatchcase(test, pattern)]
    return reasons[0] if reasons else None


def why_left_out(test):
    """Return why this test is not run, or None."""
    return next((reason for pattern, reason in LEFT_OUT.items() if fnmatchcase(test, pattern)), None)
