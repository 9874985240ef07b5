"""A thread count that the user has set limits every task, and is in force again after the last pool.

argv: scenario, kind, policy. There are two workers, and pools count on four CPUs.
"""

import contextlib
import itertools
import os
import random
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import gates
from probe import ComposablePool, main, tasks, thread_ids

from pool_party import _native

N_CPUS = 4


def pool(kind, policy, **more):
    return ComposablePool(2, kind=kind, policy=policy, **more)


def load():
    """The counts of all OpenBLAS in this process, after loading it."""
    return tasks.openblas_count()


def counts_of(kind, pool, n_rounds=4):
    """The counts that tasks see, two at a time and alone."""
    seen = set()
    for _ in range(n_rounds):
        for counts in [*pool.map(tasks.blas_counts, range(4), 1), pool.apply(tasks.blas_counts)]:
            seen.update(counts)
    return seen


def environment(kind, policy):
    """OMP_NUM_THREADS limits OpenBLAS as well, whether the parent or a task loads it."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with pool(kind, policy) as opened:
        assert counts_of(kind, opened) == {1}
    assert set(load()) == {1}
    with pool(kind, policy) as opened:
        assert counts_of(kind, opened) == {1}
    assert set(load()) == {1}


def nested_environment(kind, policy):
    """The environment of a worker process's own budget must not limit a nested pool that is lent more."""
    with ComposablePool(1, kind="process", context="spawn") as outer:
        assert max(outer.apply(counts_in_pool, (kind, policy))) == N_CPUS


def counts_in_pool(kind, policy):
    _native.pretend_running(0)
    with ComposablePool(1, kind=kind, policy=policy) as opened:
        return counts_of(kind, opened)


def set_for_good(_=None):
    import numpy  # noqa: F401
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)


def end_calmly(opened):
    """End a pool without interrupting the initializer of its other worker, whose open file would be reported."""
    opened.close()
    opened.join()


def initializer(kind, policy):
    """A count that an initializer sets stays in force, even for a lone task."""
    with pool(kind, policy, initializer=set_for_good) as opened:
        assert counts_of(kind, opened) == {1}
        end_calmly(opened)


def in_a_block(path, due=None):
    """The counts within a block, before and after this task passes a gate. After it they soon become `due`, if given.

    In a worker process a separate thread follows the budget.
    """
    from threadpoolctl import threadpool_limits

    tasks.openblas_count()
    with threadpool_limits(1):
        before = tasks.openblas_count()
        tasks.pass_gate(path)
        after = tasks.openblas_count()
    gates.wait_until(lambda: due is None or set(tasks.openblas_count()) == {due}, "the count is what is due")
    return before, after


def block_in_task(kind, policy):
    """A task's own block stays in force while the other worker becomes idle.

    At its end the task gets what is due by then.
    """
    import tempfile

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        within, beside = (stack.enter_context(gates.Gate(os.path.join(folder, name))) for name in ("block", "beside"))
        opened = stack.enter_context(pool(kind, policy))
        opened.map(tasks.openblas_count, range(4), 1)
        other = opened.apply_async(tasks.pass_gate, (beside.path, "other"))
        beside.wait_arrived(1)
        due = N_CPUS if policy == "dynamic" else 2
        held = opened.apply_async(in_a_block, (within.path, due))
        within.wait_arrived(1)
        beside.release(1)
        other.get(20)
        gates.wait_until(lambda: due in opened.statistics().n_threads, "the other worker sleeps")
        within.release(1)
        before, after = held.get(60)
        assert set(before) == set(after) == {1}, (before, after)


