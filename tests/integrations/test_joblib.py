"""The backend for joblib, in every kind. joblib's own tests run against it by tests/library_suites/run.py."""

import multiprocessing
import os
import pickle
import threading
import warnings

import fresh
import gates
import joblib
import joblib_tasks
import pytest
import tasks
from joblib import Parallel, delayed, parallel_config

import pool_party
from pool_party import WorkerLost
from pool_party._integrations import idle_pools
from pool_party._workers.interp.extensions import IS_SUPPORTED

ROUNDS = range(20)
LONG_S = 100.0  # a limit for what fails: on a busy machine workers need long to import joblib and NumPy


@pytest.fixture(autouse=True, scope="module")
def _registered():
    pool_party.register_joblib_backend()
    yield
    idle_pools.end_all()


def wait_for_result(call, expected):
    """Call again until the result is the expected one: budgets are smaller while another test's pool still ends."""
    gates.wait_until(lambda: call() == expected, f"{call()} becomes {expected}", timeout=LONG_S)


@pytest.fixture
def ours(kind):
    """Select the backend for a test, with options."""
    return lambda **options: parallel_config(backend="pool_party", kind=kind, **options)


def idle_of(kind):
    return [idle.fed.pool for idle in list(idle_pools._idle) if idle.fed.pool.kind == kind]


# ---- results ----


@pytest.mark.parametrize("batch_size", ["auto", 1, 3])
def test_results_come_in_order(ours, batch_size):
    with ours():
        found = Parallel(n_jobs=2, batch_size=batch_size)(delayed(tasks.square)(n) for n in ROUNDS)
    assert found == [n * n for n in ROUNDS]


def test_closures_are_tasks(ours):
    offset = 3
    with ours():
        assert Parallel(n_jobs=2)(delayed(lambda n: n + offset)(n) for n in range(3)) == [3, 4, 5]


def test_generators(ours):
    with ours():
        ordered = Parallel(n_jobs=2, return_as="generator")(delayed(tasks.square)(n) for n in ROUNDS)
        unordered = Parallel(n_jobs=2, return_as="generator_unordered")(delayed(tasks.square)(n) for n in ROUNDS)
        # Both are under way in one block, for which joblib has one backend object.
        assert next(ordered) == 0
        assert sorted(unordered) == [n * n for n in ROUNDS]
        assert list(ordered) == [n * n for n in ROUNDS[1:]]


