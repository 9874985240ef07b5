"""Plans and policies: pure functions of which workers are active."""

import random

import properties
import pytest

from pool_party import ComposableExecutor, ComposablePool, WorkerBudget, _native
from pool_party._budget import neighbours, plan, policies
from pool_party._budget.split import split


def state(n_cpus, n_workers, awake):
    cpus = tuple(range(n_cpus))
    own = split(cpus, n_workers)
    return policies.State(cpus, n_cpus, own, tuple(n in awake for n in range(n_workers)))


def threads(policy, *args):
    return [share.n_threads for share in policies.check(policies.resolve(policy).shares(state(*args)), state(*args))]


def test_static_gives_each_worker_its_own():
    assert threads("static", 8, 3, {0}) == [3, 3, 2]
    assert threads("static", 2, 8, {0, 7}) == [1] * 8


@pytest.mark.parametrize(
    ("awake", "expected"),
    [
        ({0, 1, 2, 3}, [2, 2, 2, 2]),
        ({1, 2, 3}, [2, 3, 3, 2]),
        ({2}, [2, 2, 8, 2]),
        ({0, 3}, [4, 2, 2, 4]),
        (set(), [2, 2, 2, 2]),
    ],
)
def test_dynamic_lends_what_sleepers_own(awake, expected):
    assert threads("dynamic", 8, 4, awake) == expected


def test_dynamic_with_more_workers_than_cpus():
    assert threads("dynamic", 4, 16, set(range(16))) == [1] * 16
    assert threads("dynamic", 4, 16, {1, 2, 3, 4, 5}) == [1] * 16
    assert [n for n in threads("dynamic", 4, 16, {5, 9, 11}) if n > 1] == [2]
    assert threads("dynamic", 4, 16, {9})[9] == 4


def test_dynamic_never_gives_more_than_there_is_to_those_that_work():
    rng = random.Random(3)
    for _ in range(500):
        n_cpus, n_workers = rng.randint(1, 40), rng.randint(1, 60)
        awake = {n for n in range(n_workers) if rng.random() < 0.4}
        now = state(n_cpus, n_workers, awake)
        shares = policies.check(policies.resolve("dynamic").shares(now), now)
        of_awake = [shares[n] for n in awake]
        assert all(share.n_threads >= own.n_threads for share, own in zip(shares, now.own, strict=True))
        if len(awake) <= n_cpus:
            assert sum(share.n_threads for share in of_awake) <= n_cpus
            cpus = [cpu for share in of_awake for cpu in share.cpus]
            assert n_workers > n_cpus or len(cpus) == len(set(cpus))
        assert all(shares[n] == now.own[n] for n in range(n_workers) if n not in awake)


def of_processes(now):
    """The threads of a pool's active processes, as the balancer grants them."""
    shares = policies.resolve("dynamic").shares(now)
    if now.n_others:
        shares = policies.fit(shares, now.awake, now.n_threads, now.n_others)
    return [share.n_threads for share, is_awake in zip(shares, now.awake, strict=True) if is_awake]


def of_threads(now):
    """The threads of a pool's active threads or interpreters, each of which looks by itself."""
    n_awake = now.n_others + sum(now.awake)
    return [
        _native.divide(share.n_threads, now.n_others + n, n_awake, now.n_threads, now.n_left)
        for n, (share, is_awake) in enumerate(zip(now.own, now.awake, strict=True))
        if is_awake
    ]


def some_pools(rng):
    """Pools of one process, on CPUs of which other programs leave some."""
    n_cpus = rng.randint(1, 16)
    n_left = rng.randint(0, n_cpus)
    pools = []
    for _ in range(rng.randint(1, 3)):
        n_workers, bits = rng.randint(1, 10), rng.choice((-1, rng.getrandbits(10)))
        awake = {n for n in range(n_workers) if bits >> n & 1}
        pools.append(state(n_cpus, n_workers, awake)._replace(n_left=n_left))
    n_awake = sum(sum(pool.awake) for pool in pools)
    return [pool._replace(n_others=n_awake - sum(pool.awake)) for pool in pools]


@properties.check(n_runs=200)
def test_active_workers_never_have_more_than_there_is(rng):
    pools = some_pools(rng)
    counts = [n for pool in pools for n in rng.choice((of_processes, of_threads))(pool)]
    assert min(counts, default=1) >= 1
    assert sum(counts) <= max(pools[0].n_threads, len(counts))


@properties.check(n_runs=200)
def test_the_same_rule_is_for_processes_and_threads(rng):
    for now in some_pools(rng):
        pairs = list(zip(of_processes(now), of_threads(now), strict=True))
        assert all(0 <= more - less <= 1 for more, less in pairs)  # a left-over thread may go to none of the threads
        if now.awake == tuple(sorted(now.awake, reverse=True)):
            assert all(more == less for more, less in pairs)
        if all(now.awake) and not now.n_others:
            assert [less for _, less in pairs] == [share.n_threads for share in now.own]


