"""Objects whose finalizers use pools, for tests/isolated/finalizing.py. Workers import this module, too."""

import contextlib
import gc
import itertools
import multiprocessing
import random
from concurrent.futures import CancelledError

from pool_party import PoolPartyError

# What a finalizer's use of a pool may raise. All else is a violation.
EXPECTED = (PoolPartyError, CancelledError, TimeoutError, multiprocessing.TimeoutError)


hooks = []  # what pickling and unpickling call in the program


class Reduced:
    """Pickling it calls the hooks."""

    def __reduce__(self):
        run_hooks()
        return int, ()


class Made:
    """Unpickling it calls the hooks."""

    def __reduce__(self):
        return run_hooks, ()


def run_hooks():
    for hook in hooks:
        hook()
    return 0


def make(_):
    return Made()


class Plain:
    """What workers elsewhere get in the place of a trap."""

    def work(self, *args):
        return len(args)

    __call__ = note = work


class Trap(Plain):
    """An object that a user passes to a pool. Its finalizer uses that pool, or another one."""

    def __init__(self, storm):
        self.verb = storm.draw()
        self.me = self if storm.rng.random() < 0.4 else None  # then only the garbage collector finds it
        self.storm = storm  # last: the end of a pool may interrupt this

    def work(self, *args):
        if self.storm.rng.random() < 0.1:
            raise TrapError(self.storm)
        return Trap(self.storm) if self.storm.rng.random() < 0.5 else args

    def note(self, outcome):
        if self.storm.rng.random() < 0.2:
            raise TrapError(self.storm)

    __call__ = work

    def __reduce__(self):
        return Plain, ()

    def __del__(self):
        finalize(self)


class TrapError(Exception):
    """An exception of a task."""

    def __init__(self, storm):
        super().__init__()
        self.verb = storm.draw()
        self.storm = storm  # last: the end of a pool may interrupt this

    def __reduce__(self):
        return ValueError, ("in a worker",)

    def __del__(self):
        finalize(self)


def initialize(trap):
    """An initializer, of which each worker keeps the argument."""


def finalize(trap):
    storm = getattr(trap, "storm", None)
    if storm is None:
        return
    storm.n_finalized += 1
    try:
        with contextlib.suppress(*EXPECTED):
            trap.verb(storm)
    except ValueError as error:
        if "running" not in str(error):  # "Pool is still running"
            storm.violations.append(error)
    except SystemExit:
        raise  # the end of another pool interrupts the task that this finalizer is a part of
    except BaseException as error:
        storm.violations.append(error)


class Storm:
    """One program: some pools, and traps that use them."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.pools = []
        self.results = []
        self.violations = []
        self.n_finalized = 0
        self.ends = True  # whether finalizers may end pools

    def draw(self):
        """Choose what a finalizer does."""
        rng = self.rng
        n, kind = rng.randrange(3), rng.random()
        if kind < 0.25 or not self.ends:
            return lambda storm: storm.submit(n)
        if kind < 0.4:
            return lambda storm: storm.cancel(n)
        verbs = rng.choice(ENDS)
        return lambda storm: storm.end(n, verbs)

    def submit(self, n):
        pool = self.pools[n % len(self.pools)]
        self.results.append(pool.apply_async(abs, (n,)) if hasattr(pool, "apply_async") else pool.submit(abs, n))

    def cancel(self, n):
        for result in self.results[-1 - n :]:
            result.cancel()

    def end(self, n, verbs):
        pool = self.pools[n % len(self.pools)]
        for verb in verbs:
            if hasattr(pool, "apply_async"):
                getattr(pool, verb)()
            elif verb == "terminate":
                pool.terminate_workers()
            else:
                pool.shutdown(wait=verb == "join", cancel_futures=verb == "terminate")


ENDS = (("close",), ("terminate",), ("close", "join"), ("terminate", "join"), ("join",), ("terminate", "close", "join"))


class Inputs:
    """An iterator over traps that is one itself."""

    def __init__(self, storm, n):
        self.storm = storm
        self.verb = storm.draw()
        self.left = itertools.islice(itertools.count(), n)

    def __iter__(self):
        return self

    def __next__(self):
        next(self.left)
        return Trap(self.storm)

    def __del__(self):
        finalize(self)


def act(storm, n_steps):
    """Use the pools in random ways, in one of the program's threads."""
    rng = storm.rng
    for _ in range(n_steps):
        pool = rng.choice(storm.pools)
        with contextlib.suppress(*EXPECTED):
            step = rng.choice(POOL_STEPS if hasattr(pool, "apply_async") else EXECUTOR_STEPS)
            step(storm, pool)


def apply(storm, pool):
    callback = Trap(storm).note if storm.rng.random() < 0.5 else None
    keep(storm, pool.apply_async(Trap(storm).work, (Trap(storm),), {}, callback, Trap(storm)))


def map_(storm, pool):
    items = [Trap(storm) for _ in range(4)]
    keep(storm, pool.map_async(Trap(storm), items, storm.rng.choice([1, 3]), Trap(storm).note))


def imap(storm, pool):
    results = (pool.imap if storm.rng.random() < 0.5 else pool.imap_unordered)(Trap(storm), Inputs(storm, 5))
    for _ in range(storm.rng.randrange(6)):
        with contextlib.suppress(ValueError, StopIteration, TrapError):
            results.next(10)


def submit(storm, pool):
    future = pool.submit(Trap(storm).work, Trap(storm))
    if storm.rng.random() < 0.5:
        future.add_done_callback(Trap(storm).note)
    keep(storm, future)


def executor_map(storm, pool):
    results = pool.map(Trap(storm), Inputs(storm, 5), buffersize=2, timeout=10)
    with contextlib.suppress(TrapError, ValueError):
        list(itertools.islice(results, storm.rng.randrange(6)))


def keep(storm, result):
    """Keep a result, with a trap that goes with it, drop it, cancel it, or wait for it."""
    result.trap = Trap(storm)
    way = storm.rng.randrange(4)
    if way == 0:
        storm.results.append(result)
    elif way == 1:
        result.cancel()
    elif way == 2:
        with contextlib.suppress(ValueError, TrapError, TypeError):
            (getattr(result, "get", None) or result.result)(10)
    else:
        storm.results[:-3] = []


def collect(storm, pool):
    gc.collect()


POOL_STEPS = (apply, apply, map_, imap, collect)
EXECUTOR_STEPS = (submit, submit, executor_map, collect)
