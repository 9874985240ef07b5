"""Tasks set limits of libraries in random ways, and leave some of them behind.

Within a task the count must be the smaller of its limit and its budget. No other task may notice, and after the pool
the main program must have the counts that it had before. argv: kind, number of programs for each policy, first seed,
and the names of more steps: "kmeans".
"""

import contextlib
import os
import random
import sys
import threading

os.environ["OPENBLAS_THREAD_TIMEOUT"] = "4"  # whoever waits for another thread sleeps: there are more than CPUs

import tasks

from pool_party import ComposablePool, _native
from pool_party._budget import libraries

KIND, N_PROGRAMS, FIRST, MORE = "thread", 1, 0, []  # from argv
N_CPUS, N_WORKERS, N_TASKS = 4, 2, 12
ANY = 1000  # more than any count
# options of the pool, and the least and the largest budget of an active worker
POLICIES = [
    ({"policy": "static"}, 2, 2),
    ({"policy": "dynamic"}, 2, 4),
    ({"threads_per_worker": 1}, 1, 1),
    ({"threads_per_worker": 2}, 2, 2),
]
NO_POLICY = ({"policy": None}, ANY, ANY)


class Stop(Exception):
    """A task's own error."""


class Task:
    """What a task has set so far, and whether the counts agree."""

    def __init__(self, kind, least, most):
        self.kind, self.least, self.most = kind, least, most
        self.is_shared = kind == "thread" or (kind == "interp" and least in (1, ANY))  # the library
        self.wanted = {}  # thread -> what it has set last; another thread may get its number
        self.here = threading.local()  # wanted: what this thread has set last
        self.owner = threading.get_ident()
        self.is_wild = False  # it has used a library's own function

    def check(self):
        if self.is_wild:
            return
        wanted = min(self.wanted.values(), default=ANY)
        for library in libraries.find():
            n = _native.call_getter(library.getter)
            if library.scope == "process":
                least = 1 if self.is_shared else min(wanted, self.least)
                assert least <= n <= min(wanted, self.most), (library.name, n, self.wanted, repr(vars(self)))
            elif self.owner == threading.get_ident() or (self.kind != "thread" and hasattr(self.here, "wanted")):
                wanted_here = getattr(self.here, "wanted", ANY)
                assert n <= min(wanted_here, self.most), (library.name, n, wanted_here, repr(vars(self)))
                assert n >= min(wanted_here, self.least) or self.least == ANY, (library.name, n, repr(vars(self)))

    def want(self, n):
        self.wanted[threading.get_ident()] = self.here.wanted = n

    def follow(self, steps):
        for name, *args in steps:
            getattr(self, name)(*args)
            self.check()

    def block(self, n, steps):
        from threadpoolctl import threadpool_limits

        before = self.wanted.get(threading.get_ident(), ANY)
        try:
            with threadpool_limits(n):
                self.want(n)
                self.check()
                self.follow(steps)
        finally:
            self.want(before)
            if sys.exception() is None or isinstance(sys.exception(), Stop):
                self.check()

    def call(self, n):
        from threadpoolctl import threadpool_limits

        threadpool_limits(n)
        self.want(n)

    def enter(self, n):
        """Enter a block that nobody leaves."""
        from threadpoolctl import threadpool_limits

        threadpool_limits(n).__enter__()
        self.want(n)

    def thread(self, steps):
        failed = []

        def run():
            try:
                self.follow(steps)
            except Stop:
                pass
            except BaseException as error:
                failed.append(error)

        started = threading.Thread(target=run)
        started.start()
        started.join()
        for error in failed:
            raise error

    def own_function(self, n):
        self.is_wild = True
        for library in libraries.find():
            tasks.set_threads(library, n)

    def multiply(self):
        import numpy as np

        assert (np.ones((40, 40)) @ np.ones((40, 40)))[0, 0] == 40

    def kmeans(self):
        import numpy as np
        from sklearn.cluster import KMeans

        data = np.random.default_rng(0).normal(size=(400, 4))
        assert KMeans(3, n_init=1, random_state=0).fit(data).inertia_ > 0

    def fail(self):
        raise Stop


def run(steps, imports, *terms):
    """The task. imports: what a limit is to reach must have been loaded before."""
    for name in imports:
        __import__(name)
    task = Task(*terms)
    task.check()
    with contextlib.suppress(Stop):
        task.follow(steps)
        return
    if steps[0][0] == "multiply":
        raise Stop  # the task fails


def steps_of(rng, names, depth=0):
    return [step_of(rng, rng.choice(names), names, depth) for _ in range(rng.randint(1, 3))]


def step_of(rng, name, names, depth):
    if name in ("call", "enter", "own_function"):
        return name, rng.choice((1, 2, 3, 4, 64))
    if name not in ("block", "thread"):
        return (name,)
    if depth == 3:
        return ("multiply",)
    if name == "block":
        return name, rng.choice((1, 2, 3, 4, 64)), steps_of(rng, names, depth + 1)
    if KIND == "thread":  # there such a thread is the program's
        names = [name for name in names if name not in ("call", "enter", "own_function")]
    return name, steps_of(rng, names, depth + 1)


def counts():
    import numpy  # noqa: F401

    return sorted((library.path, _native.call_getter(library.getter)) for library in libraries.find())


def run_pool(rng, limits, least, most):
    terms = ("threadpoolctl", "sklearn.cluster" if MORE else "numpy"), KIND, least, most
    names = ["block", "block", "call", "enter", "thread", "multiply", "fail", *MORE]
    with ComposablePool(N_WORKERS, kind=KIND, **limits) as pool:
        results = [pool.apply_async(run, (steps_of(rng, names), *terms)) for _ in range(N_TASKS)]
        for result in results:
            with contextlib.suppress(Stop):
                result.get(60)
        if limits != NO_POLICY[0]:  # one task at a time, since one that runs beside it would notice
            names.append("own_function")
        for _ in range(N_TASKS // 2):
            with contextlib.suppress(Stop):
                pool.apply(run, (steps_of(rng, names), *terms))
        pool.close()
        pool.join()


def programs():
    before = counts()
    policies = [*POLICIES, NO_POLICY] if KIND == "interp" else POLICIES
    policies = policies[1::2] if MORE else policies  # fewer, since each new worker imports scikit-learn
    for seed in range(FIRST, FIRST + N_PROGRAMS):
        for limits, least, most in policies:
            run_pool(random.Random(f"{KIND} {seed} {limits}"), limits, least, most)
            assert counts()[: len(before)] == before, (seed, limits, counts(), before)
    print(len(policies) * N_PROGRAMS * N_TASKS * 3 // 2, "tasks")


if __name__ == "__main__":
    import faulthandler

    import task_limits  # so that workers import its functions by name

    faulthandler.dump_traceback_later(500, exit=True)
    _native.pretend_running(0)  # policies that lend then assume that all CPUs are idle
    os.environ["POOL_PARTY_CPU_COUNT"] = str(N_CPUS)
    task_limits.KIND, task_limits.MORE = sys.argv[1], sys.argv[4:]
    task_limits.N_PROGRAMS, task_limits.FIRST = map(int, sys.argv[2:4])
    task_limits.programs()
    faulthandler.cancel_dump_traceback_later()
