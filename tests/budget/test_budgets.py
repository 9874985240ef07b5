"""Thread budgets at work: what libraries may use in workers of each kind, during tasks and after them."""

import importlib.util
import itertools
import os
import signal
import sys
import threading
import types

import fresh
import gates
import machines
import pytest
import tasks

import pool_party
from pool_party import ComposableExecutor, ComposablePool, WorkerBudget, WorkerLost, _native
from pool_party._budget import libraries, numba_threads, plan, policies, topology, user_limits
from pool_party._workers.interp.extensions import IS_SUPPORTED

N_CPUS = 4

pytestmark = pytest.mark.usefixtures("no_shared_pools")


@pytest.fixture
def four_cpus(monkeypatch):
    """Make pools count on four CPUs, whatever this machine has."""
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", str(N_CPUS))


@pytest.fixture
def gate(tmp_path):
    with gates.Gate(tmp_path / "gate") as opened:
        yield opened


def at_once(pool, gate, n):
    """Run n tasks at the same time. Return the limit that each sees when it begins, and when all have begun."""
    results = [pool.apply_async(tasks.limit_at_gate, (gate.path,)) for _ in range(n)]
    gate.wait_arrived(n)
    gate.release(n)
    return [result.get(60) for result in results]


# ---- static ----------------------------------------------------------------


@pytest.mark.parametrize(("n_workers", "expected"), [(1, 4), (2, 2), (3, 1), (4, 1), (8, 1)])
def test_each_worker_has_its_part(kind, four_cpus, gate, n_workers, expected):
    with ComposablePool(n_workers, kind=kind, policy="static") as pool:
        seen = at_once(pool, gate, n_workers)
        if kind == "process":  # left-over threads go to the first workers
            assert min(after for _, after in seen) == expected
        else:
            assert {after for _, after in seen} == {expected}


def test_the_initializer_keeps_to_the_budget(kind, four_cpus):
    with ComposablePool(2, kind=kind, policy="static", initializer=tasks.remember_limit) as pool:
        assert pool.apply(tasks.remembered_limit) == 2


def test_threads_per_worker(kind, four_cpus):
    with ComposablePool(2, kind=kind, threads_per_worker=3) as pool:
        assert pool.apply(tasks.limit_now) == 3
        assert pool.statistics().n_threads == (3, 3)


def test_oversubscription(kind, four_cpus):
    with ComposablePool(2, kind=kind, policy="static", oversubscription=2.0) as pool:
        assert pool.apply(tasks.limit_now) == 4


def test_hands_off(kind, four_cpus):
    with ComposablePool(2, kind=kind, policy=None) as pool:
        assert pool.apply(tasks.limit_now) == 0
        assert pool.statistics().policy is None and pool.statistics().n_threads == ()


def test_replaced_workers_have_the_same(kind, four_cpus):
    with ComposablePool(1, kind=kind, threads_per_worker=3, maxtasksperchild=1) as pool:
        assert pool.map(tasks.limit_now, range(4), 1) == [3] * 4


def test_executor_has_budgets(kind, four_cpus):
    with ComposableExecutor(2, kind=kind, policy="static") as executor:
        assert executor.submit(tasks.limit_now).result(60) == 2


def test_a_worker_process_is_told_in_its_environment_too(four_cpus, start_method, context):
    with ComposablePool(2, kind="process", policy="static", context=context) as pool:
        environment, _, _ = pool.apply(tasks.surroundings)
        assert set(environment.values()) == {"2"}


