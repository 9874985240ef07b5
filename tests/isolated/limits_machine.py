"""Pools that open and close, tasks, forks, kills, libraries that are loaded, and limits that the user sets and removes.

They happen in any order. After each step every task must have what its budget and the user's limits allow, and the
parent what it should. argv: kind or start method, number of examples, and "random" for new examples each time.
"""

import ctypes
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile

import gates
import tasks
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from threadpoolctl import threadpool_limits

from pool_party import ComposablePool, _native
from pool_party._budget import libraries, limiter

_native.pretend_running(0)  # policies that lend then assume that all CPUs are idle, whatever else runs here

N_CPUS, N_WORKERS = 4, 2
ENOUGH = 1000  # more than any count
N_COPIES = 3  # of OpenBLAS that are loaded into the parent, at most; each stays
COUNTS = st.integers(1, 5)


class Actor:
    """A task that follows commands."""

    def __init__(self):
        self.here, self.there = multiprocessing.Pipe()
        self.result = None  # the task's, while it runs
        self.blocks = []  # the blocks that are open in it: each one's count, and how many libraries there were
        self.n_noticed = 0  # libraries in its process that pools know

    def ask(self, *command):
        self.here.send(command)
        return self.answer()

    def answer(self):
        assert self.here.poll(40)
        return self.here.recv()


ACTORS = [Actor() for _ in range(N_WORKERS)]


def act(there):
    """The task: it answers with the counts of the libraries that it would use."""
    blocks = []
    there.send(counts())
    while True:
        name, *args = there.recv()
        if name == "enter":
            blocks.append(threadpool_limits(*args))
            blocks[-1].__enter__()
        elif name == "leave":
            blocks.pop().__exit__(None, None, None)
        elif name == "load":
            load_copy()
        there.send(os.getpid() if name == "pid" else counts())
        if name == "end":
            return


def copies():
    return sorted(os.path.join(os.environ["COPIES"], name) for name in os.listdir(os.environ["COPIES"]))


def make_copies():
    """Files that are loaded as libraries of their own, each with its threads and its count."""
    path = next(found.path for found in libraries.find() if found.name == "openblas")
    for n in range(N_COPIES):
        shutil.copy(path, os.path.join(os.environ["COPIES"], f"libscipy_openblas-{n}.so"))


def counts():
    """Of each OpenBLAS that the calling task uses, in the order in which they were loaded."""
    import numpy  # noqa: F401  # so that there is one

    if own := tasks.own_blas():
        return own
    found = {library.path: library for library in libraries.find() if library.name == "openblas"}
    paths = [path for path in found if path not in copies()] + [path for path in copies() if path in found]
    return [_native.call_getter(found[path].getter) for path in paths]


def load_copy():
    """Loads one more, if there are any left for this process."""
    for path in copies()[len(counts()) - 1 :][:1]:
        ctypes.CDLL(path)