def orders(kind, policy):
    """Blocks of the parent and of a worker's task overlap in every order.

    Afterwards the counts are the original ones.
    """
    import tempfile

    from threadpoolctl import threadpool_limits

    before = load()
    with tempfile.TemporaryDirectory() as folder, gates.Gate(os.path.join(folder, "gate")) as gate:
        for at, (enters, leaves) in enumerate([(0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]):
            with pool(kind, policy) as opened:
                opened.map(tasks.openblas_count, range(4), 1)
                gates.wait_until(lambda: load() == before, "the workers sleep")
                with contextlib.ExitStack() as stack:
                    task = None
                    for step in range(3):
                        if step == 1:
                            task = opened.apply_async(tasks.pass_gate, (gate.path, "done"))
                            gate.wait_arrived(1)
                        if step == 2:
                            gate.release(1)
                            assert task.get(20) == "done"
                            gates.wait_until(lambda: _is_asleep(opened), "the worker sleeps")
                        if step == enters:
                            stack.enter_context(threadpool_limits(1))
                        if enters <= step <= leaves:
                            assert set(load()) == {1}, (at, step)
                        if step == leaves:
                            stack.close()
                gates.wait_until(lambda: load() == before, f"order {at}: {load()}, not {before}")
            assert load() == before, (at, load(), before)


def _is_asleep(opened):
    from pool_party import _native

    return not any(opened._engine._channel.awake()) and _native.process_limit() == 0


def block_in_parent(kind, policy):
    """A block of the parent limits tasks that begin within it, and none after it."""
    import tempfile

    from threadpoolctl import threadpool_limits

    load()
    with pool(kind, policy) as opened, tempfile.TemporaryDirectory() as folder:
        counts_of(kind, opened, 1)
        with threadpool_limits(1):
            gates.wait_until(lambda: counts_of(kind, opened, 1) == {1}, "the parent's block holds")
            assert counts_of(kind, opened) == {1}
        due = N_CPUS if policy == "dynamic" else 2
        gates.wait_until(lambda: due in counts_of(kind, opened, 1), "the block is over")
        with gates.Gate(os.path.join(folder, "gate")) as gate:
            held = opened.apply_async(reaches, (gate.path, due, 1))
            gate.wait_arrived(1)
            with threadpool_limits(1):
                assert held.get(20) == 1
    with threadpool_limits(1), pool(kind, policy) as opened:
        assert counts_of(kind, opened) == {1}


def limiters(kind, policy):
    """Threads make limiters, enter their blocks later, leave them, or keep what they have set, in random orders.

    While blocks are open the smallest count of the threads' innermost ones is in force. Otherwise it is the last count
    that was set and neither restored nor become a block's.
    """
    before = min(load())
    with pool(kind, policy) as opened:
        counts_of(kind, opened, 1)
        gates.wait_until(lambda: _is_asleep(opened), "the workers sleep")
        for seed in range(200):
            _follow_limiters(random.Random(seed), before)
    assert set(load()) == {before}


def _follow_limiters(rng, before):
    from threadpoolctl import threadpool_limits

    with contextlib.ExitStack() as stack:
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(3)]
        made, entered = [[] for _ in threads], [[] for _ in threads]  # of each thread: limiters and their counts
        numbers = itertools.cycle(range(1, 13))
        set_so_far = [before]
        steps = []
        for n_left in reversed(range(16)):
            i = rng.randrange(len(threads))
            names = ["make", *["enter", "restore", "keep"] * bool(made[i]), *["leave"] * 2 * bool(entered[i])]
            if n_left == 0:
                names = ["end"]
            name = rng.choice(names)
            steps.append((i, name))
            if name == "make":
                n = next(number for number in numbers if number not in set_so_far)
                made[i].append((threads[i].submit(threadpool_limits, n).result(), n))
                set_so_far.append(n)
            elif name == "keep":
                made[i].pop()
            elif name == "end":
                for thread, blocks in zip(threads, entered, strict=True):
                    while blocks:
                        thread.submit(blocks.pop()[0].__exit__, None, None, None).result()
                set_so_far = [before]
                threadpool_limits(before)
            else:
                limiter, n = (entered if name == "leave" else made)[i].pop()
                if name == "enter":
                    entered[i].append((limiter, n))
                if name != "leave":
                    set_so_far.remove(n)
                function = {"enter": "__enter__", "leave": "__exit__", "restore": "restore_original_limits"}[name]
                threads[i].submit(getattr(limiter, function), *[None] * 3 * (name == "leave")).result()
            wanted = min((blocks[-1][1] for blocks in entered if blocks), default=set_so_far[-1])
            assert set(load()) == {wanted}, (steps, load(), wanted)


def reaches(path, first, then):
    """Wait until the count is `first`, report at the gate, and wait until it is `then`."""
    for n in (first, then):
        gates.wait_until(lambda: set(tasks.blas_counts()) == {n}, f"the count is {n}", timeout=15)  # noqa: B023
        if n == first:
            tasks.write_all(path + ".arrived", f"{os.getpid()}\n".encode())
    return n


def blocks_of_two_tasks(kind, policy):
    """Each of two tasks has its own block. The one that ends first must not affect the other."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        one, two = (stack.enter_context(gates.Gate(os.path.join(folder, name))) for name in ("first", "second"))
        before = load()
        with pool(kind, policy) as opened:
            opened.map(tasks.openblas_count, range(4), 1)
            first = opened.apply_async(in_a_block, (one.path,))
            one.wait_arrived(1)
            second = opened.apply_async(in_a_block, (two.path,))
            two.wait_arrived(1)
            one.release(1)
            first.get(60)
            two.release(1)
            within, still_within = second.get(60)
            assert set(within) == set(still_within) == {1}, (within, still_within)
        assert load() == before


def multiply(_=None):
    """Multiply matrices that are large enough for several threads of OpenBLAS. Return this worker's CPUs."""
    import numpy as np

    a = np.ones((600, 600))
    assert (a @ a)[0, 0] == 600.0
    return os.sched_getaffinity(0)


