"""Dividing CPUs among workers: budgets add up, cores stay whole, and every worker gets something."""

import collections
import itertools
import math

import properties
import pytest

from pool_party._budget.split import WorkerBudget, split

# A machine with two sockets of 44 cores with two threads each, in topology order. Siblings are n and n + 88.
CORES = [(n, n + 88) for n in range(88)]
CPUS = [n for core in CORES for n in core]


def threads_of(shares):
    return [share.n_threads for share in shares]


def sizes_of(shares):
    return [len(share.cpus) for share in shares]


def n_workers_by_cpu(shares):
    return collections.Counter(n for share in shares for n in share.cpus)


def cores_of(share, cores):
    return {core for core in map(tuple, cores) if set(core) & set(share.cpus)}


# ---- examples --------------------------------------------------------------


def test_even():
    assert split([0, 1, 2, 3], 2) == (WorkerBudget(2, (0, 1)), WorkerBudget(2, (2, 3)))


def test_remainder_goes_to_the_first():
    shares = split(range(8), 5)
    assert threads_of(shares) == [2, 2, 2, 1, 1]
    assert [share.cpus for share in shares] == [(0, 1), (2, 3), (4, 5), (6,), (7,)]


@pytest.mark.parametrize(("n_cpus", "n_workers"), [(8, 5), (12, 8), (88, 58), (88, 59)])
def test_no_thread_too_many_or_too_few(n_cpus, n_workers):
    """Here IntelPython's smp makes 10, 16, 116 and 59 threads; joblib gives every worker one."""
    assert sum(threads_of(split(range(n_cpus), n_workers))) == n_cpus


def test_one_worker_has_all():
    assert split(CPUS, 1, cores=CORES) == (WorkerBudget(176, tuple(CPUS)),)


def test_more_workers_than_cpus():
    shares = split([3, 5], 5)
    assert shares == tuple(WorkerBudget(1, (n,)) for n in (3, 3, 3, 5, 5))


def test_more_workers_than_cpus_of_a_large_machine():
    shares = split(CPUS, 200, cores=CORES)
    assert threads_of(shares) == [1] * 200
    assert set(n_workers_by_cpu(shares).values()) == {1, 2}


@pytest.mark.parametrize(
    ("n_workers", "sizes"),
    [
        (2, [88, 88]),
        (5, [36, 36, 36, 34, 34]),
        (8, [22] * 8),
        (88, [2] * 88),
        (60, [4] * 28 + [2] * 32),
        (100, [2] * 76 + [1] * 24),
    ],
)
def test_two_sockets(n_workers, sizes):
    shares = split(CPUS, n_workers, cores=CORES)
    assert sizes_of(shares) == threads_of(shares) == sizes


def test_sockets_are_not_mixed_where_workers_divide_them():
    for share in split(CPUS, 4, cores=CORES):
        assert len({n % 88 < 44 for n in share.cpus}) == 1


def test_cores_of_different_sizes():
    """Two cores with siblings and four without: two workers get four CPUs each."""
    shares = split(range(8), 2, cores=[(0, 1), (2, 3)])
    assert [share.cpus for share in shares] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_cores_of_other_cpus_do_not_count():
    """A part of a machine can be split again, with the cores of the whole machine."""
    assert sizes_of(split([0, 88, 1, 2, 90], 3, cores=CORES)) == [2, 1, 2]


def test_oversubscription():
    assert threads_of(split(range(4), 2, oversubscription=2)) == [4, 4]
    assert threads_of(split(range(4), 3, oversubscription=1.25)) == [2, 2, 1]
    assert threads_of(split(range(4), 2, oversubscription=0.5)) == [1, 1]
    assert threads_of(split(range(4), 4, oversubscription=0.1)) == [1, 1, 1, 1]
    assert threads_of(split(range(2), 3, oversubscription=2)) == [2, 1, 1]


def test_oversubscription_leaves_sets_as_they_are():
    for factor in (0.5, 1.5, 3):
        shares = split(CPUS, 5, cores=CORES, oversubscription=factor)
        assert [share.cpus for share in shares] == [share.cpus for share in split(CPUS, 5, cores=CORES)]
        assert sum(threads_of(shares)) == round(176 * factor)


