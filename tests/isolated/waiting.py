"""Threads that a pool's end needs ask for that end: they get an error at once, and pool and program end nevertheless.

argv: the case, and the kind of workers. Each case prints what it saw.
"""

import asyncio
import contextlib
import gc
import os
import threading

import storms
from probe import TIMEOUT_S, ComposablePool, gates, main, tasks

from pool_party import CannotWait, ComposableExecutor, PoolPartyError, WorkerBudget


def saw(what):
    os.write(1, f"{what}\n".encode())  # at once, as several threads do this


def ask(pool, *verbs):
    """End a pool, and tell whether that was refused."""
    try:
        for verb in verbs:
            getattr(pool, verb)()
    except CannotWait as error:
        assert isinstance(error, RuntimeError) and "cannot join current thread" in str(error), error
        return "refused"
    return "ended"


class Owner:
    """The usual class with a pool of its own, which its destructor ends."""

    verbs = "terminate", "join"

    def __init__(self, kind, make=ComposablePool, **options):
        self.pool = make(1, kind=kind, **options)
        self.thread = threading.get_ident()

    def work(self, may_end=None):
        if may_end is not None:
            may_end.wait(TIMEOUT_S)
        return 1

    def __del__(self):
        where = "here" if threading.get_ident() == self.thread else "elsewhere"
        saw(f"{ask(self.pool, *self.verbs)} {where}")


class Closing(Owner):
    verbs = "close", "join"


class Shutting(Owner):
    verbs = ("shutdown",)


def is_over(engine):
    gates.wait_until(lambda: engine._ended.done and not engine._background.is_alive(), "the pool has ended", TIMEOUT_S)


# ---- the pool's own threads run a finalizer ----


def drop_in(held, run):
    """Have a thread of the pool drop the owner in a list, which refers to itself: `run` has `drop` called there."""
    held[0].me, engine = held[0], held[0].pool._engine
    is_dropped = threading.Event()

    def drop():
        if held:
            held.clear()
            gc.collect()
            is_dropped.set()

    gc.disable()
    run(engine, drop)
    assert is_dropped.wait(TIMEOUT_S)
    is_over(engine)


def background(kind):
    def run(engine, drop):
        attend = engine._attend
        engine._attend = lambda: (drop(), attend())
        engine._channel.notify()

    drop_in([Owner(kind)], run)


def balancer(kind):
    class Policy:
        drop = None

        def shares(self, state):
            if self.drop is not None:
                self.drop()
            return [WorkerBudget(1, state.cpus)] * len(state.own)

    policy = Policy()

    def run(engine, drop):
        policy.drop = drop
        engine._workers.enforcer.reconsider()

    held = [Owner(kind, policy=policy)]
    held[0].pool.apply(tasks.square, (2,))
    drop_in(held, run)


def supervisor(kind):
    held = [Owner(kind)]
    held[0].pool.apply(tasks.square, (2,), timeout_s=TIMEOUT_S)
    drop_in(held, lambda engine, drop: engine.supervisor._inbox.put(drop))


def callbacks(kind):
    """After a callback. During one it may wait: then another thread runs the others."""
    held = [Owner(kind)]
    held[0].pool.apply_async(tasks.square, (2,), {}, int).get()

    class Channel:
        def __init__(self, channel, drop):
            self.channel, self.drop = channel, drop

        def __getattr__(self, name):
            return getattr(self.channel, name)

        def next_deferred(self):
            self.drop()
            return self.channel.next_deferred()

    def run(engine, drop):
        engine._callbacks._channel = Channel(engine._channel, drop)
        held[0].pool.apply_async(tasks.square, (2,), {}, int)

    drop_in(held, run)


def lock(kind):
    """A thread of the program holds one of the locks that the pool's end takes."""

    def run(engine, drop):
        def hold():
            with engine._callbacks._changed:
                drop()

        threading.Thread(target=hold).start()

    drop_in([Owner(kind)], run)


def starting(kind):
    """The thread that drops the owner is amid a step of `threading`, as when the collector runs there."""

    def run(engine, drop):
        with threading._active_limbo_lock:
            drop()

    drop_in([Owner(kind)], run)


# ---- objects of calls ----


def bound_method(kind):
    for make in (Closing, Owner):
        owner, is_dropped = make(kind), threading.Event()
        engine, result = owner.pool._engine, owner.pool.apply_async(owner.work, (is_dropped,))
        del owner, result
        is_dropped.set()
        is_over(engine)
    owner, is_dropped = Shutting(kind, ComposableExecutor), threading.Event()
    engine, future = owner.pool._engine, owner.pool.submit(owner.work, is_dropped)
    del owner
    is_dropped.set()
    assert future.result(TIMEOUT_S) == 1
    del future
    is_over(engine)