def test_a_smaller_number_of_the_users_own_stays(four_cpus, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with ComposablePool(2, kind="process", context="spawn") as pool:
        environment, _, _ = pool.apply(tasks.surroundings)
        assert environment["OMP_NUM_THREADS"] == "1"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU cannot be divided")
def test_workers_are_kept_on_their_own_cpus(kind, gate):
    all_cpus = os.sched_getaffinity(0)
    with ComposablePool(2, kind=kind, policy="static", affinity=True) as pool:
        results = [pool.apply_async(tasks.mask_at_gate, (gate.path,)) for _ in range(2)]
        gate.wait_arrived(2)
        gate.release(2)
        one, other = (result.get(60) for result in results)
        assert one | other <= all_cpus and not one & other
    with ComposablePool(2, kind=kind, affinity=False) as pool:
        assert pool.apply(tasks.surroundings)[1] == all_cpus
    with ComposablePool(len(all_cpus), kind=kind) as pool:
        assert pool.apply(tasks.surroundings)[1] == all_cpus
    assert os.sched_getaffinity(0) == all_cpus


@pytest.fixture
def quota_of_three(monkeypatch, tmp_path):
    """A control group with time for three of five CPUs; the sixth is offline."""
    root = machines.write_machine(tmp_path, 1, 6, 1, offline=(5,))
    group = {"cgroup.controllers": "cpu", "cpu.max": "300000 100000"}
    mounts = machines.mountinfo(("cgroup2", "/", "/sys/fs/cgroup", "rw"))
    machines.write(tmp_path, {"proc/self/cgroup": "0::/", "proc/self/mountinfo": mounts})
    machines.write(tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in group.items()})
    machine = topology.read(root, range(5))
    assert machine.quota == 3.0 and len(machine.allowed) == 5
    monkeypatch.setattr(plan, "current", lambda: machine)
    monkeypatch.setattr(plan, "cpu_count", lambda: machine.n_cpus)


def test_a_quota_is_divided(kind, quota_of_three, gate):
    with ComposablePool(2, kind=kind, policy="static") as pool:
        assert sum(share.n_threads for share in pool._engine._workers.enforcer.plan.own) == 3
        assert sum(after for _, after in at_once(pool, gate, 2)) <= 3


def test_a_quota_is_lent(kind, quota_of_three, gate):
    with ComposablePool(2, kind=kind, policy="dynamic") as pool:
        pool.map(tasks.square, range(10), 1)
        assert pool.apply(tasks.limit_reaches, (gate.path, 3)) == 3


# ---- dynamic ---------------------------------------------------------------


def test_a_lone_task_has_all_cpus(kind, four_cpus, gate):
    with ComposablePool(2, kind=kind, policy="dynamic") as pool:
        pool.map(tasks.square, range(10), 1)
        assert pool.apply_async(tasks.limit_reaches, (gate.path, N_CPUS)).get(60) == N_CPUS
        gates.wait_until(lambda: pool.statistics().n_lends > 0, "a lend is counted")


def test_lent_cpus_are_reclaimed_in_mid_task(kind, four_cpus, gate, tmp_path):
    with gates.Gate(tmp_path / "other") as other, ComposablePool(2, kind=kind, policy="dynamic") as pool:
        pool.map(tasks.square, range(10), 1)
        held = pool.apply_async(tasks.limit_then_reaches, (gate.path, N_CPUS, 2))
        gate.wait_arrived(1)  # the task has seen all CPUs
        second = pool.apply_async(tasks.pass_gate, (other.path, "second"))
        other.wait_arrived(1)
        assert held.get(60) == 2
        other.release(1)
        assert second.get(60) == "second"
        assert pool.statistics().n_reclaims > 0


def test_the_balancer_sleeps_until_a_change_lasts(gate):
    """It wakes for a worker that stays active, and for a request, but not for workers that wake and fall asleep."""
    with ComposablePool(2, kind="thread") as pool:
        channel = pool._engine._channel
        channel.watch()
        gates.wait_until(lambda: channel.awake() == (False, False), "both are idle")

        def sleep(period_s):
            known = (False, False), N_CPUS, _native.cpus_left(N_CPUS)
            thread = threading.Thread(
                target=channel.wait_change, args=(channel.wait_pulse(2**32 - 1), *known, period_s)
            )
            thread.start()
            return thread

        sleeper = sleep(period_s=1e6)
        assert pool.map(abs, range(-20, 0), 1) == list(range(20, 0, -1))
        assert sleeper.is_alive()
        channel.pulse()
        sleeper.join(60)
        assert not sleeper.is_alive()

        sleeper = sleep(period_s=0.001)
        held = pool.apply_async(tasks.pass_gate, (gate.path,))
        gate.wait_arrived(1)
        sleeper.join(60)
        assert not sleeper.is_alive()
        gate.release(1)
        held.get(60)


def test_nothing_is_lent_while_all_work(kind, four_cpus, gate):
    with ComposablePool(2, kind=kind, policy="dynamic") as pool:
        pool.map(tasks.square, range(10), 1)
        assert {after for _, after in at_once(pool, gate, 2)} <= {2, 4}  # 4 before the second task had begun


# ---- custom policies -------------------------------------------------