def test_a_generator_that_is_dropped_ends_its_tasks(ours, gate):
    with ours(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # joblib's: results were not used
        results = Parallel(n_jobs=2, return_as="generator", pre_dispatch="all")(
            delayed(tasks.pass_gate)(gate.path) for _ in range(8)
        )
        gate.wait_arrived(2, timeout=LONG_S)
        del results
        gate.close()
        assert Parallel(n_jobs=2)(delayed(tasks.square)(n) for n in range(3)) == [0, 1, 4]


def test_tasks_are_read_while_others_run(ours):
    """joblib submits them in the callbacks of earlier ones."""
    read = []

    def lazily():
        for n in ROUNDS:
            read.append(threading.get_ident())
            yield delayed(tasks.square)(n)

    with ours():
        assert Parallel(n_jobs=2, batch_size=1, pre_dispatch=2)(lazily()) == [n * n for n in ROUNDS]
    assert len(read) == len(ROUNDS)


# ---- failures ----


def test_an_error_comes_with_its_traceback(ours):
    with ours():
        with pytest.raises(ValueError, match="it is three") as caught:
            Parallel(n_jobs=2)(delayed(joblib_tasks.raise_late)(n) for n in ROUNDS)
        assert "in raise_late" in str(caught.value.__cause__)
        assert Parallel(n_jobs=2)(delayed(joblib_tasks.raise_late)(n) for n in range(3)) == [0, 1, 2]


def test_an_error_of_the_input(ours):
    def broken():
        for n in ROUNDS:
            if n == 10:
                raise LookupError("no more input")
            yield delayed(tasks.square)(n)

    with ours(), pytest.raises(LookupError, match="no more input"):
        Parallel(n_jobs=2, batch_size=1)(broken())


def test_a_with_block_survives_an_error(ours):
    with ours(), Parallel(n_jobs=2) as parallel:
        with pytest.raises(ValueError, match="it is three"):
            parallel(delayed(joblib_tasks.raise_late)(n) for n in ROUNDS)
        assert parallel(delayed(tasks.square)(n) for n in range(3)) == [0, 1, 4]
        assert parallel(delayed(tasks.square)(n) for n in range(3)) == [0, 1, 4]


def test_a_timeout(ours, gate):
    with ours(), pytest.raises(multiprocessing.TimeoutError):
        Parallel(n_jobs=2, timeout=0.05)(delayed(tasks.pass_gate)(gate.path) for _ in range(4))


def test_an_error_kills_the_tasks_of_other_processes(gate, other_gate):
    def call():
        with parallel_config(backend="pool_party"):
            tasks_of_two = [
                delayed(tasks.pass_gate)(gate.path),
                delayed(tasks.pass_gate_then_raise)(other_gate.path, "it is over"),
            ]
            return Parallel(n_jobs=2, batch_size=1)(tasks_of_two)

    running = gates.call_in_thread(call)
    (pid,) = gate.wait_arrived(1, timeout=LONG_S)
    other_gate.wait_arrived(1, timeout=LONG_S)
    other_gate.release()
    with pytest.raises(ValueError, match="it is over"):
        running.result(LONG_S)
    gates.wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the other process ends", timeout=LONG_S)


def test_one_bad_task_costs_its_own_result(ours):
    with ours(on_error="return"):
        found = Parallel(n_jobs=2, batch_size=3)(delayed(joblib_tasks.raise_late)(n) for n in range(7))
    assert found[:3] + found[4:] == [0, 1, 2, 4, 5, 6]
    assert isinstance(found[3], ValueError) and "in raise_late" in str(found[3].__cause__)


def test_one_bad_task_without_parallelism(ours):
    with ours(on_error="return"), Parallel(n_jobs=1) as parallel:
        found = parallel(delayed(joblib_tasks.raise_late)(n) for n in range(5))
    assert isinstance(found[3], ValueError)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_one_killed_task_costs_its_own_result(n_jobs):
    with parallel_config(backend="pool_party", on_error="return"):
        found = Parallel(n_jobs=n_jobs, batch_size=3)(delayed(joblib_tasks.die_if)(n, 3) for n in range(7))
    assert found[:3] + found[4:] == [0, 1, 2, 4, 5, 6]
    assert isinstance(found[3], WorkerLost) and found[3].exitcode == 3


@pytest.mark.parametrize("n_jobs", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_one_task_that_takes_too_long_costs_its_own_result(ours, n_jobs):
    with ours(on_error="return", task_timeout_s=1.0, preload=(__name__,)):  # an import in a task would take its time
        found = Parallel(n_jobs=n_jobs, batch_size=3)(delayed(joblib_tasks.spin_if)(n, 3) for n in range(7))
    assert found[:3] + found[4:] == [0, 1, 2, 4, 5, 6]
    assert isinstance(found[3], pool_party.TaskTimeout)


def test_a_task_that_takes_too_long_ends_a_call(ours):
    with ours(task_timeout_s=0.5):
        with pytest.raises(pool_party.TaskTimeout, match=r"more than 0\.5 s"):
            Parallel(n_jobs=2, batch_size=3)(delayed(joblib_tasks.spin_if)(n, 3) for n in range(7))
    with ours(task_timeout_s=300):
        assert Parallel(n_jobs=2)(delayed(joblib_tasks.spin_if)(n, -1) for n in range(7)) == list(range(7))


def test_a_killed_worker_ends_a_call(gate):
    with parallel_config(backend="pool_party"):
        with pytest.raises(WorkerLost):
            Parallel(n_jobs=2)(delayed(joblib_tasks.die_if)(n, 3) for n in ROUNDS)
        assert Parallel(n_jobs=2)(delayed(joblib_tasks.die_if)(n, -1) for n in range(3)) == [0, 1, 2]


def test_a_failing_initializer_is_no_result(ours):
    with ours(on_error="return", initializer=tasks.raise_error, initargs=(LookupError("not today"),)):
        with pytest.raises(pool_party.InitializerFailed, match="not today"):
            Parallel(n_jobs=2)(delayed(tasks.square)(n) for n in range(3))


# ---- pools ----


def test_pools_are_used_again(ours, kind):
    with ours(policy=None):
        Parallel(n_jobs=2)(delayed(tasks.square)(n) for n in range(3))
        *_, pool = idle_of(kind)
        Parallel(n_jobs=2)(delayed(tasks.square)(n) for n in range(3))
    assert idle_of(kind)[-1] is pool
    with ours(policy="static"):
        Parallel(n_jobs=2)(delayed(tasks.square)(n) for n in range(3))
    assert idle_of(kind)[-1] is not pool


def test_a_pool_has_one_user(ours, gate, monkeypatch):
    """A call that fails ends its pool, which another call's tasks must not notice."""
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", "2")  # then two pools stay open, so that the gate is not held for long

    def call(function, *args):
        with ours():
            return Parallel(n_jobs=2)(delayed(function)(*args, n) for n in range(4))

    with ours():
        generators = [Parallel(n_jobs=2, return_as="generator")(delayed(abs)(n) for n in range(4)) for _ in range(2)]
        assert list(map(list, generators)) == [[0, 1, 2, 3]] * 2
    running = gates.call_in_thread(call, tasks.pass_gate, gate.path)
    gate.wait_arrived(2, timeout=LONG_S)
    with pytest.raises(ValueError, match="it is three"):
        call(joblib_tasks.raise_late)
    gate.close()
    assert running.result(LONG_S) == [0, 1, 2, 3]


def test_calls_of_several_threads(ours):
    def call(start):
        with ours():
            return [Parallel(n_jobs=2)(delayed(tasks.square)(start + n) for n in range(5)) for _ in range(3)]

    calls = [gates.call_in_thread(call, start) for start in range(3)]
    for start, running in enumerate(calls):
        assert running.result(LONG_S) == [[(start + n) ** 2 for n in range(5)]] * 3


def test_idle_pools_end(ours, kind, monkeypatch):
    """One is kept for long, and another one only for a moment."""
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", "2")  # then there is room for both
    with ours(oversubscription=1.25):
        Parallel(n_jobs=2)(delayed(tasks.square)(n) for n in range(3))
        kept = idle_of(kind)[-1]
    with ours(idle_worker_timeout=0.01, oversubscription=1.5), Parallel(n_jobs=2) as parallel:
        parallel(delayed(tasks.square)(n) for n in range(3))
        pool = parallel._backend._pool.pool
    gates.wait_until(lambda: pool._state == "CLOSE", "the pool is closed", timeout=LONG_S)
    pool.join(timeout=LONG_S)
    assert kept._state == "RUN" and kept in idle_of(kind)


def test_no_more_pools_are_idle_than_the_machine_needs(monkeypatch):
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", "2")
    idle_pools.end_all("thread")
    for n in range(1, 6):
        with parallel_config(backend="pool_party", kind="thread", oversubscription=n):
            Parallel(n_jobs=2)(delayed(tasks.square)(n) for n in range(3))
        assert sum(pool._processes for pool in idle_of("thread")) == min(2 * n, 4)


# ---- what joblib asks ----


def test_flags(kind):
    backend = joblib.parallel.BACKENDS["pool_party"](kind=kind)
    assert backend.uses_threads == backend.supports_sharedmem == (kind == "thread")
    assert backend.supports_retrieve_callback and backend.supports_inner_max_num_threads
    assert backend.supports_timeout and backend.supports_return_generator
    copy = pickle.loads(pickle.dumps(backend))
    assert copy._describe() == backend._describe()


def test_numbers_of_jobs(monkeypatch):
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", "4")
    with parallel_config(backend="pool_party"):
        assert [joblib.effective_n_jobs(n) for n in (1, 3, 9, -1, -2, -9)] == [1, 3, 9, 4, 3, 1]
        with pytest.raises(ValueError, match="n_jobs == 0"):
            joblib.effective_n_jobs(0)
        assert Parallel()(delayed(os.getpid)() for _ in range(2)) == [os.getpid()] * 2


def test_unknown_options():
    with pytest.raises(TypeError, match="has no option 'colour'"):
        parallel_config(backend="pool_party", colour="red")
    with pytest.raises(ValueError, match="kind must be one of"):
        parallel_config(backend="pool_party", kind="fibre")
    with pytest.raises(ValueError, match="on_error must be one of 'raise', 'return'"):
        parallel_config(backend="pool_party", on_error="ignore")


def test_shared_memory_is_for_threads():
    found = []
    with parallel_config(backend="pool_party", kind="thread"):
        Parallel(n_jobs=2, require="sharedmem")(delayed(found.append)(n) for n in range(3))
    assert sorted(found) == [0, 1, 2]


def test_options_of_one_call(kind):
    parallel = Parallel(n_jobs=2, backend="pool_party", kind=kind, on_error="return")
    assert isinstance(parallel(delayed(joblib_tasks.raise_late)(n) for n in range(4))[3], ValueError)


# ---- budgets ----


def test_nested_calls_use_the_rest(ours, monkeypatch):
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", "4")
    expected = [(2, [(n + k) ** 2 for k in range(4)]) for n in range(3)]
    with ours(policy="static"):
        wait_for_result(lambda: Parallel(n_jobs=2)(delayed(joblib_tasks.nested)(n) for n in range(3)), expected)


def test_nested_calls_without_a_rest_are_sequential(ours, monkeypatch):
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", "2")
    with ours():
        found = Parallel(n_jobs=2)(delayed(joblib_tasks.nested)(n) for n in range(3))
    assert found == [(1, [(n + k) ** 2 for k in range(4)]) for n in range(3)]


def test_nested_calls_have_no_more_threads_than_cpus(ours, kind, monkeypatch):
    """Beside those of the nested calls, each worker has its own, which in a pool of threads is counted, too."""
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", "4")
    idle_pools.end_all()
    n_others, _ = joblib_tasks.count_threads(0) if kind == "thread" else (0, 0)  # of other tests' pools
    n_before = n_others + 2 if kind == "thread" else 0
    with ours(policy="static"):
        found = [
            sample
            for _ in range(3)
            for each in Parallel(n_jobs=2)(delayed(joblib_tasks.nested_threads)(n_before) for _ in range(4))
            for sample in each
        ]
    most = max(n for n, _ in found)
    assert most <= (n_others + 4 + 2 if kind == "thread" else 2), found


@pytest.mark.parametrize(("inner", "n_threads"), [(None, 2), (3, 3), pytest.param(1, 1, marks=pytest.mark.slow)])
def test_inner_limits(kind, monkeypatch, inner, n_threads):
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", "4")
    with parallel_config(backend="pool_party", kind=kind, policy="static", inner_max_num_threads=inner):
        wait_for_result(lambda: Parallel(n_jobs=2)(delayed(joblib_tasks.limits)(n) for n in range(3)), [n_threads] * 3)


# ---- arrays ----


def test_tasks_may_write_into_large_arrays(ours, kind):
    """joblib's own process backends pass read-only maps of files."""
    numpy = pytest.importorskip("numpy")
    if kind == "interp" and not IS_SUPPORTED:
        pytest.skip("needs CPython 3.14 with a GIL")
    array = numpy.ones(300_000)
    with ours():
        found = Parallel(n_jobs=2)(delayed(joblib_tasks.write_into)(array) for _ in range(3))
    assert found == [300_006.0] * 3
    assert array[0] == (7.0 if kind == "thread" else 1.0)


# ---- programs ----

NOT_IMPORTED = """
import sys

import pool_party

register = pool_party.register_joblib_backend
assert "joblib" not in sys.modules and "pool_party._integrations.joblib" not in sys.modules
sys.modules["joblib"] = None
try:
    register()
except ImportError as error:
    print(error)
"""


def test_joblib_is_imported_on_request():
    completed = fresh.check(fresh.run(["-c", NOT_IMPORTED], timeout=LONG_S))
    assert "needs joblib, which is not installed: pip install 'composable-pool[joblib]'" in completed.out


FORKING = """
import os
import sys

from joblib import Parallel, delayed, parallel_config

import pool_party


def call(kind):
    with parallel_config(backend="pool_party", kind=kind):
        assert Parallel(n_jobs=2)(delayed(abs)(-n) for n in range(5)) == [0, 1, 2, 3, 4]


if __name__ == "__main__":
    pool_party.register_joblib_backend()
    for kind in ("process", "thread", "interp"):
        call(kind)
    pid = os.fork()
    call("thread")
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    print("done")
"""


def test_forked_children_have_pools_of_their_own(tmp_path):
    """The parent's are idle when it forks, and are open when it ends."""
    (tmp_path / "program.py").write_text(FORKING)
    fresh.check(fresh.run([tmp_path / "program.py"], timeout=LONG_S), "done")


AS_DEFAULT = """
import sys

from joblib import Parallel, delayed, parallel

import pool_party

if __name__ == "__main__":
    pool_party.register_joblib_backend(make_default=True)
    with Parallel(n_jobs=2) as calls:
        assert calls(delayed(lambda n: n + 1)(n) for n in range(4)) == [1, 2, 3, 4]
        print(type(calls._backend).__name__)
"""


def test_it_may_be_the_default(tmp_path):
    (tmp_path / "program.py").write_text(AS_DEFAULT)
    fresh.check(fresh.run([tmp_path / "program.py"], timeout=LONG_S), "PoolPartyBackend")


# ---- scikit-learn ----

LEARNING = """
import sys

import numpy
from joblib import parallel_config
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict

import pool_party


def fit():
    X, y = make_classification(200, 8, random_state=0)
    search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2, n_jobs=2).fit(X, y)
    forest = RandomForestClassifier(10, random_state=0, n_jobs=2).fit(X, y)
    nested = GridSearchCV(RandomForestClassifier(4, random_state=0, n_jobs=2), {"max_depth": [2, 3]}, cv=2, n_jobs=2)
    boosted = HistGradientBoostingClassifier(max_iter=5, random_state=0)
    return [
        search.cv_results_["mean_test_score"],
        forest.predict_proba(X),
        nested.fit(X, y).cv_results_["mean_test_score"],
        cross_val_predict(boosted, X, y, cv=2, n_jobs=2, method="predict_proba"),
    ]


if __name__ == "__main__":
    pool_party.register_joblib_backend()
    with parallel_config(backend="loky"):
        expected = fit()
    with parallel_config(backend="pool_party", kind=sys.argv[1]):
        found = fit()
    for one, other in zip(expected, found, strict=True):
        numpy.testing.assert_allclose(one, other, rtol=1e-9)
    print("same")
"""


@pytest.mark.slow
@pytest.mark.hang_s(600)
def test_scikit_learn_finds_the_same(kind, tmp_path):
    pytest.importorskip("sklearn")
    if kind == "interp" and not IS_SUPPORTED:
        pytest.skip("needs CPython 3.14 with a GIL")
    (tmp_path / "program.py").write_text(LEARNING)
    completed = fresh.run([tmp_path / "program.py", kind], timeout=500, options=())
    assert completed.returncode == 0 and completed.out.split() == ["same"], completed


# ---- definitions of __main__ ----


@pytest.mark.parametrize(
    ("kind", "context"),
    [("process", "fork"), ("process", "forkserver"), ("process", "spawn"), ("interp", "-"), ("thread", "-")],
)
def test_tasks_have_the_values_of_the_time_of_the_call(kind, context):
    """A script needs no main guard, and is run once, as with loky."""
    program = fresh.TESTS / "isolated" / "joblib_values.py"
    fresh.check(fresh.run([program, kind, context], timeout=110), "the script runs once\nok")


def test_tasks_have_the_values_of_the_time_of_the_call_under_the_runner():
    program = fresh.TESTS / "isolated" / "joblib_values.py"
    fresh.check(fresh.run(["-m", "pool_party", program], timeout=110), "the script runs once\nok")