def cancelled(kind):
    """A call that is cancelled had the last reference to the owner: that thread may wait."""
    owner = Shutting(kind, ComposableExecutor)
    gate, may_end = threading.Event(), threading.Event()
    engine = owner.pool._engine
    held = owner.pool.submit(lambda: (gate.set(), may_end.wait(TIMEOUT_S)))
    gate.wait(TIMEOUT_S)
    future = owner.pool.submit(owner.work)
    queued = [owner.pool.submit(abs, 1) for _ in range(2000)]  # more than the channel has room for
    del owner
    threading.Timer(0.1, may_end.set).start()
    assert future.cancel()
    held.result(TIMEOUT_S), [future.result(TIMEOUT_S) for future in queued]
    is_over(engine)


# ---- tasks, and what else runs the user's code ----


def task(kind):
    """In threads a task finds its own pool."""
    for verbs in (("close", "join"), ("close", "ajoin")):
        pool = ComposablePool(2, kind=kind)
        saw(f"{verbs[1]} {pool.apply_async(run_async, (pool, verbs)).get(TIMEOUT_S)}")
        is_over(pool._engine)
    for verbs in (("shutdown",), ("ashutdown",), ("__exit__",), ("__aexit__",)):
        executor = ComposableExecutor(2, kind=kind)
        saw(f"{verbs[0]} {executor.submit(run_async, executor, verbs).result(TIMEOUT_S)}")
        is_over(executor._engine)


def run_async(pool, verbs):
    def call(verb):
        found = getattr(pool, verb)(*(None, None, None) if verb.endswith("exit__") else ())
        return asyncio.run(found) if asyncio.iscoroutine(found) else found

    try:
        for verb in verbs:
            call(verb)
    except CannotWait:
        return "refused"
    return "ended"


def inputs(kind):
    pool = ComposablePool(1, kind=kind)

    def numbers():
        yield 1
        saw(ask(pool, "close", "join"))
        yield 2

    assert list(pool.imap(tasks.square, numbers())) == [1, 4]
    is_over(pool._engine)


def pickling(kind):
    """The thread that pickles an argument of a call waits for the end of the pool, and with it of this very call."""
    pool = ComposablePool(1, kind=kind)
    storms.hooks.append(lambda: saw(ask(pool, "close", "join")))
    assert pool.map(tasks.identity, [storms.Reduced()]) == [0]
    is_over(pool._engine)


def unpickling(kind):
    """The thread that unpickles a result waits for the end of the pool, and with it of this very call."""
    pool = ComposablePool(1, kind=kind)
    storms.hooks.append(lambda: saw(ask(pool, "close", "join")))
    assert pool.apply(storms.make, (1,)) == 0
    is_over(pool._engine)


def cross(kind):
    """Two tasks of two pools wait for the ends of each other's pools: one gets an error."""
    one, two = ComposableExecutor(1, kind=kind), ComposableExecutor(1, kind=kind)
    meet = threading.Barrier(2, timeout=TIMEOUT_S)

    def end(other):
        meet.wait()
        return run_async(other, ["shutdown"])

    futures = one.submit(end, two), two.submit(end, one)
    answers = sorted(future.result(TIMEOUT_S) for future in futures)
    assert "refused" in answers, answers
    is_over(one._engine), is_over(two._engine)
    saw(answers[1])


def nested(kind):
    """A task ends another pool than its own."""

    def work():
        with ComposableExecutor(1, kind="thread") as inner:
            assert inner.submit(abs, -1).result(TIMEOUT_S) == 1
        pool = ComposablePool(1, kind="thread")
        pool.close()
        pool.join()
        return "ended"

    with ComposablePool(1, kind=kind) as pool:
        saw(pool.apply(work))


def child(kind):
    """A forked child is told whose pool it is."""
    pool, executor = ComposablePool(1, kind=kind), ComposableExecutor(1, kind=kind)
    ends = (lambda: (pool.terminate(), pool.join()), lambda: (pool.close(), pool.join()), executor.shutdown)
    if (pid := os.fork()) == 0:
        for end in ends:
            with contextlib.suppress(PoolPartyError):
                end()
                os._exit(1)
        pool.__exit__(None, None, None)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    pool.terminate()
    pool.join()
    executor.shutdown()


if __name__ == "__main__":
    main(globals())