class Favourite:
    """Gives the first worker all threads that the others do not need."""

    name = "favourite"

    def shares(self, state):
        n = len(state.own)
        return [WorkerBudget(3, state.cpus)] + [WorkerBudget(1, state.cpus)] * (n - 1)


class Broken:
    def shares(self, state):
        if all(state.awake):
            return state.own
        raise RuntimeError("no idea")


def test_a_policy_of_ones_own(four_cpus):
    with ComposablePool(2, kind="process", policy=Favourite()) as pool:
        seen = {pool.apply(tasks.limit_now) for _ in range(20)}
        assert seen <= {3, 1}
        assert pool.statistics().policy == "favourite" and pool.statistics().n_threads == (3, 1)


class Late:
    """Returns nonsense for the first few calls."""

    nonsense = (
        *(None, [2, 2], ["much", "little"], WorkerBudget(2, (0,))),
        *([WorkerBudget(1.5, (0,))] * 2, [WorkerBudget(-1, (0,))] * 2),
    )

    def __init__(self):
        self.answers = None

    def shares(self, state):
        if self.answers is None:  # called when the pool is made
            self.answers = iter(self.nonsense)
            return state.own
        answer = next(self.answers, StopIteration)
        return [WorkerBudget(N_CPUS, state.cpus)] * len(state.own) if answer is StopIteration else answer


@pytest.mark.parametrize("nonsense", Late.nonsense)
def test_a_policy_that_talks_nonsense_is_refused(nonsense):
    class Policy:
        def shares(self, state):
            return nonsense

    with pytest.raises((TypeError, ValueError), match="policy"):
        ComposablePool(2, kind="thread", policy=Policy())


def test_a_policy_that_comes_to_its_senses_is_followed(kind, four_cpus, caplog):
    with ComposablePool(2, kind=kind, policy=Late()) as pool:
        gates.wait_until(lambda: pool.apply(tasks.limit_now) == N_CPUS, "the policy is followed")
        gates.wait_until(lambda: set(pool.statistics().n_threads) == {N_CPUS}, "for each worker")
    assert caplog.text.count("the policy failed") == 1


@pytest.mark.parametrize("base", ["Static", "Dynamic"])
def test_a_policy_made_from_a_built_in_one_is_asked(four_cpus, base):
    class Policy(getattr(policies, base)):
        def shares(self, state):
            return [WorkerBudget(3, state.cpus)] * len(state.own)

    with ComposablePool(2, kind="thread", policy=Policy()) as pool:
        assert pool.apply(tasks.limit_now) == 3


def test_a_policy_that_fails_does_no_harm(kind, four_cpus, caplog):
    with ComposablePool(2, kind=kind, policy=Broken()) as pool:
        for _ in range(5):
            assert pool.apply(tasks.limit_now) == 2
        gates.wait_until(lambda: "the policy failed" in caplog.text, "the failure is logged")


class Exiting:
    """Exits the balancer's thread, once the pool is open."""

    def __init__(self):
        self.n_asked = 0

    def shares(self, state):
        self.n_asked += 1
        if self.n_asked == 2:
            raise SystemExit
        return [WorkerBudget(1 if self.n_asked == 1 else 3, state.cpus)] * len(state.own)


def test_a_policy_that_exits_is_asked_again(kind, four_cpus, caplog):
    with ComposablePool(2, kind=kind, policy=Exiting()) as pool:
        gates.wait_until(lambda: pool.apply(tasks.limit_now) == 3, "the policy is followed")
    assert caplog.text.count("the policy failed") == 1


# ---- several pools ---------------------------------------------------------


def test_a_pool_in_a_worker_shares_its_grant(kind, four_cpus):
    with ComposablePool(2, kind=kind, policy="static") as pool:
        n_workers, n_threads = pool.apply(tasks.nested_pool, ("thread",))
        assert n_workers == 2 and n_threads == (1, 1)


def test_pools_in_one_process_agree_on_the_smaller_budget(four_cpus, gate, tmp_path):
    with (
        gates.Gate(tmp_path / "other") as other_gate,
        ComposablePool(1, kind="thread", threads_per_worker=3) as one,
        ComposablePool(1, kind="thread", threads_per_worker=2) as other,
    ):
        held = one.apply_async(tasks.limit_then_reaches, (gate.path, 3, 2))
        gate.wait_arrived(1)  # the task has seen its own budget
        second = other.apply_async(tasks.limit_at_gate, (other_gate.path,))
        other_gate.wait_arrived(1)
        assert held.get(60) == 2
        other_gate.release(1)
        assert second.get(60)[0] == 2