def test_few_threads_and_uneven_sets():
    """Sets of three CPUs and of one: with proportions alone the second worker would get no thread."""
    shares = split(range(4), 2, cores=[(1, 2)], oversubscription=0.5)
    assert shares == (WorkerBudget(1, (0, 1, 2)), WorkerBudget(1, (3,)))


def test_many_threads_and_uneven_sets():
    assert threads_of(split(range(4), 2, cores=[(1, 2)], oversubscription=10)) == [30, 10]


@pytest.mark.parametrize("factor", range(1, 41))
def test_all_small_machines(factor):
    """All rows of up to five cores of one or two threads, with every number of workers."""
    factor /= 8
    for sizes in itertools.chain.from_iterable(itertools.product((1, 2), repeat=n) for n in range(1, 6)):
        left = iter(range(sum(sizes)))
        cores = [tuple(next(left) for _ in range(size)) for size in sizes]
        for n_workers in range(1, sum(sizes) + 2):
            shares = split(range(sum(sizes)), n_workers, cores=cores, oversubscription=factor)
            assert sum(threads_of(shares)) == max(round(sum(sizes) * factor), n_workers)
            assert min(threads_of(shares)) >= 1
            assert factor > 1 or all(share.n_threads <= len(share.cpus) for share in shares)


def test_threads_per_worker_that_fit():
    assert split(range(8), 2, threads_per_worker=2) == (WorkerBudget(2, (0, 1)), WorkerBudget(2, (4, 5)))
    assert split([3, 2, 1, 0], 1, threads_per_worker=2) == (WorkerBudget(2, (3, 2)),)


def test_threads_per_worker_take_a_core_each():
    assert [share.cpus for share in split(CPUS, 2, cores=CORES, threads_per_worker=2)] == [(0, 1), (44, 45)]
    shares = split(CPUS, 88, cores=CORES, threads_per_worker=1)
    assert [share.cpus for share in shares] == [(n,) for n in range(88)]


def test_threads_per_worker_that_need_siblings():
    shares = split([0, 4, 1, 5, 2, 6, 3, 7], 2, cores=[(0, 4), (1, 5), (2, 6), (3, 7)], threads_per_worker=3)
    assert [share.cpus for share in shares] == [(0, 4, 1), (2, 6, 3)]


def test_threads_per_worker_that_must_cut_a_core():
    """Three workers share nine CPUs, three each. The cores are four pairs and a single."""
    shares = split(range(9), 3, cores=[(0, 1), (2, 3), (4, 5), (6, 7)], threads_per_worker=3)
    assert [share.cpus for share in shares] == [(0, 1, 2), (3, 4, 5), (6, 7, 8)]


def test_threads_per_worker_that_do_not_fit():
    assert [share.cpus for share in split(range(4), 3, threads_per_worker=2)] == [(0, 1), (0, 1), (2, 3)]
    assert [share.cpus for share in split(range(4), 2, threads_per_worker=3)] == [(0, 1, 2), (2, 3, 0)]
    assert split(range(2), 3, threads_per_worker=4) == (WorkerBudget(4, (0, 1)),) * 3


# ---- errors ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0], 0), "n_workers must be at least 1, not 0"),
        (([0], -2), "n_workers must be at least 1, not -2"),
        (([], 1), "there are no CPUs"),
    ],
)
def test_impossible_numbers(arguments, message):
    with pytest.raises(ValueError, match=message):
        split(*arguments)


@pytest.mark.parametrize("factor", [0, -1.0, math.inf, math.nan, 1e308])
@pytest.mark.parametrize("threads_per_worker", [None, 1])
def test_impossible_oversubscription(factor, threads_per_worker):
    with pytest.raises(ValueError, match="oversubscription must be positive and finite"):
        split(range(4), 2, oversubscription=factor, threads_per_worker=threads_per_worker)


@pytest.mark.parametrize("count", [0, -1])
def test_impossible_threads_per_worker(count):
    with pytest.raises(ValueError, match=f"threads_per_worker must be at least 1, not {count}"):
        split([0], 1, threads_per_worker=count)


