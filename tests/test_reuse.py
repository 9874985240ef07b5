"""Interpreters that are kept for the next pool: `reuse=True`."""

import logging
import multiprocessing
import os
import sys

import fresh
import gates
import pytest
import reuse_tasks
import tasks

from pool_party import (
    ComposableExecutor,
    ComposablePool,
    InterpreterPool,
    TaskTimeout,
    WorkerLost,
    _native,
    end_kept_interpreters,
)
from pool_party.workers.interp import steps
from pool_party.workers.interp.extensions import IS_SUPPORTED

PACKAGES = ("scipy.optimize", "sklearn.linear_model", "pandas", "dask.bag", "matplotlib.pyplot")
FORKS = ("forking", "forking_at_once", "forked_workers")
PROGRAMS = ("main", "ending", *FORKS, "tracing", "nesting", "raw_thread", "bounded")
ISOLATED = fresh.TESTS / "isolated"
needs_numpy = pytest.mark.skipif(not IS_SUPPORTED, reason="needs CPython 3.14 with a GIL")

pytestmark = pytest.mark.usefixtures("nothing_kept")


@pytest.fixture
def nothing_kept(no_shared_pools):
    end_kept_interpreters()
    n = _native.n_interpreters()
    yield
    end_kept_interpreters()
    assert _native.n_kept() == 0
    gates.wait_until(lambda: _native.n_interpreters() <= n, "the end of all interpreters")


def run(function, *args, **options):
    """Run a task in a pool of one worker. Return its result and the number of its interpreter."""
    pool = InterpreterPool(1, reuse=True, **options)
    try:
        return pool.apply(function, args), pool.apply(reuse_tasks.number)
    finally:
        pool.close()
        pool.join(timeout=60)


def run_failing(function, *args):
    """The same, for a task that may raise an exception. Return the number."""
    with InterpreterPool(1, reuse=True) as pool:
        number = pool.apply(reuse_tasks.number)
        pool.apply_async(function, args).wait(60)
    pool.join(timeout=60)
    return number


# ---- taking them ----


@pytest.mark.parametrize("end", ["terminate", "close"])
def test_the_next_pool_has_the_same_interpreters(end):
    numbers = []
    for _ in range(3):
        pool = InterpreterPool(2, reuse=True)
        numbers.append(set(pool.map(reuse_tasks.number_of, range(20), 1)))
        gates.wait_until(lambda: pool._engine._workers.n_starting == 0, "all workers")  # noqa: B023
        getattr(pool, end)()
        pool.join(timeout=60)
        assert _native.n_kept() == 2
    assert len(set.union(*numbers)) <= 2
    end_kept_interpreters()
    assert _native.n_kept() == 0


def test_executors_and_pools_share_them():
    _, number = run(abs, 1)
    with ComposableExecutor(1, kind="interp", reuse=True) as executor:
        assert executor.submit(reuse_tasks.number).result(60) == number
    assert _native.n_kept() == 1


def test_without_reuse_they_end():
    with InterpreterPool(2) as pool:
        pool.apply(abs, (1,))
    pool.join(timeout=60)
    assert _native.n_kept() == 0
    _, number = run(abs, 1)
    with InterpreterPool(1) as pool:
        assert pool.apply(reuse_tasks.number) != number
    pool.join(timeout=60)
    assert _native.n_kept() == 1


def test_pools_that_are_open_at_the_same_time_have_their_own():
    with InterpreterPool(1, reuse=True) as one, InterpreterPool(1, reuse=True) as other:
        assert one.apply(reuse_tasks.number) != other.apply(reuse_tasks.number)
    for pool in (one, other):
        pool.join(timeout=60)