@pytest.mark.parametrize("other_kind", ["process", "thread", "interp"])
def test_pools_that_are_open_at_once_share_the_machine(kind, other_kind, four_cpus, gate, tmp_path):
    """Two workers with two CPUs each get one CPU each while another pool's two workers are active."""
    with (
        gates.Gate(tmp_path / "other") as other_gate,
        ComposablePool(2, kind=kind) as one,
        ComposablePool(2, kind=other_kind) as other,
    ):
        held = [pool.apply_async(tasks.pass_gate, (at.path,)) for pool, at in [(one, gate), (other, other_gate)] * 2]
        gate.wait_arrived(2)
        other_gate.wait_arrived(2)
        gates.wait_until(lambda: one.statistics().n_threads == other.statistics().n_threads == (1, 1), "they share")
        other_gate.release(2)
        gates.wait_until(lambda: one.statistics().n_threads == (2, 2), "it has all CPUs again")
        gate.release(2)
        for result in held:
            result.get(60)


@pytest.mark.parametrize("n_cpus", [8, 3])
def test_another_pools_number_of_cpus_does_not_count(four_cpus, gate, n_cpus):
    with (
        ComposablePool(1, kind="thread", policy="dynamic") as one,
        ComposablePool(1, kind="thread", oversubscription=n_cpus / N_CPUS),
    ):
        assert one.apply(tasks.limit_reaches, (gate.path, N_CPUS)) == N_CPUS


def test_a_pool_in_a_worker_process_lends_all_of_its_grant(four_cpus, gate):
    with ComposablePool(1, kind="process", context="spawn") as pool:  # a fork server may have a different environment
        assert pool.apply(tasks.nested_limit, (gate.path, N_CPUS)) == N_CPUS


# ---- real libraries --------------------------------------------------------


@pytest.mark.parametrize(("kind", "n_threads"), [("thread", 3), ("thread", 1), ("process", 1)])
def test_openblas_is_told(kind, n_threads):
    tasks.openblas_count()  # import NumPy here
    with ComposablePool(2, kind=kind, threads_per_worker=n_threads) as pool:
        for _ in range(3):
            counts = pool.apply(tasks.openblas_count)
            assert counts and set(counts) == {n_threads}


RESTORING = fresh.TESTS / "isolated" / "restoring.py"


@pytest.mark.parametrize("kind", ["thread", "interp"])
@pytest.mark.parametrize("how", ["close_and_join", "leave_block", "forget", "shut_down", "break_initializer"])
def test_all_is_as_before_however_a_pool_ends(how, kind):
    fresh.check(fresh.run([RESTORING, "ends", how, kind]))


def test_all_is_as_before_if_a_pool_cannot_be_made():
    fresh.check(fresh.run([RESTORING, "ends", "fail_to_start", "thread"]))


@pytest.mark.parametrize("what", ["settings_of_ones_own", "numba_elsewhere"])
def test_what_is_the_users_own_stays(what):
    fresh.check(fresh.run([RESTORING, what]))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one CPU all threads run on the same")
@pytest.mark.parametrize("what", ["masks_of_others", "threads_of_libraries"])
def test_other_threads_may_run_where_they_could(what):
    fresh.check(fresh.run([RESTORING, what]))


def test_a_count_may_be_set_as_a_pool_ends(kind):
    """Another thread may have begun to report the count before the pool ended."""
    with ComposablePool(2, kind=kind) as pool:
        pool.apply(tasks.square, (1,))
        listeners = tuple(user_limits._listeners)
    pool.join()
    assert listeners
    for listener in listeners:
        listener()


BOUNDS = fresh.TESTS / "isolated" / "bounds.py"


# Budgets that stay take fewer ways than budgets that change.
LIMITED = pytest.mark.parametrize(
    ("what", "policy"),
    [
        pytest.param(what, policy, marks=pytest.mark.slow if policy == "static" and what != "environment" else ())
        for what in ("environment", "orders", "block_in_parent", "limiters")
        for policy in ("static", "dynamic")
    ],
)