@pytest.mark.parametrize("count", [True, 1.0, "1"])
def test_what_is_no_int(count):
    with pytest.raises(TypeError, match="n_workers must be an int"):
        split([0], count)
    with pytest.raises(TypeError, match="threads_per_worker must be an int"):
        split([0], 1, threads_per_worker=count)


@pytest.mark.parametrize("factor", [True, "1", None, 1j])
def test_what_is_no_number(factor):
    with pytest.raises(TypeError, match="oversubscription must be a number"):
        split([0], 1, oversubscription=factor)


# ---- invariants ------------------------------------------------------------


def draw_machine(rng, max_siblings=2):
    """Draw CPUs in topology order, and their cores."""
    sizes = [rng.randint(1, max_siblings) for _ in range(rng.randint(1, 24))]
    if rng.random() < 0.5:
        sizes = [sizes[0]] * len(sizes)
    numbers = list(range(sum(sizes)))[:: rng.choice([1, -1])]
    left = iter(numbers)
    return numbers, [tuple(next(left) for _ in range(size)) for size in sizes]


@properties.check(n_runs=200)
def test_every_cpu_has_one_owner(rng):
    cpus, cores = draw_machine(rng, max_siblings=4)
    shares = split(cpus, rng.randint(1, len(cpus)), cores=cores if rng.random() < 0.8 else ())
    assert [n for share in shares for n in share.cpus] == cpus
    assert threads_of(shares) == sizes_of(shares)
    assert min(threads_of(shares)) >= 1


@properties.check(n_runs=200)
def test_workers_share_no_core_while_there_are_enough(rng):
    cpus, cores = draw_machine(rng)
    shares = split(cpus, rng.randint(1, len(cores)), cores=cores)
    assert sum(len(cores_of(share, cores)) for share in shares) == len(cores)
    assert max(sizes_of(shares)) - min(sizes_of(shares)) <= max(map(len, cores))
    if len(set(map(len, cores))) == 1:
        assert sizes_of(shares) == sorted(sizes_of(shares), reverse=True)


@properties.check(n_runs=200)
def test_budgets_add_up(rng):
    cpus, cores = draw_machine(rng, max_siblings=4)
    n_workers, factor = rng.randint(1, 60), rng.randint(1, 400) / 100
    shares = split(cpus, n_workers, cores=cores, oversubscription=factor)
    assert sum(threads_of(shares)) == max(round(len(cpus) * factor), n_workers)
    assert len(shares) == n_workers
    if factor <= 1:
        assert all(share.n_threads <= len(share.cpus) for share in shares)


@properties.check(n_runs=200)
def test_without_cores_budgets_are_even(rng):
    n_cpus, n_workers, factor = rng.randint(1, 60), rng.randint(1, 60), rng.randint(1, 400) / 100
    each, left = divmod(round(n_cpus * factor), n_workers)
    shares = split(range(n_cpus), n_workers, oversubscription=factor)
    assert threads_of(shares) == [max(1, each + (i < left)) for i in range(n_workers)]


@properties.check(n_runs=200)
def test_no_cpu_has_two_workers_more_than_another(rng):
    cpus, cores = draw_machine(rng)
    count = rng.choice([None, rng.randint(1, 2 * len(cpus))])
    n_workers = rng.randint(1, 80) + (len(cpus) if count is None else len(cpus) // count)
    by_cpu = n_workers_by_cpu(shares := split(cpus, n_workers, cores=cores, threads_per_worker=count))
    assert max(by_cpu.values()) - min(by_cpu[n] for n in cpus) <= 1
    assert set(sizes_of(shares)) == {min(count or 1, len(cpus))}


@properties.check(n_runs=200)
def test_fixed_budgets_that_fit_are_alone_on_their_cpus(rng):
    cpus, cores = draw_machine(rng)
    n_workers = rng.randint(1, len(cpus))
    count = rng.randint(1, len(cpus) // n_workers)
    shares = split(cpus, n_workers, cores=cores, threads_per_worker=count)
    assert set(threads_of(shares)) == set(sizes_of(shares)) == {count}
    assert set(n_workers_by_cpu(shares).values()) == {1}
    if n_workers <= len(cores) and min(sizes_of(split(cpus, n_workers, cores=cores))) >= count:
        used = [core for share in shares for core in cores_of(share, cores)]
        assert len(used) == len(set(used))
