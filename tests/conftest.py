"""Fixtures: the kinds, pools that are always cleaned up, gates, and a hard time-out for each test."""

import faulthandler
import functools
import importlib.util
import multiprocessing
import os
import pathlib
import shutil
import subprocess

import gates
import hang_watch
import pytest

from pool_party import ComposableExecutor, ComposablePool, _native
from pool_party._core import exit as pool_exit
from pool_party._core.engine import CLOSE, TERMINATE

# `make test-elsewhere` runs the same tests in other kinds.
KINDS = tuple(os.environ.get("POOL_PARTY_TEST_KINDS", "thread process interp").split())
REMOTE_KINDS = tuple(kind for kind in KINDS if kind != "thread")
START_METHODS = ("fork", "forkserver", "spawn")

DIFFERS_ELSEWHERE = {  # tests that do not hold for kind="dask" and "mpi", and why
    "test_kinds_run_where_they_say": "it has a table of the other kinds",
    "test_private_attributes_that_people_read": "there is no list of workers",
    "test_shutdown_while_a_worker_is_replaced": "nodes replace workers",
    "test_statistics_follow_replacement": "workers that nodes replace are not counted",
    "test_maxtasksperchild_of_one_gives_every_task_a_fresh_worker": "as above",
    "test_calls_without_limits_start_no_thread": "nodes end tasks whose time is up",
    "test_what_an_alarm_raises_amid_pickling_goes_to_the_caller": "another thread pickles maps",
    "test_pickling_that_waits_for_a_task_holds_up_no_other": "one thread pickles maps",
    "test_a_task_that_has_not_begun_can_be_cancelled": "what a node has is running",
    "test_what_workers_have_is_not_looked_for_again": "workers on other machines start with nothing",
}

collect_ignore = [] if importlib.util.find_spec("joblib") else ["integrations/test_joblib.py"]
HANG_S = float(os.environ.get("POOL_PARTY_TEST_HANG_S", "120"))
# Python 3.12 made os.fork() in a process with threads a DeprecationWarning. Pools have threads, and `fork` is the
# default start method before 3.14, so these tests fork on purpose.
FORK_WARNING = "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"

_stderr_fd = _watch = None


def pytest_configure(config):
    global _stderr_fd, _watch
    config.addinivalue_line("markers", "hang_s(seconds): a longer time-out than the usual")
    _stderr_fd = os.dup(2)  # the real one, before pytest captures it
    _watch = hang_watch.Watch(_stderr_fd)


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.filterwarnings(FORK_WARNING))
        reason = DIFFERS_ELSEWHERE.get(getattr(item, "originalname", ""))
        if reason is not None and {"dask", "mpi"}.intersection(KINDS):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _hang_is_a_failure(request):
    """End the run if a test hangs, with every thread's stack on stderr, and before that what its children do."""
    marker = request.node.get_closest_marker("hang_s")
    limit = marker.args[0] if marker else HANG_S
    faulthandler.dump_traceback_later(limit, exit=True, file=_stderr_fd)
    _watch.expect_end(limit)
    yield
    _watch.expect_end(None)
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _machine_is_idle():
    """Make policies that lend assume that all CPUs are idle, whatever else runs here."""
    _native.pretend_running(0)
    yield
    _native.pretend_running(None)


@pytest.fixture(autouse=True)
def _environment_is_as_before():
    """Undo what libraries set in the environment, such as Dask, which chooses a seed of hashes for its processes."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() ^ before.keys():
        if name in before:
            os.environ[name] = before[name]
        elif name != "PYTEST_CURRENT_TEST":
            del os.environ[name]


@pytest.fixture(params=KINDS)
def kind(request):
    """Every kind of worker."""
    return request.param


@pytest.fixture(params=REMOTE_KINDS)
def remote_kind(request):
    """The kinds whose values are pickled."""
    return request.param


@pytest.fixture(params=START_METHODS)
def start_method(request):
    return request.param


@pytest.fixture
def context(start_method, _shared_pools):
    """multiprocessing's context for each start method, for kind="process".

    The library refuses to fork while interpreters are alive, so shared pools of interpreters are ended first.
    """
    if start_method == "fork":
        _end_shared(_shared_pools, "interp")
    return multiprocessing.get_context(start_method)


@pytest.fixture
def may_fork(_shared_pools):
    """For tests that open pools with multiprocessing's default start method, which was `fork` before 3.14."""
    _end_shared(_shared_pools, "interp")


