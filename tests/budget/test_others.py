"""CPUs that other programs use are not lent: the estimate of their use, and its effect on pools of each kind.

Nothing here depends on what runs on the machine: the tests supply the readings.
"""

import contextlib
import itertools

import fresh
import gates
import pytest
import tasks

from pool_party import ComposablePool, WorkerBudget, _native

N_CPUS = 4
PERIOD_S = 0.005

pytestmark = pytest.mark.usefixtures("no_shared_pools")


def estimates(*readings, after=()):
    """The threads of others after each reading of (running, awake, lent), 5 ms apart. `after`: earlier readings."""
    rows = [(*reading, PERIOD_S * i) for i, reading in enumerate([*after, *readings])]
    return _native.estimate_others(*rows)[len(after) :]


IDLE = [(1, 1, 0)] * 3  # a lone task, before anything is lent
LENT = [*IDLE, *[(2, 1, 1)] * 20]  # then it computes with two threads


# ---- the estimate ----------------------------------------------------------


def test_nothing_is_known_before_three_readings():
    assert estimates(*IDLE) == [None, None, 0]


@pytest.mark.parametrize(("n_running", "expected"), [(1, 0), (2, 1), (5, 4)])
def test_before_lending_each_thread_but_the_workers_is_anothers(n_running, expected):
    assert estimates(*[(n_running, 1, 0)] * 3)[-1] == expected


def test_threads_that_were_lent_are_not_anothers():
    assert set(estimates(*[(2, 1, 1)] * 100, after=IDLE)) == {0}


@pytest.mark.parametrize("n_busy", [1, 2])
def test_another_program_is_noticed_at_the_second_reading(n_busy):
    assert estimates(*[(2 + n_busy, 1, 1)] * 3, after=LENT) == [0, n_busy, n_busy]


def test_a_moment_of_another_program_is_not():
    assert set(estimates((4, 1, 1), (2, 1, 1), (3, 1, 1), (1, 1, 1), after=LENT)) == {0}


def test_another_program_that_ends_is_noticed():
    busy = [*LENT, *[(3, 1, 1)] * 2, *[(2, 1, 0)] * 100]
    assert estimates(*[(1, 1, 0)] * 4, after=busy)[-1] == 0


def test_a_gap_between_two_tasks_of_another_program_is_not_its_end():
    after = [(2, 1, 0)] * 10
    assert estimates((1, 1, 0), (1, 1, 0), (2, 1, 0), (1, 1, 0), (1, 1, 0), (2, 1, 0), after=after) == [1] * 6


def test_threads_that_spin_after_a_reclaim_are_not_anothers():
    """OpenBLAS's threads spin for 51 ms."""
    assert set(estimates(*[(3, 2, 0)] * 10, after=LENT)) == {0}


def test_threads_that_run_long_after_a_reclaim_are():
    assert estimates(*[(3, 2, 0)] * 20, after=LENT)[-1] == 1


def test_readings_below_what_is_awake_mean_no_others():
    assert set(estimates(*[(0, 2, 0)] * 5)[2:]) == {0}


def test_lending_that_is_a_mistake_is_tried_less_and_less():
    """Another program runs whenever something is lent, and stops when it was taken back."""
    readings, lent_at = [], []
    n_others = None
    for i in range(500):
        n_lent = int(n_others == 0)
        readings.append((3 if n_lent else 1, 1, n_lent, PERIOD_S * i))
        now = _native.estimate_others(*readings)[-1]
        if now == 0 and n_others != 0:
            lent_at.append(i)
        n_others = now
    gaps = [later - earlier for earlier, later in itertools.pairwise(lent_at)]
    assert len(gaps) >= 4 and gaps == sorted(gaps) and gaps[3] > 6 * gaps[0]


# ---- pools -----------------------------------------------------------------

MANY = 50


def pretend(n_others, n_ours=1):
    """Pretend that this many threads of others and of ours run, and the one that reads."""
    _native.pretend_running(1 + n_ours + n_others)


def leave_nothing():
    """Pretend that others use all CPUs. A pool of an earlier test that is about to end cannot change that."""
    pretend(MANY)
    gates.wait_until(lambda: _native.cpus_left(N_CPUS) == 0, "nothing is left")


@pytest.fixture
def gate(tmp_path):
    with gates.Gate(tmp_path / "gate") as opened:
        yield opened


@contextlib.contextmanager
def active(pool, gate, n, n_beside=0):
    """Hold n workers of a pool in tasks, and make sure that the others are idle. n_beside: active ones of other pools.

    All have had a task before: a worker that began to work now would seem to be one of the threads that are pretended.
    """
    n_workers = len(pool.statistics().n_threads)
    first = pool.map_async(tasks.pass_gate, [gate.path] * n_workers, 1)
    gate.wait_arrived(n_workers)
    gate.release(n_workers)
    first.get(60)
    held = pool.map_async(tasks.pass_gate, [gate.path] * n, 1)
    gate.wait_arrived(n)
    gates.wait_until(lambda: _native.n_awake() == n + n_beside, "the others sleep")
    yield
    gate.release(n)
    held.get(60)


