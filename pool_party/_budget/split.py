"""Divides CPUs and threads among workers. Pure functions: nothing here reads the machine's state."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from pool_party._ground.records import NamedTuple

THREADS_MAX = 1 << 16  # per worker; guess: more CPUs than a machine has, fewer threads than the kernel allows


class WorkerBudget(NamedTuple):
    """A worker's budget of threads. A policy of your own returns one for each worker.

    Args:
        n_threads: The number of threads that native libraries may use in the worker's tasks, from 1 to 65,536.
        cpus: The numbers of the CPUs on which they run, which must be some of the pool's.

    Guarantees:
        It is a tuple, and never changes. The pool rejects values out of range; this class does not.
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
    """Return a budget, with CPUs out of `cpus`, for each worker.

    `cpus` must be in topology order (`Topology.usable`). `cores` are the groups of CPUs that share a core
    (`Topology.cores`); CPUs in them that are not in `cpus` are ignored. A CPU in no group is a core of its own.

    With C CPUs and p workers, there are T = round(C * oversubscription) threads to distribute. Guarantees:

    - Every worker has a thread and a CPU. If T >= p, the threads add up to T.
    - p <= C: the workers' CPUs are contiguous runs of `cpus`, are disjoint, and cover all CPUs. With at most one worker
      per core, no two workers share a core; with at most two siblings per core, the sets differ in size by no more than
      one core. If all cores have the same size, left-over cores go to the first workers. With more workers than cores,
      CPUs are dealt singly, and left-over ones go to the first workers.
    - p > C: each worker has one CPU, in the order of the workers. The numbers of workers on two CPUs differ by at most
      one.
    - Threads are dealt evenly, and left-over ones go to the first workers. If whole cores make the sets uneven, threads
      are dealt in proportion to the sets. Without oversubscription and with p <= C each worker has as many threads as
      CPUs; with oversubscription below 1 it never has more threads than CPUs.

    `threads_per_worker` gives each worker that many threads, k, and `oversubscription` is ignored. If p * k <= C, each
    worker has k CPUs of its own. They are taken from its set as above, from different cores as far as possible. Two
    workers share a core only if whole cores would leave a worker with fewer than k CPUs. If p * k > C, each worker has
    min(k, C) neighbouring CPUs (the first CPU is a neighbour of the last), and the numbers of workers on two CPUs
    differ by at most one.

    Raises ValueError if a number is not positive or there are no CPUs, and TypeError if a value is not a number.
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
    """Return how many threads may run on this many CPUs. Raises ValueError and TypeError as `split`."""
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
    """Deal threads to sets of CPUs, at least one each: evenly, or in proportion to uneven sizes."""
    n_cpus = sum(sizes)
    if sizes == _deal(n_cpus, len(sizes)):
        return _deal(n_threads, len(sizes))
    # With fewer threads than CPUs a small set could get none. So each set gets one first, and counts one CPU less.
    first = int(n_threads < n_cpus)
    rest, n_cpus = n_threads - first * len(sizes), n_cpus - first * len(sizes)
    parts = [divmod(rest * (size - first), n_cpus) for size in sizes]
    n_left = rest - sum(part for part, _ in parts)
    neediest = sorted(range(len(sizes)), key=lambda i: -parts[i][1])[:n_left]  # the sort is stable
    return [first + part + (i in neediest) for i, (part, _) in enumerate(parts)]


# ---- CPUs ------------------------------------------------------------------


def _partition(cpus: Sequence[int], n_workers: int, cores: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Divide the CPUs into contiguous runs, one per worker: of whole cores while there are enough of them."""
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
    """Return how many cores, in order, each worker gets: the number that comes closest to an even part of the rest."""
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
    """Group adjacent CPUs that are on the same core."""
    core_of = {n: i for i, core in enumerate(cores) for n in core}
    units: list[list[int]] = []
    for n in cpus:
        if units and n in core_of and core_of[n] == core_of.get(units[-1][-1]):
            units[-1].append(n)
        else:
            units.append([n])
    return units


def _spread(own: tuple[int, ...], cores: Sequence[Sequence[int]], count: int) -> tuple[int, ...]:
    """Choose `count` of a worker's CPUs: the first of each of its cores, then the second ones."""
    ranked = [(rank, n) for unit in _group(own, cores) for rank, n in enumerate(unit)]
    chosen = {n for _, n in sorted(ranked, key=lambda pair: pair[0])[:count]}  # the sort is stable
    return tuple(n for n in own if n in chosen)


def _overlap(cpus: Sequence[int], n_workers: int, size: int) -> list[tuple[int, ...]]:
    """Return sets of `size` CPUs that overlap evenly: runs whose starts are evenly spaced on the ring of CPUs.

    Starts are multiples of the greatest common divisor of both numbers, so that pairs of CPUs begin with a sibling
    pair.
    """
    n_cpus = len(cpus)
    step = math.gcd(n_cpus, size)
    starts = [i * (n_cpus // step) // n_workers * step for i in range(n_workers)]
    return [tuple(cpus[(start + k) % n_cpus] for k in range(size)) for start in starts]
