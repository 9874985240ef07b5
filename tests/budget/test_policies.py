"""Plans and policies: pure functions of which workers are active."""

import random

import pytest

from pool_party import ComposableExecutor, ComposablePool, WorkerBudget
from pool_party.budget import neighbours, plan, policies
from pool_party.budget.split import split


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
    assert not made.is_balanced and not made.overlaps and not made.is_gated


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
    assert [share.n_threads for share in made.own] == [1, 1] and not made.lends and not made.is_balanced


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
    assert plan.make_plan("process", 4, "dynamic").is_balanced
    assert not plan.make_plan("thread", 4, "dynamic").is_balanced
    assert plan.make_plan("thread", 4, "dynamic").mask(0) == ()