@LIMITED
def test_no_task_gets_more_than_the_user_has_set(what, kind, policy):
    if kind == "interp" and not IS_SUPPORTED:
        pytest.skip("needs CPython 3.14 with a GIL")
    fresh.check(fresh.run([BOUNDS, what, kind, policy]))


@pytest.mark.parametrize("policy", ["static", "dynamic"])
@pytest.mark.parametrize("kind", ["thread", "process"])
@pytest.mark.parametrize("what", ["initializer", "block_in_task", "blocks_of_two_tasks"])
def test_what_a_task_sets_holds_for_itself(what, kind, policy):
    fresh.check(fresh.run([BOUNDS, what, kind, policy]))


@pytest.mark.parametrize(
    ("what", "n_examples"),
    [
        ("thread", 6),
        ("process", 2),
        ("interp", 2),
        *(
            pytest.param(what, n_examples, marks=pytest.mark.slow)
            for what, n_examples in [("thread", 12), ("process", 4), ("forkserver", 1), ("spawn", 1)]
        ),
    ],
)
def test_limits_in_random_orders(what, n_examples):
    if what == "interp" and not IS_SUPPORTED:
        pytest.skip("needs CPython 3.14 with a GIL")
    fresh.check(fresh.run([fresh.TESTS / "isolated" / "limits_machine.py", what, n_examples]))


@pytest.mark.parametrize("more", [(), pytest.param(("kmeans",), marks=pytest.mark.slow)], ids=["numpy", "scikit-learn"])
def test_a_tasks_limits_end_with_it(kind, more):
    if kind == "interp" and not IS_SUPPORTED:
        pytest.skip("needs CPython 3.14 with a GIL")
    if more:
        pytest.importorskip("sklearn")
    fresh.check(fresh.run([fresh.TESTS / "isolated" / "task_limits.py", kind, 1, 0, *more], timeout=110))


PACKAGE = """
_n = 8

def get_num_threads():
    return _n

def set_num_threads(n):
    global _n
    _n = n
"""

USES_PACKAGE = """
import sys
from pool_party import ComposablePool

def count():
    import numexpr
    return numexpr.get_num_threads()

def set_count(n):
    import numexpr
    numexpr.set_num_threads(n)

if __name__ == "__main__":
    kind = sys.argv[1]
    with ComposablePool(1, kind=kind, threads_per_worker=3, oversubscription=8.0) as pool:
        seen = [pool.apply(count), pool.apply(count)]
    limits = {"threads_per_worker": 3, "oversubscription": 8.0}
    with ComposablePool(1, kind=kind, initializer=set_count, initargs=(2,), **limits) as pool:
        seen.append(pool.apply(count))
    pool.join()
    set_count(8)
    with ComposablePool(1, kind=kind, threads_per_worker=1) as pool:
        seen.append(pool.apply(count))
    pool.join()
    print(*seen, count())
    set_count(2)
    with ComposablePool(1, kind=kind, threads_per_worker=3, oversubscription=8.0) as pool:
        print(pool.apply(count) if kind == "thread" else 2)
    pool.join()
    print(count())
"""


def test_a_package_with_threads_of_its_own_keeps_to_the_budget(kind, tmp_path, monkeypatch):
    """The program's count limits workers that are threads, and is back after the pool."""
    (tmp_path / "numexpr.py").write_text(PACKAGE)
    (tmp_path / "program.py").write_text(USES_PACKAGE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))))
    fresh.check(fresh.run([tmp_path / "program.py", kind]), "3 3 2 1 8 2 2")


USES_JOBLIB = """
import joblib
from pool_party import ComposablePool

if __name__ == "__main__":
    before = joblib.cpu_count()
    with ComposablePool(1, kind="thread", threads_per_worker=1) as pool:
        print(pool.apply(joblib.cpu_count), joblib.cpu_count() == before)
"""


def test_joblib_counts_a_workers_threads():
    """Otherwise LightGBM would start a thread for each CPU in each worker."""
    pytest.importorskip("joblib")
    fresh.check(fresh.run(["-c", USES_JOBLIB]), "1 True")


WORK = fresh.TESTS / "isolated" / "policies_at_work.py"


def run_work(what, kind, *more):
    if "interp" in (kind, *more) and not IS_SUPPORTED:
        pytest.skip("needs CPython 3.14 with a GIL")
    fresh.check(fresh.run([WORK, what, kind, *more], timeout=110))