def after_fork(kind, policy):
    """OpenBLAS starts its threads again after a fork. They may run everywhere, whichever thread needs them first."""
    everywhere = os.sched_getaffinity(0)
    os.environ["POOL_PARTY_CPU_COUNT"] = str(len(everywhere))
    load()
    with pool(kind, policy, affinity=True, oversubscription=2.0) as opened:
        gates.wait_until(lambda: len(set(map(frozenset, opened.map(multiply, range(4), 1)))) == 2, "both have worked")
        before = set(thread_ids())
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        for _ in range(5):
            opened.map(multiply, range(4), 1)
        made = set(thread_ids()) - before
        assert made and all(os.sched_getaffinity(thread) == everywhere for thread in made), made


def loaded_by_a_task(kind, policy):
    """A library that a task loads keeps to the budget that the task has then, before the task first uses it."""
    os.environ["POOL_PARTY_CPU_COUNT"] = "2"
    assert "numpy" not in sys.modules
    with (
        tempfile.TemporaryDirectory() as folder,
        gates.Gate(os.path.join(folder, "gate")) as gate,
        ComposablePool(1, kind="thread", policy=policy) as other,
        ComposablePool(1, kind=kind, policy=policy) as opened,
    ):
        other.apply_async(tasks.pass_gate, (gate.path,))
        gate.wait_arrived()
        assert set(opened.apply(load_late, (kind,))) == {1}
        gate.release()


def load_late(kind):
    """The counts of OpenBLAS, which is loaded when this worker may use one CPU. A process is told so amid the task."""
    n_threads = _native.process_limit if kind == "process" else _native.own_threads
    gates.wait_until(lambda: n_threads() == 1, "each pool has one of two CPUs")
    return tasks.blas_counts()


kept = []


def start_thread(_=None):
    """Start a thread of the task, which inherits this worker's CPUs, and then load a library."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    kept.append((stop, thread))
    tasks.openblas_count()
    return thread.native_id


def own_threads(kind, policy):
    """A thread that a task has started stays on the task's CPUs when the task loads a library."""
    os.environ["POOL_PARTY_CPU_COUNT"] = str(len(os.sched_getaffinity(0)))
    assert "numpy" not in sys.modules
    with pool(kind, policy, affinity=True) as opened:
        thread = opened.apply(start_thread)
        for _ in range(5):
            opened.map(tasks.openblas_count, range(4), 1)
        assert len(os.sched_getaffinity(thread)) < len(os.sched_getaffinity(0))
        opened.map(tasks.linear_algebra, range(4), 1)
    for stop, started in kept:
        stop.set()
        started.join()


def numba_count(_=None):
    """Numba's count in this task, which follows the import of Numba or does it."""
    import numba

    return numba.get_num_threads()


def numba_set(_=None):
    import numba

    numba.set_num_threads(1)


def numba(kind, policy):
    """The first task of each worker keeps to its budget, and a lone task gets what it is lent."""
    os.environ["POOL_PARTY_CPU_COUNT"] = "2"  # Numba's count cannot exceed the machine's
    with pool(kind, policy) as opened:
        first = [opened.apply(numba_count), *opened.map(numba_count, range(8), 1)]
        if policy == "static":
            assert {*first, *[opened.apply(numba_count) for _ in range(10)]} == {1}, first
        elif kind == "thread":  # a process learns it during the task, which is too late for the task
            gates.wait_until(lambda: opened.apply(numba_count) == 2, "a lone task has both CPUs")
    with pool(kind, policy, threads_per_worker=2, initializer=numba_set) as opened:
        assert {opened.apply(numba_count) for _ in range(6)} == {1}
        end_calmly(opened)


SCENARIOS = {
    f.__name__: f
    for f in (
        *(environment, nested_environment, initializer, block_in_task, orders, block_in_parent, blocks_of_two_tasks),
        *(limiters, after_fork, own_threads, loaded_by_a_task, numba),
    )
}

if __name__ == "__main__":
    os.environ["POOL_PARTY_CPU_COUNT"] = str(N_CPUS)
    main(SCENARIOS)
