"""CPUs over workers: how many threads each worker may use, and on which CPUs. Nothing here looks at a machine."""

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

THREADS_MAX = 1 << 16  # of one worker; guess: more CPUs than a machine has, and fewer threads than the kernel allows


class WorkerBudget(NamedTuple):
    """A worker's budget of threads. A policy of your own returns one for each worker.

    Args:
        n_threads: The number of threads that native libraries may use in the worker's tasks, from 1 to 65,536.
        cpus: The numbers of the CPUs on which they run, which must be some of the pool's.

    Guarantees:
        It is a tuple, and never changes. What is out of range is refused by the pool, and not here.
    """

    n_threads: int
    cpus: tuple[int, ...]


def split(
    cpus: Sequence[int],
    n_workers: int,
    *,
    cores: Sequence[Sequence[int]] = (),
    threads_per_worker: int | None = None,
    oversubscription: float = 1.0,
) -> tuple[WorkerBudget, ...]:
    """A share of `cpus` for each worker.

    `cpus` come in topology order (`Topology.usable`). `cores` are those that have several CPUs (`Topology.cores`, of
    which only what is in `cpus` counts); a CPU in none of them is a core of its own.

    With C CPUs and p workers, there are T = round(C * oversubscription) threads to give out. Guaranteed is:

    - Everybody has a thread and a CPU; and where T >= p, the threads are T together.
    - p <= C: the sets of CPUs are runs of `cpus`, disjoint, and leave no CPU out. Up to one worker a core, no two
      workers share a core, and with at most two siblings a core, sets differ in size by no more than a core; where
      all cores have the same size, those left over go to the first workers. With more workers than cores, CPUs are
      dealt one by one, those left over to the first workers.
    - p > C: each worker has one CPU, in the order of the workers, and no CPU has two workers more than another.
    - Threads are dealt evenly, those left over to the first workers; where whole cores do not let the sets be dealt
      so, in proportion to the sets. Without oversubscription, and p <= C, each worker has as many threads as CPUs;
      below 1, never more.

    `threads_per_worker` gives each worker that many threads, k, and `oversubscription` does not count. Where they fit,
    p * k <= C, k CPUs belong to each worker alone: out of its share as above, and on different cores as far as these
    go. Two workers share a core only if whole cores for all would leave one of them with less than k CPUs. Where they
    do not fit, each worker has min(k, C) neighbouring CPUs (the first is a neighbour of the last), and again no CPU
    has two workers more than another.

    Raises ValueError for numbers that are not positive, or without CPUs, and TypeError for what is no number.
    """
    n_workers = _check_count("n_workers", n_workers)
    if not cpus:
        raise ValueError("there are no CPUs to split: name at least one")
    n_threads = max(count_threads(len(cpus), oversubscription), n_workers)
    if threads_per_worker is not None:
        each = _check_count("threads_per_worker", threads_per_worker)
        return _split_fixed(cpus, n_workers, cores, _check_threads("threads_per_worker", each, each))
    fits = n_workers <= len(cpus)
    sets = _partition(cpus, n_workers, cores) if fits else _overlap(cpus, n_workers, 1)
    budgets = _apportion(n_threads, [len(own) for own in sets])
    return tuple(map(WorkerBudget, budgets, sets))


def _check_count(name: str, value: int) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {value!r}")
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {value!r}") from None
    if count < 1:
        raise ValueError(f"{name} must be at least 1, not {value!r}")
    return count


def _check_threads(name: str, count: int, value: float) -> int:
    if count > THREADS_MAX:
        raise ValueError(f"{name} must not make more than {THREADS_MAX} threads, as {value!r} does")
    return count


def count_threads(n_cpus: int, oversubscription: float) -> int:
    """How many threads may run on so many CPUs. Raises ValueError and TypeError as `split`."""
    if isinstance(oversubscription, bool) or not isinstance(oversubscription, int | float):
        raise TypeError(f"oversubscription must be a number, not {oversubscription!r}")
    if not 0 < n_cpus * oversubscription < math.inf:
        raise ValueError(
            f"oversubscription must be positive and finite, not {oversubscription!r}; 1.0 is one thread a CPU"
        )
    return _check_threads("oversubscription", round(n_cpus * oversubscription), oversubscription)