@pytest.mark.slow
def test_results_are_right_with_more_threads_than_cpus(kind):
    run_work("numerics", kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other"), [*itertools.combinations_with_replacement(("thread", "process", "interp"), 2)]
)
def test_two_pools_of_any_two_policies(one, other):
    run_work("pairs", one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        *itertools.product(("thread", "interp"), ("static", "dynamic")),
        *(("process", policy) for policy in policies.NAMES),
    ],
)
def test_gradient_boosting_keeps_to_its_budget(kind, policy):
    if importlib.util.find_spec("sklearn") is None:
        pytest.skip("needs scikit-learn")
    run_work("boosting", kind, policy)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_what_a_worker_was_told_is_not_the_users(kind):
    fresh.check(fresh.run([BOUNDS, "nested_environment", kind, "dynamic"]))


@pytest.mark.parametrize("policy", ["static", "dynamic"])
def test_a_library_that_a_task_loads_is_limited_at_once(kind, policy):
    if kind == "interp" and not IS_SUPPORTED:
        pytest.skip("needs CPython 3.14 with a GIL")
    fresh.check(fresh.run([BOUNDS, "loaded_by_a_task", kind, policy]))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one CPU all threads run on the same")
@pytest.mark.parametrize("what", ["after_fork", "own_threads"])
def test_masks_of_threads(what):
    fresh.check(fresh.run([BOUNDS, what, "thread", "static"]))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one CPU there is nothing to lend")
@pytest.mark.parametrize("policy", ["static", "dynamic"])
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_numba(kind, policy):
    if importlib.util.find_spec("numba") is None:
        pytest.skip("there is no Numba here")
    fresh.check(fresh.run([BOUNDS, "numba", kind, policy]))


def test_numba_is_told_of_a_budget_that_changes_meanwhile(monkeypatch, tmp_path):
    """Another pool takes one CPU of two and returns it while a worker finds out what to tell Numba, or tells it."""
    pytest.importorskip("numpy").linalg.inv([[1.0]])
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", "2")
    monkeypatch.setitem(sys.modules, "numba", types.ModuleType("numba"))
    worker, told, when_asked, when_told = None, [], [], []

    def take_one():
        other.apply_async(tasks.pass_gate, (gate.path,))
        gate.wait_arrived()

    def give_back():
        gate.release()
        gates.wait_until(lambda: _native.own_threads() == 2, "it has both CPUs")

    def n_thread_libraries(ask=_native.n_thread_libraries):
        if when_asked and threading.get_ident() == worker:
            when_asked.pop()()
        return ask()

    def keep_to(n_threads):
        if threading.get_ident() == worker:
            told.append(n_threads)
            if n_threads == 1 and when_told:
                when_told.pop()()

    monkeypatch.setattr(_native, "n_thread_libraries", n_thread_libraries)
    monkeypatch.setattr(numba_threads, "keep_to", keep_to)
    with (
        gates.Gate(tmp_path / "gate") as gate,
        ComposablePool(1, kind="thread", policy="dynamic") as pool,
        ComposablePool(1, kind="thread", policy="dynamic") as other,
    ):
        worker = pool.apply(threading.get_ident)
        gates.wait_until(lambda: pool.apply(_native.own_threads) == 2, "it has both CPUs")
        pool.apply(abs, (-1,))
        take_one()
        when_told.append(give_back)
        pool.apply(abs, (-1,))
        assert told[-1] == 1
        when_asked.append(take_one)
        when_told.append(give_back)
        pool.apply(abs, (-1,))
        assert told[-1] == 1
        assert when_asked == when_told == []
        pool.apply(abs, (-1,))
        assert told[-1] == 2


def test_a_failing_look_at_libraries_does_no_harm(four_cpus, monkeypatch, caplog):
    def fail(**options):
        raise OSError("no look")

    with ComposablePool(1, kind="interp", maxtasksperchild=1) as pool:
        monkeypatch.setattr("pool_party._budget.limiter.refresh", fail)
        pool._engine._workers.enforcer._seen_loads = -1
        assert pool.map(tasks.square, range(3), 1) == [0, 1, 4]
    assert "no look" in caplog.text


def test_a_library_that_a_task_loads_is_limited_before_the_next():
    completed = fresh.run([fresh.TESTS / "isolated" / "loading.py"])
    fresh.check(completed, "1 1")


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_openblas_starts_no_threads_that_a_worker_process_does_not_need(method, monkeypatch):
    """Each would spin for 51 ms as it starts."""
    pytest.importorskip("numpy")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    fresh.check(fresh.run([fresh.TESTS / "isolated" / "threadless.py", method]), "")