def test_only_a_pool_with_the_same_extensions_takes_them():
    _, number = run(abs, 1)
    _, other = run(abs, 1, extensions=())
    assert other != number
    assert run(abs, 1, extensions=()) == (1, other)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_only_a_worker_on_the_same_cpus_takes_them():
    with InterpreterPool(2, reuse=True, affinity=True, threads_per_worker=1) as pool:
        numbers = set(pool.map(reuse_tasks.number_and_cpus, range(40), 1))
    pool.join(timeout=60)
    with InterpreterPool(2, reuse=True, affinity=True, threads_per_worker=1) as pool:
        assert {*pool.map(reuse_tasks.number_and_cpus, range(40), 1), *numbers} >= numbers
        assert len(numbers | set(pool.map(reuse_tasks.number_and_cpus, range(40), 1))) <= 2
    pool.join(timeout=60)


def test_what_is_refused():
    for kind in ("thread", "process"):
        with pytest.raises(ValueError, match="reuse is for kind='interp'"):
            ComposablePool(1, kind=kind, reuse=True)
    with pytest.raises(ValueError, match="reuse is for kind='interp'"):
        ComposablePool(1, kind="dask", reuse=True)


def test_a_pool_that_is_closed_at_once_keeps_what_it_took():
    _, number = run(abs, 1)
    for _ in range(5):
        pool = InterpreterPool(1, reuse=True)
        pool.terminate()
        pool.join(timeout=60)
    assert run(abs, 1) == (1, number)


# ---- what the next pool finds ----


@pytest.fixture(scope="module")
def new():
    """What a new interpreter is like."""
    end_kept_interpreters()
    found, _ = run(reuse_tasks.look)
    end_kept_interpreters()
    return found


@pytest.mark.parametrize("task", reuse_tasks.DIRTY, ids=lambda task: task.__name__.removeprefix("dirty_"))
def test_it_is_as_if_it_were_new(task, new, tmp_path):
    waits = task is reuse_tasks.dirty_thread_that_is_waited_for
    with InterpreterPool(1, reuse=True) as pool:
        number = pool.apply(reuse_tasks.number)
        result = pool.apply_async(task, (str(tmp_path),))
        result.wait(60)
        assert result.successful() == (task is not reuse_tasks.dirty_error), result.get()
    if waits:
        with pytest.raises(multiprocessing.TimeoutError):
            pool.join(timeout=0.01)
        (tmp_path / "go").touch()
    pool.join(timeout=60)
    found, again = run(reuse_tasks.look)
    assert again == number, "it was not kept"
    assert found == new
    if waits:
        assert (tmp_path / "done").read_text() == "x"


def test_the_objects_of_tasks_end_with_the_pool(tmp_path):
    _, number = run(reuse_tasks.leave_objects, str(tmp_path / "ended"))
    assert run(reuse_tasks.number)[1] == number
    assert sorted((tmp_path / "ended").read_text()) == sorted("mgsbcltwfGF")


def test_there_is_no_module_of_the_users(tmp_path):
    (before, loaded), number = run(reuse_tasks.own_modules_around, "abs", str(tmp_path))
    assert {*before} - {"__main__", "__mp_main__"} == {"reuse_tasks"} and len(loaded) == 0
    (_, loaded), again = run(reuse_tasks.own_modules_around, "dirty_modules", str(tmp_path))
    assert again == number and {"own_module", "own_package.inner", "own_space", "fractions"} <= {*loaded}
    (found, _), again = run(reuse_tasks.own_modules_around, "abs", str(tmp_path))
    assert found == before and again == number
    (found, has_made), _ = run(reuse_tasks.is_as_reuse_needs, loaded)
    assert found == [] and not has_made


