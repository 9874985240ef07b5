"""Random programs of threads, forks, nested pools and regions, under every policy. Workers are killed and stopped.

`python gated_random.py run seed`: nothing waits for ever, every value is right, and all tokens come back.
"""

import contextlib
import os
import pathlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import probe
from probe import TIMEOUT_S, ComposablePool, gates, signal

from pool_party._budget.policies import for_kind

POLICIES = ("exclusive", "counting", "exclusive", "counting", "static", "dynamic", None)
SIZE = 260  # order of a matrix that is large enough for a parallel region


def make_options(rng, scopes, kinds):
    kind = rng.choice(kinds)
    policy = for_kind(rng.choice(POLICIES), kind)
    options = {"kind": kind, "policy": policy, "scope": rng.choice(scopes)}
    if kind == "process":
        options["context"] = rng.choice(("forkserver", "spawn"))  # a fork beside threads may hang by itself
    return options


def make_program(rng, scopes, depth=0):
    """What one task does, as nested tuples."""
    if depth == 2 or rng.random() < 0.35:
        return ("region", rng.randint(1, 3))
    parts = [make_program(rng, scopes, depth + 1) for _ in range(rng.randint(1, 3))]
    how = rng.choice(("threads", "pool", "then", "fork" if depth == 0 else "then"))
    kinds = ("thread", "process")
    return (how, parts, make_options(rng, scopes, kinds) if how == "pool" else None)


def open_pool(n, *, context=None, **options):
    from multiprocessing import get_context

    return ComposablePool(n, context=get_context(context) if context else None, **options)


def region(n):
    import numpy as np

    a = np.full((SIZE, SIZE), 2.0)
    for _ in range(n):
        if (a @ a)[-1, -1] != 4.0 * SIZE:
            raise AssertionError("a wrong product")
    return 1


def execute(program):
    """Do what the program says. Return how many of its regions are right."""
    how, what, *rest = program
    if how == "region":
        return region(what)
    if how == "then":
        return sum(map(execute, what))
    if how == "threads":
        with ThreadPoolExecutor(2) as executor:
            return sum(executor.map(execute, what))
    if how == "fork":
        return execute_in_child(what)
    with open_pool(2, **rest[0]) as pool:
        return sum(pool.map(execute, what, 1))


def execute_in_child(programs):
    """Compute regions only in the child, since a forked child must not open pools."""
    flat = count(("then", programs))
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            region(1)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (0, -signal.SIGKILL)
    return flat


def count(program):
    return 1 if program[0] == "region" else sum(map(count, program[1]))


def load_openmp(_):
    """Load a library without a callback."""
    import ctypes

    import sklearn

    for path in pathlib.Path(sklearn.__file__).parents[1].glob("scikit_learn.libs/libgomp*"):
        ctypes.CDLL(str(path))


class Disturber:
    """Stops and kills processes of this program at random."""

    def __init__(self, seed, may_kill):
        self._rng = random.Random(seed)
        self._may_kill = may_kill
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._over.wait(self._rng.uniform(0.02, 0.4)):
            pids = [pid for pid in probe.descendants(os.getpid()) if is_worker(pid)]
            if pids and self._rng.random() < 0.7:
                self._stop(self._rng.choice(pids))
            elif pids and self._may_kill:
                send(self._rng.choice(pids), signal.SIGKILL)

    def _stop(self, pid):
        send(pid, signal.SIGSTOP)
        self._over.wait(self._rng.uniform(0.01, 0.6))
        send(pid, signal.SIGCONT)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc_info):
        self._over.set()
        self._thread.join()


def is_worker(pid):
    """Whether a process is a worker, and not the fork server or the resource tracker."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
    except OSError:
        return False
    return b"resource_tracker" not in line and (b"forkserver" not in line or has_threads(pid))


def has_threads(pid):
    """A fork server has one thread; a worker that computes has more."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def run_pool(seed, scopes, kinds, allowed):
    """If the first workers are killed, the pool may fail to open, which counts like the loss of tasks."""
    with contextlib.suppress(*allowed):
        use_pool(seed, scopes, kinds, allowed)


def use_pool(seed, scopes, kinds, allowed):
    rng = random.Random(seed)
    options = make_options(rng, scopes, kinds)
    programs = [make_program(rng, scopes) for _ in range(rng.randint(2, 5))]
    if options["kind"] == "interp":  # an interpreter may not fork, and opens no process pools here
        programs = [("region", 2) for _ in programs]
    elif options["kind"] == "thread":  # a child may inherit a lock of OpenBLAS or of an import
        programs = [("then", program[1], None) if program[0] == "fork" else program for program in programs]
    with open_pool(2, **options) as pool:
        if rng.random() < 0.6 and options["kind"] == "process":
            settle(pool.map_async(load_openmp, range(4), 1), allowed)
        results = [pool.apply_async(execute, (program,)) for program in programs]
        for result, program in zip(results, programs, strict=True):
            got = settle(result, allowed)
            assert got in (None, count(program)), (got, program)
        enforcer = pool._engine._workers.enforcer
        gate = enforcer and enforcer.gate
        if gate:
            gates.wait_until(lambda: (gate.n_free, gate.n_waiting) == (gate.n_tokens, 0), f"all tokens: {options}")


def settle(result, allowed):
    try:
        return result.get(4 * TIMEOUT_S)
    except allowed:
        return None


def run(seed, scope="pool", may_kill="yes"):
    from pool_party import InitializerFailed, WorkerLost

    rng = random.Random(int(seed))
    allowed = (WorkerLost, InitializerFailed, BrokenPipeError) if may_kill == "yes" else ()
    with Disturber(rng.random(), may_kill == "yes"), ThreadPoolExecutor(2) as executor:
        kinds = rng.choice((("thread", "process"), ("thread", "process"), ("process",), ("interp",)))
        calls = [executor.submit(run_pool, rng.random(), (scope,), kinds, allowed) for _ in range(rng.randint(1, 2))]
        for call in calls:
            call.result()
    print("ok")


if __name__ == "__main__":
    probe.main(globals(), hang_s=170)