def _split_fixed(
    cpus: Sequence[int], n_workers: int, cores: Sequence[Sequence[int]], n_threads: int
) -> tuple[WorkerBudget, ...]:
    if n_workers * n_threads > len(cpus):
        return tuple(WorkerBudget(n_threads, own) for own in _overlap(cpus, n_workers, min(n_threads, len(cpus))))
    sets = _partition(cpus, n_workers, cores)
    if min(map(len, sets)) < n_threads:
        sets = _partition(cpus, n_workers, ())
    return tuple(WorkerBudget(n_threads, _spread(own, cores, n_threads)) for own in sets)


# ---- threads ---------------------------------------------------------------


def _deal(total: int, n_workers: int) -> list[int]:
    each, left = divmod(total, n_workers)
    return [each + (i < left) for i in range(n_workers)]


def _apportion(n_threads: int, sizes: list[int]) -> list[int]:
    """Threads, at least one each, for sets of CPUs: evenly, or in proportion to their sizes if these are uneven."""
    n_cpus = sum(sizes)
    if sizes == _deal(n_cpus, len(sizes)):
        return _deal(n_threads, len(sizes))
    # With fewer threads than CPUs, small sets could go empty: each has one first, and then one CPU less that counts.
    first = int(n_threads < n_cpus)
    rest, n_cpus = n_threads - first * len(sizes), n_cpus - first * len(sizes)
    parts = [divmod(rest * (size - first), n_cpus) for size in sizes]
    n_left = rest - sum(part for part, _ in parts)
    neediest = sorted(range(len(sizes)), key=lambda i: -parts[i][1])[:n_left]  # a stable sort
    return [first + part + (i in neediest) for i, (part, _) in enumerate(parts)]


# ---- CPUs ------------------------------------------------------------------


def _partition(cpus: Sequence[int], n_workers: int, cores: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Runs of CPUs, one a worker and all CPUs in them, of whole cores while there are enough of these."""
    units = _group(cpus, cores)
    if len(units) < n_workers:
        units = [[n] for n in cpus]
    is_even = len({len(unit) for unit in units}) == 1
    sets = []
    start = 0
    for n_units in _deal(len(units), n_workers) if is_even else _deal_uneven([len(unit) for unit in units], n_workers):
        sets.append(tuple(n for unit in units[start : start + n_units] for n in unit))
        start += n_units
    return sets


def _deal_uneven(sizes: list[int], n_workers: int) -> list[int]:
    """How many of these cores each worker has, in their order: what brings it nearest to an even part of those left."""
    counts = []
    at = 0
    n_left = sum(sizes)
    for workers_left in range(n_workers, 0, -1):
        start, size = at, 0
        while len(sizes) - at >= workers_left and (
            at == start or (2 * size + sizes[at]) * workers_left <= 2 * n_left  # not past the middle of the next core
        ):
            size += sizes[at]
            at += 1
        n_left -= size
        counts.append(at - start)
    return counts


def _group(cpus: Sequence[int], cores: Sequence[Sequence[int]]) -> list[list[int]]:
    """CPUs that follow each other and are of one core, together."""
    core_of = {n: i for i, core in enumerate(cores) for n in core}
    units: list[list[int]] = []
    for n in cpus:
        if units and n in core_of and core_of[n] == core_of.get(units[-1][-1]):
            units[-1].append(n)
        else:
            units.append([n])
    return units


def _spread(own: tuple[int, ...], cores: Sequence[Sequence[int]], count: int) -> tuple[int, ...]:
    """So many of a worker's CPUs: the first of each of its cores, then the second ones."""
    ranked = [(rank, n) for unit in _group(own, cores) for rank, n in enumerate(unit)]
    chosen = {n for _, n in sorted(ranked, key=lambda pair: pair[0])[:count]}  # a stable sort
    return tuple(n for n in own if n in chosen)


def _overlap(cpus: Sequence[int], n_workers: int, size: int) -> list[tuple[int, ...]]:
    """Sets of `size` CPUs that overlap evenly: runs whose starts are spread evenly over the ring of CPUs.

    Starts are multiples of what divides both the size and the CPUs: pairs of CPUs begin where siblings do.
    """
    n_cpus = len(cpus)
    step = math.gcd(n_cpus, size)
    starts = [i * (n_cpus // step) // n_workers * step for i in range(n_workers)]
    return [tuple(cpus[(start + k) % n_cpus] for k in range(size)) for start in starts]