def test_a_module_of_the_users_is_imported_anew(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for value in (1, 2):
        (tmp_path / "changing.py").write_text(f"value = {value}  # {'#' * value}")
        sys.modules.pop("changing", None)
        assert run(reuse_tasks.value_of, "changing")[0] == value
        number = run(reuse_tasks.number)[0]
    assert run(reuse_tasks.number)[1] == number


def test_functions_of_atexit_run_at_the_end_of_the_pool(tmp_path):
    _, number = run(reuse_tasks.dirty_atexit, str(tmp_path))
    assert (tmp_path / "ended").read_text() == "ab"
    assert run(reuse_tasks.number)[1] == number
    end_kept_interpreters()
    assert (tmp_path / "ended").read_text() == "ab"


def test_what_libraries_register_with_atexit_stays(tmp_path):
    registered, number = run(reuse_tasks.registered)
    assert "logging" in registered
    run(reuse_tasks.dirty_atexit, str(tmp_path))
    assert run(reuse_tasks.registered) == (registered, number)


def test_random_numbers_are_not_those_of_the_last_pool(tmp_path):
    run(reuse_tasks.dirty_random, str(tmp_path))
    assert run(reuse_tasks.draw)[0] != run(reuse_tasks.draw)[0]


def test_context_variables_have_no_value_of_the_last_pool(tmp_path):
    run(reuse_tasks.dirty_context, str(tmp_path))
    assert run(reuse_tasks.place)[0] == "new"


def test_the_environment_is_the_process_s(monkeypatch):
    _, number = run(abs, 1)
    monkeypatch.setenv("SET_BY_THE_PROGRAM", "yes")
    assert run(reuse_tasks.variable, "SET_BY_THE_PROGRAM") == ("yes", number)
    monkeypatch.delenv("SET_BY_THE_PROGRAM")
    assert run(reuse_tasks.variable, "SET_BY_THE_PROGRAM") == (None, number)


def test_arguments_and_path_are_the_program_s(monkeypatch):
    run(abs, 1)
    monkeypatch.setattr(sys, "argv", ["program", "--new"])
    monkeypatch.setattr(sys, "path", [*sys.path, "/nowhere"])
    argv, path = run(reuse_tasks.arguments)[0]
    assert argv == ["program", "--new"] and path[-1] == "/nowhere"


def test_initializer_and_preload_run_for_each_pool(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PRELOADED", str(tmp_path / "preloaded"))
    (tmp_path / "preloaded_here.py").write_text("import os\nopen(os.environ['PRELOADED'], 'a').write('p')\n")
    for n in (1, 2, 3):
        options = {"initializer": reuse_tasks.initialize, "initargs": (str(tmp_path / "initialized"),)}
        run(abs, 1, preload=["preloaded_here"], **options)
        assert (tmp_path / "initialized").read_text() == "i" * n
        assert (tmp_path / "preloaded").read_text() == "p" * n
    assert _native.n_kept() == 1


def test_logs_and_output_go_to_the_pool_that_is_open(caplog, capfd):
    numbers = set()
    for text in ("one", "two"):
        with caplog.at_level(logging.INFO):
            numbers.add(run(reuse_tasks.log_and_print, text, log=True, output="relay")[1])
        assert [record.getMessage() for record in caplog.records] == [text]
        assert capfd.readouterr().out == f"{text}\n"
        caplog.clear()
    numbers.add(run(reuse_tasks.log_and_print, "three")[1])
    assert not caplog.records and len(numbers) == 1
    assert capfd.readouterr() == ("three\n", "three\n")


# ---- packages ----


@needs_numpy
def test_packages_stay_loaded():
    pytest.importorskip("numpy")
    results = [run(reuse_tasks.use_numpy, 10) for _ in range(3)]
    assert len(set(results)) == 1
    assert run(reuse_tasks.numpy_is_loaded)[0]


@needs_numpy
def test_what_stays_in_packages():
    np = pytest.importorskip("numpy")
    run(reuse_tasks.set_numpy)
    np_random = float(np.random.RandomState(5).random())
    assert run(reuse_tasks.look_at_numpy)[0] == ("warn", np_random, "patch")


@needs_numpy
@pytest.mark.parametrize("module", PACKAGES)
def test_interpreters_with_these_packages_are_kept(module):
    pytest.importorskip(module)
    _, number = run(reuse_tasks.import_it, module)
    assert run(reuse_tasks.import_it, module)[1] == number


@needs_numpy
def test_the_next_pool_has_its_own_number_of_threads():
    pytest.importorskip("numpy")
    found = [run(tasks.own_blas, threads_per_worker=n) for n in (2, 3, 2)]
    assert [n for n, _ in found] == [[2], [3], [2]]
    assert len({number for _, number in found}) == 1


@needs_numpy
def test_an_interpreter_whose_copies_were_removed_ends():
    pytest.importorskip("numpy")
    _, number = run(reuse_tasks.remove_numpy)
    assert _native.n_kept() == 0
    assert run(reuse_tasks.use_numpy, 10)[1] != number


# ---- interpreters that end ----


@pytest.mark.parametrize("task", reuse_tasks.SPOILING, ids=lambda task: task.__name__.removeprefix("spoil_"))
def test_it_ends_if_it_cannot_be_cleaned(task):
    number = run_failing(task)
    assert _native.n_kept() == 0
    assert run(reuse_tasks.number)[1] != number


def test_it_ends_if_a_task_was_interrupted(tmp_path):
    with InterpreterPool(1, reuse=True) as pool:
        pool.apply_async(reuse_tasks.hold, (str(tmp_path / "runs"),))
        gates.wait_until((tmp_path / "runs").exists, "the task")
    pool.join(timeout=60)
    assert _native.n_kept() == 0


def test_it_ends_if_an_import_was_interrupted(tmp_path):
    (tmp_path / "waits.py").write_text("import reuse_tasks\nreuse_tasks.hold(__file__ + '.runs')")
    with InterpreterPool(1, reuse=True) as pool:
        pool.apply_async(reuse_tasks.wait_in_import, (str(tmp_path),))
        gates.wait_until((tmp_path / "waits.py.runs").exists, "the import")
    pool.join(timeout=60)
    assert _native.n_kept() == 0


def test_it_ends_if_the_time_of_a_task_was_up(tmp_path):
    with InterpreterPool(1, reuse=True) as pool:
        with pytest.raises(TaskTimeout):
            pool.apply(reuse_tasks.hold, (str(tmp_path / "runs"),), timeout_s=0.05)
        pool.apply(abs, (1,))
    pool.join(timeout=60)
    assert _native.n_kept() == 0


def test_it_ends_if_its_initializer_failed():
    pool = InterpreterPool(1, tasks.raise_named, ("ValueError",), reuse=True)
    gates.wait_until(lambda: pool._engine._cause is not None, "the failure")
    pool.terminate()
    pool.join(timeout=60)
    assert _native.n_kept() == 0


def test_it_ends_if_its_worker_was_lost():
    with InterpreterPool(1, reuse=True) as pool:
        with pytest.raises((WorkerLost, SystemExit)):
            pool.apply(tasks.raise_named, ("SystemExit",))
        number = pool.apply(reuse_tasks.number)
    pool.join(timeout=60)
    assert run(reuse_tasks.number)[1] in (number, number + 1)


def test_workers_with_a_limited_number_of_tasks_end():
    _, number = run(abs, 1)
    _, other = run(abs, 1, maxtasksperchild=10)
    assert other != number and _native.n_kept() == 1


def test_interpreters_with_steps_end():
    steps.set_step("tasks", "square", 2)
    try:
        run(abs, 1)
        assert _native.n_kept() == 0
    finally:
        steps.drop_step("tasks", "square")


# ---- programs ----


def test_ctrl_c_while_kept_interpreters_end():
    completed = fresh.run([ISOLATED / "reusing.py", "ending_interrupted"])
    assert completed.returncode == 0 and completed.out.split() == ["ok"], completed
    assert completed.err.strip().endswith(("KeyboardInterrupt", "KeyboardInterrupt:")), completed


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    fresh.check(fresh.run([ISOLATED / "reusing.py", name]), "ok")


@pytest.mark.skipif("ASAN_OPTIONS" in os.environ, reason="freed memory stays allocated for a while")
@pytest.mark.parametrize("name", ["plain", pytest.param("numpy", marks=needs_numpy)])
def test_nothing_accumulates(name):
    if name == "numpy":
        pytest.importorskip("numpy")
    fresh.check(fresh.run([ISOLATED / "reusing.py", "many", name], timeout=110), "ok")