def test_nothing_differs_after_the_last_pool(kind):
    tasks.openblas_count()
    found = [library for library in libraries.find() if library.scope == "process"]

    def here():
        return (
            [_native.call_getter(library.getter) for library in found],
            dict(os.environ),
            os.sched_getaffinity(0),
            _native.process_limit(),
        )

    before = here()
    for policy in ("static", "dynamic"):
        with ComposablePool(2, kind=kind, policy=policy, threads_per_worker=5) as pool:
            pool.map(tasks.square, range(20), 1)
            pool.close()
            pool.join()
        assert here() == before


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        *(pytest.param(kind, "static", marks=pytest.mark.slow) for kind in ("thread", "process")),
        ("thread", "dynamic"),
        *(("process", policy) for policy in ("dynamic", "counting", "exclusive")),
    ],
)
def test_results_are_those_of_one_thread(kind, policy):
    with ComposablePool(3, kind=kind, policy=policy) as pool:
        wrong = [error for error in pool.map(tasks.linear_algebra, range(12), 1) if error > 1e-8]
    assert not wrong


# ---- gates -----------------------------------------------------------------


@pytest.mark.parametrize("policy", ["counting", "exclusive"])
def test_regions_pass_the_gate(policy):
    with ComposablePool(2, kind="process", policy=policy) as pool:
        pool.map(tasks.linear_algebra, range(4), 1)
        gate = pool._engine._workers.enforcer.gate
        assert gate.n_acquired > 0 and gate.n_free == gate.n_tokens
        assert pool.statistics().waited_s >= 0.0
        assert set(pool.statistics().n_threads) == {pool_party.cpu_count()}


def test_a_killed_workers_tokens_come_back(gate):
    with ComposablePool(2, kind="process", policy="exclusive") as pool:
        held = pool.apply_async(tasks.hold_tokens, (gate.path,))
        (pid,) = gate.wait_arrived(1)
        tokens = pool._engine._workers.enforcer.gate
        assert tokens.n_free == 0
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerLost):
            held.get(60)
        gates.wait_until(lambda: tokens.n_free == tokens.n_tokens, "they came back")  # after the loss was reported


@pytest.mark.parametrize(
    ("where", "policy", "scope"),
    [
        ("threads", "exclusive", "pool"),
        ("threads", "counting", "machine"),
        ("thread", "exclusive", "pool"),
        ("process", "exclusive", "machine"),
    ],
)
def test_a_task_of_a_gated_pool_may_use_threads_and_pools(where, policy, scope):
    """Regions of its threads and nested pools take turns, also if a library without a callback is loaded."""
    pytest.importorskip("sklearn")
    program = fresh.TESTS / "isolated" / "gated_tasks.py"
    fresh.check(fresh.run([program, "run", where, policy, scope], timeout=110), "0 True")


@pytest.mark.parametrize("context", ["fork", "forkserver"])
@pytest.mark.parametrize("policy", ["exclusive", "counting"])
def test_tasks_of_gated_pools_may_wait_for_each_other(policy, context, monkeypatch):
    """Also after one has loaded a library whose regions cannot pass the gate: it has the worker's part of the CPUs."""
    pytest.importorskip("sklearn")
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", "4")
    program = fresh.TESTS / "isolated" / "meeting.py"
    fresh.check(fresh.run([program, "run", policy, context], timeout=110), "True {2}")


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "may_kill"), [(23, "no"), (44, "no"), (302, "yes")])
def test_random_programs_come_to_their_end(seed, may_kill):
    """Workers are stopped and killed meanwhile."""
    pytest.importorskip("sklearn")
    program = fresh.TESTS / "isolated" / "gated_random.py"
    completed = fresh.run([program, "run", seed, "pool", may_kill], timeout=115)
    assert completed.returncode == 0 and completed.out.split() == ["ok"], completed


def test_unrelated_programs_share_the_machine():
    programs = [
        fresh.start([fresh.TESTS / "isolated" / "machine_wide.py", "run", how]) for how in ("counting", "exclusive")
    ]
    for program in programs:
        completed = fresh.finish(program)
        assert completed.returncode == 0 and completed.out.startswith("True True"), completed