class Limits(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.pool = None
        self.blocks = []  # the main thread's: each one's count, itself, and whether a pool has seen it being entered
        self.base = [FOUND] * (1 + N_COPIES)  # each library's, without blocks
        self.n_libraries = self.n_noticed = len(counts())  # in this process
        self.lends = False

    # ---- pools and tasks ----

    @precondition(lambda self: self.pool is None)
    @rule(lends=st.booleans())
    def open(self, lends):
        self.lends = lends
        policy = "dynamic" if lends else "static"
        self.pool = ComposablePool(N_WORKERS, kind=KIND, policy=policy, context=CONTEXT)
        self.pool.map(tasks.openblas_count, range(4), 1)
        self.notice()

    def notice(self):
        """The user makes a limiter, or a task begins in this process: from here on pools know of all its libraries."""
        limiter.refresh()
        self.n_noticed = self.n_libraries

    @precondition(lambda self: self.pool is not None)
    @rule()
    def close(self):
        for actor in ACTORS:
            self.end(actor)
        self.notice()
        self.pool.close()
        self.pool.join()
        self.pool = None

    @precondition(lambda self: self.pool is not None)
    @rule(i=st.integers(0, N_WORKERS - 1))
    def start_or_end(self, i):
        if ACTORS[i].result is not None:
            return self.end(ACTORS[i])
        ACTORS[i].result = self.pool.apply_async(act, (ACTORS[i].there,))
        ACTORS[i].n_noticed = len(ACTORS[i].answer())
        if KIND == "thread":
            self.n_noticed = self.n_libraries

    def end(self, actor):
        if actor.result is not None:
            while actor.blocks:
                self.leave_in(actor)
            actor.ask("end")
            actor.result.get(40)
            actor.result = None

    @precondition(lambda self: KIND == "process")
    @rule(i=st.integers(0, N_WORKERS - 1))
    def kill(self, i):
        """The task and its blocks are lost. Another worker replaces it."""
        actor = ACTORS[i]
        if actor.result is not None:
            os.kill(actor.ask("pid"), signal.SIGKILL)
            actor.result.wait(40)
            assert not actor.result.successful()
            actor.result, actor.blocks = None, []

    @precondition(lambda self: self.pool is not None and any(actor.result is None for actor in ACTORS))
    @rule()
    def map(self):
        self.pool.map(tasks.square, range(10), 1)

    @rule()
    def load(self):
        """What the parent loads is limited from the next task on, or from when the user next makes a limiter."""
        load_copy()
        self.n_libraries = len(counts())
        if self.pool is None:
            self.notice()

    @precondition(lambda self: KIND != "interp")  # there it is one of the process's, which the task does not use
    @rule(i=st.integers(0, N_WORKERS - 1))
    def load_in_task(self, i):
        if ACTORS[i].result is not None:
            ACTORS[i].ask("load")
            if KIND == "thread":
                self.n_libraries = len(counts())

    @precondition(lambda self: KIND != "interp")  # pool_party lets nobody fork while interpreters live
    @rule()
    def fork(self):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

    # ---- the user ----

    @rule(n=COUNTS)
    def enter(self, n):
        is_seen = self.pool is not None or any(is_seen for *_, is_seen in self.blocks)
        self.blocks.append((n, self.n_libraries, threadpool_limits(n).__enter__(), is_seen))
        self.n_noticed = self.n_libraries

    @precondition(lambda self: self.blocks)
    @rule()
    def leave(self):
        self.blocks.pop()[2].__exit__(None, None, None)

    @precondition(lambda self: not self.blocks)
    @rule(n=COUNTS)
    def call(self, n):
        threadpool_limits(n)
        self.base[: self.n_libraries] = [n] * self.n_libraries
        self.n_noticed = self.n_libraries

    @precondition(lambda self: KIND != "interp")
    @rule(i=st.integers(0, N_WORKERS - 1), n=COUNTS)
    def enter_in_task(self, i, n):
        actor = ACTORS[i]
        if actor.result is not None:
            actor.n_noticed = len(actor.ask("enter", n))
            actor.blocks.append((n, actor.n_noticed))
            if KIND == "thread":
                self.n_noticed = self.n_libraries

    @rule(i=st.integers(0, N_WORKERS - 1))
    def leave_in_task(self, i):
        if ACTORS[i].blocks:
            self.leave_in(ACTORS[i])

    def leave_in(self, actor):
        actor.ask("leave")
        actor.blocks.pop()

    # ---- what must hold ----

    def innermost(self, k, *stacks):
        """The least of the innermost blocks that include library k; 0 if there is none."""
        found = ([n for n, n_libraries, *_ in stack if k < n_libraries] for stack in stacks)
        return min((counts[-1] for counts in found if counts), default=0)

    def unseen(self, k):
        """What the user has set of it for the process. A block that was entered without an open pool is like a call."""
        return self.innermost(k, [block for block in self.blocks if not block[3]]) or self.base[k]

    def users(self, k, *stacks):
        """The most that the user allows where these blocks are known."""
        return self.innermost(k, *stacks) or (ENOUGH if self.unseen(k) == FOUND else self.unseen(k))

    @invariant()
    def all_have_what_they_should(self):
        running = [actor for actor in ACTORS if actor.result is not None]
        budget = N_CPUS // (len(running) or 1) if self.lends else N_CPUS // N_WORKERS
        main = [block for block in self.blocks if block[3]]
        in_tasks = [actor.blocks for actor in ACTORS]
        granted = min(budget, *(self.users(k, main) for k in range(self.n_noticed)))  # to those that share no library
        for actor in running:
            if KIND == "thread":
                wanted = [
                    min(budget, self.users(k, main), self.innermost(k, *in_tasks) or ENOUGH)
                    for k in range(self.n_noticed)
                ]
            elif KIND == "interp":
                wanted = [granted]
            else:
                wanted = [min(granted, self.innermost(k, actor.blocks) or ENOUGH) for k in range(actor.n_noticed)]
            expect(lambda: actor.ask("count"), wanted, "a task")  # noqa: B023
        if KIND == "process":
            expect_here([self.innermost(k, main) or self.unseen(k) for k in range(self.n_libraries)])
        elif not running:
            expect_here([self.innermost(k, main, *in_tasks) or self.unseen(k) for k in range(self.n_libraries)])

    def teardown(self):
        while self.blocks:
            self.leave()
        if self.pool is not None:
            self.close()
        threadpool_limits(FOUND)
        expect_here([FOUND] * self.n_libraries)


def expect(ask, wanted, who):
    """Wait for these counts. `wanted` has none for libraries that nobody has noticed yet, which may have any count."""
    seen = []

    def is_so():
        seen[:] = ask()
        return seen[: len(wanted)] == wanted

    try:
        gates.wait_until(is_so, "", timeout=20)
    except AssertionError:
        raise AssertionError(f"{who} has {seen}, not {wanted}") from None


def expect_here(wanted):
    """The parent must have these counts as soon as the workers are idle.

    A worker that has just started may become active once more.
    """
    expect(lambda: counts() if _native.process_limit() == 0 else [], wanted, "the parent")


def main():
    global KIND, CONTEXT, FOUND
    what, n_examples = sys.argv[1], int(sys.argv[2])
    KIND = what if what in ("thread", "interp") else "process"
    CONTEXT = multiprocessing.get_context(what if what in ("forkserver", "spawn") else "fork")
    os.environ["POOL_PARTY_CPU_COUNT"] = str(N_CPUS)
    (FOUND,) = set(tasks.openblas_count())
    with ComposablePool(1, kind="thread") as pool:  # the count that a pool finds first is the library's own choice
        pool.apply(tasks.square, (3,))
    with tempfile.TemporaryDirectory() as os.environ["COPIES"]:
        make_copies()
        run(n_examples)


def run(n_examples):
    run_state_machine_as_test(
        Limits,
        settings=settings(
            max_examples=n_examples,
            stateful_step_count=25,
            deadline=None,
            database=None,
            derandomize=sys.argv[3:] != ["random"],
            phases=[Phase.generate],  # examples that have failed may have left waiting tasks, so they are not repeated
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


if __name__ == "__main__":
    import limits_machine  # so that workers import its functions by name

    limits_machine.main()