@properties.check(n_runs=200)
@pytest.mark.parametrize("of_active", [of_processes, of_threads])
def test_where_more_is_left_nobody_has_less(of_active, rng):
    for now in some_pools(rng):
        more = now._replace(n_left=now.n_left + rng.randint(0, 5))
        pairs = zip(of_active(now), of_active(more), strict=True)
        assert all(before <= after for before, after in pairs)
        own = [share.n_threads for share, is_awake in zip(now.own, now.awake, strict=True) if is_awake]
        nothing = of_active(now._replace(n_left=0))
        assert all(n <= n_own for n, n_own in zip(nothing, own, strict=True)) and (now.n_others or nothing == own)


def test_uneven_budgets_of_whole_cores_stay_while_all_work():
    own = split(range(6), 2, cores=[(0, 1), (2, 3), (4, 5)])
    assert [share.n_threads for share in own] == [4, 2]
    now = policies.State(tuple(range(6)), 6, own, (True, True))
    assert tuple(policies.resolve("dynamic").shares(now)) == own


def test_uneven_budgets_of_whole_cores_are_divided_while_some_are_idle():
    """Four CPUs that are cores of their own, and eight cores of two."""
    cores = [(n,) for n in range(4)] + [(n, n + 1) for n in range(4, 20, 2)]
    own = split(range(20), 12, cores=cores)
    assert {share.n_threads for share in own} == {1, 2}
    for idle in range(12):
        for n_left in range(21):
            awake = tuple(n != idle for n in range(12))
            shares = policies.resolve("dynamic").shares(policies.State(tuple(range(20)), 20, own, awake, n_left))
            assert all(share.n_threads <= len(share.cpus) for share in shares)
            assert policies.active_threads(shares, awake) <= 20


@pytest.mark.parametrize("name", ["exclusive", "counting"])
def test_gated_policies_grant_all(name):
    assert threads(name, 8, 3, {1}) == [8, 8, 8]


# ---- bad input -------------------------------------------------------------


@pytest.mark.parametrize("make", [ComposablePool, ComposableExecutor])
@pytest.mark.parametrize(
    ("limits", "error", "words"),
    [
        ({"policy": "fair"}, ValueError, ["'fair'", "'static'", "'exclusive'", "'counting'", "'dynamic'", "None"]),
        ({"policy": 3}, TypeError, ["shares(state)", "3"]),
        ({"threads_per_worker": 0}, ValueError, ["threads_per_worker", "0"]),
        ({"threads_per_worker": 2**40}, ValueError, ["threads_per_worker", "65536", "1099511627776"]),
        ({"threads_per_worker": 1.5}, TypeError, ["threads_per_worker", "1.5"]),
        ({"threads_per_worker": 2, "policy": None}, ValueError, ["threads_per_worker", "policy"]),
        ({"threads_per_worker": 2, "policy": "exclusive"}, ValueError, ["threads_per_worker", "exclusive"]),
        ({"oversubscription": 0}, ValueError, ["oversubscription", "0"]),
        ({"oversubscription": 2.0**40}, ValueError, ["oversubscription", "65536", "1099511627776.0"]),
        ({"oversubscription": "much"}, TypeError, ["oversubscription", "'much'"]),
        ({"policy": policies.Static}, TypeError, ["shares(state)", "Static"]),
        ({"scope": "world"}, ValueError, ["'world'", "'pool'", "'machine'"]),
        ({"policy": "exclusive"}, ValueError, ["'exclusive'", "kind='process'", "'dynamic'"]),
        ({"policy": "counting"}, ValueError, ["'counting'", "kind='process'", "'static'"]),
    ],
)
def test_impossible_requests_are_refused(make, limits, error, words):
    with pytest.raises(error) as caught:
        make(2, kind="thread", **limits)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_number_of_cpus_of_ones_own_hides_no_mistake(monkeypatch):
    monkeypatch.setenv("POOL_PARTY_CPU_COUNT", "64")
    with pytest.raises(TypeError, match="oversubscription must be a number, not 'much'"):
        ComposablePool(2, kind="thread", oversubscription="much")


def test_a_policy_must_grant_what_there_is():
    now = state(4, 2, {0})
    for shares, words in [
        ([WorkerBudget(1, (0,))], "1 budgets for 2 workers"),
        ([WorkerBudget(0, (0,)), WorkerBudget(1, (1,))], "0 threads"),
        ([WorkerBudget(2**40, (0,)), WorkerBudget(1, (1,))], "1099511627776 threads"),
        ([WorkerBudget(1, (0,)), WorkerBudget(1, (7,))], "(7,)"),
    ]:
        with pytest.raises(ValueError) as caught:
            policies.check(shares, now)
        assert words in str(caught.value)