@pytest.fixture
def no_shared_pools(_shared_pools):
    """End the shared pools, and wait for the end of those that earlier tests have terminated.

    Their workers are still active for a moment after the last result has come, and at their end. They share the CPUs
    with all others then.
    """
    for kind in list(_shared_pools):
        _end_shared(_shared_pools, kind)
    for engine in list(pool_exit._open):
        if engine.state in (CLOSE, TERMINATE):
            engine.join(60)


@pytest.fixture(scope="session")
def _shared_pools():
    pools = {}
    yield pools
    for kind in list(pools):
        _end_shared(pools, kind)


def _end_shared(pools, kind):
    """End a shared pool; the next test that asks for it gets a new one."""
    if kind in pools:
        pool = pools.pop(kind)
        pool.terminate()
        pool.join(timeout=30)


def _take_shared(pools, kind):
    if kind not in pools:
        pools[kind] = ComposablePool(2, kind=kind)
    return pools[kind]


def _check_still_idle(pools, kind):
    """Check that a test that borrowed the shared pool left it running and with nothing pending."""
    pool = pools[kind]
    try:
        gates.wait_until(lambda: pool.statistics().n_pending == 0, f"{pool!r} idle", timeout=10)
        assert "state=RUN" in repr(pool)
    except BaseException:
        _end_shared(pools, kind)
        raise


@pytest.fixture
def pool(kind, _shared_pools):
    """A shared pool of two workers, for each kind. Tests must leave it as they found it."""
    yield _take_shared(_shared_pools, kind)
    _check_still_idle(_shared_pools, kind)


@pytest.fixture
def remote_pool(remote_kind, _shared_pools):
    """Like `pool`, for the kinds whose values are pickled."""
    yield _take_shared(_shared_pools, remote_kind)
    _check_still_idle(_shared_pools, remote_kind)


@pytest.fixture
def make_pool():
    """Return a function that makes pools. They are ended with the test."""
    made = []

    def make(*args, **kwargs):
        made.append(ComposablePool(*args, **kwargs))
        return made[-1]

    yield make
    for pool in made:
        pool.terminate()
    for pool in made:
        pool.join(timeout=30)


@pytest.fixture
def make_executor():
    """Return a function that makes executors. They are ended with the test."""
    made = []

    def make(*args, **kwargs):
        made.append(ComposableExecutor(*args, **kwargs))
        return made[-1]

    yield make
    for executor in made:
        executor.shutdown(wait=True, cancel_futures=True)


@pytest.fixture(scope="session")
def openmp_library(tmp_path_factory):
    """A small library that uses libgomp."""
    return build_library(tmp_path_factory, "omp.c", "-fopenmp")


@pytest.fixture(scope="session")
def pages_library(tmp_path_factory):
    """A library that makes pages larger when it is preloaded."""
    return build_library(tmp_path_factory, "pages.c", "-D_GNU_SOURCE", "-ldl")


@pytest.fixture(scope="session")
def refusing_library(tmp_path_factory):
    """A library with which memory cannot be moved, when it is preloaded."""
    return build_library(tmp_path_factory, "refuse_to_move.c", "-D_GNU_SOURCE")


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Build a library: build("source.c", "-option")."""
    return functools.partial(build_library, tmp_path_factory)


def build_library(tmp_path_factory, source, *options):
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    path = tmp_path_factory.mktemp("built") / "library.so"
    command = ["gcc", "-shared", "-fPIC", pathlib.Path(__file__).parent / "native" / source, *options, "-o", path]
    completed = subprocess.run(command, capture_output=True, text=True)
    if completed.returncode != 0:
        pytest.skip(f"gcc does not build it here: {completed.stderr}")
    return path


# The gates depend on the makers, so that a held task is released before its pool is joined.
@pytest.fixture
def gate(make_pool, make_executor, tmp_path):
    with gates.Gate(tmp_path / "gate") as gate:
        yield gate


@pytest.fixture
def other_gate(make_pool, make_executor, tmp_path):
    with gates.Gate(tmp_path / "other-gate") as gate:
        yield gate
