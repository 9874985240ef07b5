"""Pools that open and close, tasks, forks, kills, and limits that the user sets and removes, in any order.

After each step every task must have what its budget and the user's limits allow, and the parent what it should. argv:
kind, number of examples, and "random" for new examples each time.
"""

import multiprocessing
import os
import signal
import sys

import gates
import tasks
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from threadpoolctl import threadpool_limits

from pool_party import ComposablePool, _native

_native.pretend_running(0)  # policies that lend then assume that all CPUs are idle, whatever else runs here

N_CPUS, N_WORKERS = 4, 2
ENOUGH = 1000  # more than any count
COUNTS = st.integers(1, 5)


class Actor:
    """A task that follows commands."""

    def __init__(self):
        self.here, self.there = multiprocessing.Pipe()
        self.result = None  # the task's, while it runs
        self.blocks = []  # the counts of the blocks that are open in it

    def ask(self, *command):
        self.here.send(command)
        assert self.here.poll(20), command
        return self.here.recv()


ACTORS = [Actor() for _ in range(N_WORKERS)]  # inherited by processes


def act(i):
    there, blocks = ACTORS[i].there, []
    there.send("here")
    while True:
        name, *args = there.recv()
        if name == "enter":
            blocks.append(threadpool_limits(*args))
            blocks[-1].__enter__()
        elif name == "leave":
            blocks.pop().__exit__(None, None, None)
        there.send(os.getpid() if name == "pid" else tasks.openblas_count())
        if name == "end":
            return


class Limits(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.pool = None
        self.blocks = []  # the main thread's blocks: count, block, and whether a pool was open when it was entered
        self.base = FOUND
        self.lends = False

    # ---- pools and tasks ----

    @precondition(lambda self: self.pool is None)
    @rule(lends=st.booleans())
    def open(self, lends):
        self.lends = lends
        policy = "dynamic" if lends else "static"
        self.pool = ComposablePool(N_WORKERS, kind=KIND, policy=policy, context=CONTEXT)
        self.pool.map(tasks.openblas_count, range(4), 1)

    @precondition(lambda self: self.pool is not None)
    @rule()
    def close(self):
        for actor in ACTORS:
            self.end(actor)
        self.pool.close()
        self.pool.join()
        self.pool = None

    @precondition(lambda self: self.pool is not None)
    @rule(i=st.integers(0, N_WORKERS - 1))
    def start_or_end(self, i):
        if ACTORS[i].result is not None:
            return self.end(ACTORS[i])
        ACTORS[i].result = self.pool.apply_async(act, (i,))
        assert ACTORS[i].here.poll(20) and ACTORS[i].here.recv() == "here"

    def end(self, actor):
        if actor.result is not None:
            while actor.blocks:
                self.leave_in(actor)
            actor.ask("end")
            actor.result.get(20)
            actor.result = None

    @precondition(lambda self: KIND == "process")
    @rule(i=st.integers(0, N_WORKERS - 1))
    def kill(self, i):
        """The task and its blocks are lost. Another worker replaces it."""
        actor = ACTORS[i]
        if actor.result is not None:
            os.kill(actor.ask("pid"), signal.SIGKILL)
            actor.result.wait(20)
            assert not actor.result.successful()
            actor.result, actor.blocks = None, []

    @precondition(lambda self: self.pool is not None and any(actor.result is None for actor in ACTORS))
    @rule()
    def map(self):
        self.pool.map(tasks.square, range(10), 1)

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
        self.blocks.append((n, threadpool_limits(n).__enter__(), is_seen))

    @precondition(lambda self: self.blocks)
    @rule()
    def leave(self):
        self.blocks.pop()[1].__exit__(None, None, None)

    @precondition(lambda self: not self.blocks)
    @rule(n=COUNTS)
    def call(self, n):
        threadpool_limits(n)
        self.base = n

    @rule(i=st.integers(0, N_WORKERS - 1), n=COUNTS)
    def enter_in_task(self, i, n):
        if ACTORS[i].result is not None:
            ACTORS[i].ask("enter", n)
            ACTORS[i].blocks.append(n)

    @rule(i=st.integers(0, N_WORKERS - 1))
    def leave_in_task(self, i):
        if ACTORS[i].blocks:
            self.leave_in(ACTORS[i])

    def leave_in(self, actor):
        actor.ask("leave")
        actor.blocks.pop()

    # ---- what must hold ----

    def innermost(self, *stacks):
        """The least of the innermost blocks; 0 if there is none."""
        return min((stack[-1] for stack in stacks if stack), default=0)

    def unseen(self):
        """What the user has set for the process. A block that was entered without an open pool counts like a call."""
        return next((n for n, _, is_seen in reversed(self.blocks) if not is_seen), self.base)

    def users(self, *stacks):
        """The most that the user allows where these blocks are known."""
        return self.innermost(*stacks) or (ENOUGH if self.unseen() == FOUND else self.unseen())

    @invariant()
    def all_have_what_they_should(self):
        running = [actor for actor in ACTORS if actor.result is not None]
        budget = N_CPUS // (len(running) or 1) if self.lends else N_CPUS // N_WORKERS
        main = [n for n, _, is_seen in self.blocks if is_seen]
        everywhere = [main, *(actor.blocks for actor in ACTORS)]
        for actor in running:
            if KIND == "thread":
                wanted = min(budget, self.users(*everywhere))
            else:
                wanted = min(budget, self.users(main), self.innermost(actor.blocks) or ENOUGH)
            gates.wait_until(lambda: set(actor.ask("count")) == {wanted}, f"a task has {wanted}", timeout=20)  # noqa: B023
        if KIND == "process":
            expect_here(self.innermost(main) or self.unseen())
        elif not running:
            expect_here(self.innermost(*everywhere) or self.unseen())

    def teardown(self):
        while self.blocks:
            self.leave()
        if self.pool is not None:
            self.close()
        threadpool_limits(FOUND)
        expect_here(FOUND)


def expect_here(n):
    """The parent must have this count as soon as the workers are idle.

    A worker that has just started may become active once more.
    """
    gates.wait_until(
        lambda: _native.process_limit() == 0 and set(tasks.openblas_count()) == {n},
        f"the parent has {n}",
        timeout=20,
    )


def main():
    global KIND, CONTEXT, FOUND
    KIND, n_examples = sys.argv[1], int(sys.argv[2])
    CONTEXT = multiprocessing.get_context("fork")
    os.environ["POOL_PARTY_CPU_COUNT"] = str(N_CPUS)
    (FOUND,) = set(tasks.openblas_count())
    with ComposablePool(1, kind="thread") as pool:  # the count that a pool finds first is the library's own choice
        pool.apply(tasks.square, (3,))
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
    import limits_machine  # so that workers import its functions, and get no copies of the pipes

    limits_machine.main()