# ---- neighbours ------------------------------------------------------------


class Neighbour:
    """A pool as its neighbours see it."""

    def __init__(self, is_remote, reconsider=lambda: None):
        self.is_remote = is_remote
        self.has_to_share = False
        self.reconsider = reconsider


def test_a_pool_that_has_left_counts_no_more(monkeypatch):
    """Its balancer may still report workers while it leaves."""
    counts = []
    monkeypatch.setattr(neighbours, "_awake", {})
    monkeypatch.setattr(neighbours._native, "limit_foreign", counts.append)
    leaving = Neighbour(is_remote=True)
    other = Neighbour(is_remote=False, reconsider=lambda: neighbours.tell(leaving, 3))
    neighbours.join(leaving)
    neighbours.join(other)
    neighbours.tell(leaving, 2)
    neighbours.leave(leaving)
    assert counts[-1] == 0 and neighbours.n_others_awake(other) == 0
    neighbours.tell(leaving, 1)
    assert counts[-1] == 0 and neighbours.n_others_awake(other) == 0


# ---- plans -----------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch):
    """Pretend to have a machine of this many single-thread cores, for plans only."""

    def pretend(n):
        class Fake:
            allowed = tuple(range(n))
            n_cpus = n
            cores = ()

            @staticmethod
            def choose(count):
                return tuple(range(count))

        monkeypatch.setattr(plan, "current", lambda: Fake)
        monkeypatch.setattr(plan, "cpu_count", lambda: n)

    return pretend


@pytest.mark.parametrize("kind", ["thread", "process", "interp"])
def test_static_plan(machine, kind):
    machine(8)
    made = plan.make_plan(kind, 3, "static")
    assert [share.n_threads for share in made.own] == [3, 3, 2]
    assert [made.mask(n) for n in range(3)] == [(0, 1, 2), (3, 4, 5), (6, 7)]
    assert made.divider == "plan" and not made.overlaps and not policies.needs_gate(made.policy)


def test_no_worker_is_kept_on_a_cpu_that_it_shares(machine):
    machine(2)
    made = plan.make_plan("process", 8)
    assert [share.n_threads for share in made.own] == [1] * 8
    assert all(made.mask(n) == () for n in range(8)) and made.overlaps


def test_a_worker_with_one_cpu_is_kept_on_it_only_on_request(machine):
    machine(4)
    assert plan.make_plan("process", 4).mask(2) == ()
    assert plan.make_plan("process", 4, affinity=True).mask(2) == (2,)


def test_affinity_can_be_turned_off(machine):
    machine(4)
    assert plan.make_plan("process", 2, affinity=False).mask(1) == ()


def test_an_override_counts_more_or_less_than_there_are(machine, monkeypatch):
    machine(4)
    monkeypatch.setattr(plan, "cpu_count", lambda: 8)
    assert [share.n_threads for share in plan.make_plan("process", 2).own] == [4, 4]


def test_a_pool_with_a_part_of_the_cpus_is_not_kept_on_them(machine, monkeypatch):
    machine(8)
    monkeypatch.setattr(plan, "cpu_count", lambda: 4)
    made = plan.make_plan("process", 2)
    assert [share.n_threads for share in made.own] == [2, 2] and made.mask(0) == ()


@pytest.mark.parametrize("kind", ["thread", "process", "interp"])
def test_a_number_of_threads_for_each_worker_is_not_raised(machine, kind):
    machine(4)
    made = plan.make_plan(kind, 2, threads_per_worker=1)
    assert [share.n_threads for share in made.own] == [1, 1] and made.divider == "plan"


@pytest.mark.parametrize("kind", ["thread", "process", "interp"])
def test_workers_are_kept_on_their_cpus_by_every_policy(machine, kind):
    machine(4)
    for policy in ("static", "dynamic"):
        assert plan.make_plan(kind, 2, policy, affinity=True).mask(1) == (2, 3)


def test_where_a_program_has_one_policy_for_all_kinds_gates_are_for_processes():
    assert [policies.for_kind("exclusive", kind) for kind in ("thread", "process")] == ["dynamic", "exclusive"]
    assert [policies.for_kind(policy, "interp") for policy in ("static", None)] == ["static", None]


def test_only_a_process_that_lends_has_a_balancer(machine):
    machine(4)
    assert plan.make_plan("process", 4, "dynamic").divider == "balancer"
    assert plan.make_plan("thread", 4, "dynamic").divider == "workers"
    assert plan.make_plan("thread", 4, "dynamic").mask(0) == ()