@pytest.fixture
def lone(kind, monkeypatch, gate):
    """A pool of two workers that lends four CPUs, with one worker in a task. Until now others used all CPUs."""
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", str(N_CPUS))
    leave_nothing()
    with ComposablePool(2, kind=kind, policy="dynamic") as pool, active(pool, gate, 1):
        yield pool


def n_threads(pool):
    return max(pool.statistics().n_threads)


@pytest.mark.parametrize(("n_others", "expected"), [(0, 4), (1, 3)])
def test_what_others_leave_is_lent(lone, n_others, expected):
    assert n_threads(lone) == 2 and lone.statistics().n_lends == 0
    pretend(n_others)
    gates.wait_until(lambda: n_threads(lone) == expected, "lent")
    gates.wait_until(lambda: lone.statistics().n_lends >= 1, "counted")


def test_what_others_use_is_not(lone):
    pretend(3)
    gates.wait_until(lambda: _native.cpus_left(N_CPUS) == 1, "they are seen")
    pretend(2)
    gates.wait_until(lambda: _native.cpus_left(N_CPUS) == 2, "they are seen")
    assert n_threads(lone) == 2 and lone.statistics().n_lends == 0


def test_what_others_come_to_need_is_taken_back(lone):
    pretend(0)
    gates.wait_until(lambda: n_threads(lone) == N_CPUS, "lent")
    pretend(MANY, n_ours=N_CPUS)
    gates.wait_until(lambda: n_threads(lone) == 2, "taken back")
    gates.wait_until(lambda: lone.statistics().n_reclaims >= 1, "counted")
    pretend(0)
    gates.wait_until(lambda: n_threads(lone) == N_CPUS, "lent again")


def test_a_system_that_does_not_say_what_runs_is_taken_to_be_idle(lone):
    _native.pretend_running(0)
    gates.wait_until(lambda: n_threads(lone) == N_CPUS, "lent")


def counts(pool):
    """The threads of active workers."""
    awake = pool._engine._channel.awake()
    return [n for n, is_awake in zip(pool.statistics().n_threads, awake, strict=True) if is_awake]


@pytest.mark.parametrize(
    ("n_cpus", "n_workers", "n_active", "n_others", "expected"),
    [
        (8, 4, 1, 0, [8]),
        (8, 4, 2, 0, [4, 4]),
        (8, 4, 4, 0, [2, 2, 2, 2]),
        (8, 3, 3, 0, [3, 3, 2]),
        (8, 4, 2, 2, [3, 3]),
        (8, 4, 2, 5, [2, 2]),
        (8, 3, 1, 3, [5]),
        (2, 4, 1, 0, [2]),
    ],
)
def test_one_rule_is_for_every_kind(kind, monkeypatch, gate, n_cpus, n_workers, n_active, n_others, expected):
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", str(n_cpus))
    leave_nothing()
    with ComposablePool(n_workers, kind=kind) as pool, active(pool, gate, n_active):
        pretend(n_others, n_active)
        gates.wait_until(lambda: _native.cpus_left(n_cpus) == n_cpus - n_others, "they are seen")
        gates.wait_until(lambda: counts(pool) == expected, "divided")


def test_pools_share_what_others_leave(kind, monkeypatch, gate, tmp_path):
    """Two lone tasks have half of it each, in whichever kind of pool."""
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", "8")
    leave_nothing()
    with (
        gates.Gate(tmp_path / "beside") as gate_beside,
        ComposablePool(4, kind="thread") as beside,
        ComposablePool(4, kind=kind) as pool,
        active(beside, gate_beside, 1),
        active(pool, gate, 1, n_beside=1),
    ):
        pretend(n_others=2, n_ours=2)
        gates.wait_until(lambda: _native.cpus_left(8) == 6, "they are seen")
        gates.wait_until(lambda: counts(pool) == counts(beside) == [3], "divided")


class Asked:
    """A policy that is told how many threads would find a CPU."""

    def shares(self, state):
        return [WorkerBudget(max(1, min(state.n_left, N_CPUS)), state.cpus)] * len(state.own)


def test_a_policy_of_ones_own_is_told(kind, monkeypatch, gate):
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", str(N_CPUS))
    leave_nothing()
    with ComposablePool(2, kind=kind, policy=Asked()) as pool, active(pool, gate, 1):
        for n_others in (2, 1, 0):
            pretend(n_others)
            gates.wait_until(lambda: set(pool.statistics().n_threads) == {N_CPUS - n_others}, "told")  # noqa: B023


# ---- the thread that reads --------------------------------------------------


def test_there_is_one_while_pools_lend(kind):
    fresh.check(fresh.run([fresh.TESTS / "isolated" / "reading.py", "one", kind]))


def test_an_idle_pool_reads_nothing(kind):
    pretend(0)
    with ComposablePool(2, kind=kind, policy="dynamic") as pool:
        pool.map(tasks.square, range(10), 1)
        gates.wait_until(lambda: _native.cpus_left(1) == 0, "it knows nothing, and sleeps")
        pool.apply(tasks.square, (1,))
