"""Interpreter shutdown with a pool that is left open, and the death of the parent."""

import atexit
import contextlib
import os
import signal
import sys
import threading

from probe import TIMEOUT_S, ComposablePool, are_others_asleep, gates, main, tasks

from pool_party import ComposableExecutor, PoolClosed, _native

forgotten = []  # keeps objects alive until shutdown


def daemon_threads_open_pools(kind):
    """Threads that open pools for ever, while the interpreter ends. From then on they get an error."""
    opened = threading.Semaphore(0)

    def open_pools():
        with contextlib.suppress(PoolClosed):
            while True:
                with ComposablePool(1, kind=kind) as pool:
                    pool.apply(tasks.square, (2,))
                opened.release()

    for _ in range(3):
        threading.Thread(target=open_pools, daemon=True).start()
    for _ in range(3):
        assert opened.acquire(timeout=TIMEOUT_S)


def idle(kind):
    pool = ComposablePool(2, kind=kind)
    assert pool.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]
    forgotten.append(pool)


def never_used(kind):
    forgotten.append(ComposablePool(2, kind=kind))


def busy(kind):
    """Short tasks run, and more are queued."""
    pool = ComposablePool(2, kind=kind)
    assert pool.apply(tasks.square, (2,)) == 4
    forgotten.append((pool, pool.map_async(tasks.burn, [20_000] * 5_000, 1)))


def stuck(kind):
    """Tasks run that never end."""
    gate = gates.Gate(f"{os.environ['GATE']}-{kind}")
    pool = ComposablePool(2, kind=kind)
    forgotten.append((pool, [pool.apply_async(tasks.stay_forever, (gate.path,)) for _ in range(2)]))
    gate.wait_arrived(2)
    for suffix in (".pass", ".arrived"):
        os.unlink(gate.path + suffix)


def in_a_cycle(kind):
    cycle = {"pool": ComposablePool(2, kind=kind)}
    cycle["self"] = cycle
    cycle["result"] = cycle["pool"].apply_async(tasks.square, (2,))


def with_an_open_iterator(kind):
    pool = ComposablePool(2, kind=kind)
    iterator = pool.imap(tasks.square, iter(range(100_000)))
    assert next(iterator) == 0
    forgotten.append((pool, iterator))


def while_a_task_is_cleared_away(kind, path):
    """A pool ends after a worker has replied, while the destructor of something that its task made runs."""
    with gates.Gate(path) as gate, ComposablePool(1, kind=kind) as pool:
        result = pool.apply_async(tasks.raise_from_one_that_is_held, (gate.path,))
        result.wait(TIMEOUT_S)
        assert not result.successful()
        gate.wait_arrived()
        pool.terminate()
        gate.release()
    pool.join(timeout=TIMEOUT_S)


def amid_a_destructor(kind, path, where):
    """A pool ends while a task or an initializer runs a destructor. Python lets no exception out of that, but the
    interrupt is not lost: what called the destructor ends, too."""
    endless = tasks.run_on_after_a_destructor
    with gates.Gate(path) as gate:
        if where == "task":
            pool = ComposablePool(1, kind=kind)
            pool.apply_async(endless, (gate.path,))
        else:
            pool = ComposablePool(1, kind=kind, initializer=endless, initargs=(gate.path,))
        gate.wait_arrived()
        gates.call_in_thread(pool.terminate).result(TIMEOUT_S)
        gate.release()
    pool.join(timeout=TIMEOUT_S)


class Owner:
    """Ends its pool in a finalizer, which the ending interpreter calls when no other thread runs any more."""

    def __init__(self, kind):
        self.pool = ComposablePool(2, kind=kind)
        self.result = self.pool.map_async(tasks.burn, [20_000] * 5_000, 1)
        self.iterator = self.pool.imap(tasks.burn, [20_000] * 5_000)
        self.me = self

    def __del__(self):
        for use in (self.result.get, self.iterator.next, lambda: self.pool.apply(abs, (1,))):
            with contextlib.suppress(PoolClosed):
                use()
                print("it was not closed")
        self.pool.close()
        self.pool.join()
        self.pool.terminate()
        assert _native.call_apart(int) == 0
        print("ended", flush=True)


def ended_by_a_finalizer(kind):
    forgotten.append(Owner(kind))


def closed_but_not_joined(kind):
    pool = ComposablePool(2, kind=kind)
    forgotten.append((pool, pool.map_async(tasks.square, range(100))))
    pool.close()


def terminated_but_not_joined(kind):
    pool = ComposablePool(2, kind=kind)
    forgotten.append((pool, pool.map_async(tasks.burn, [20_000] * 1_000, 1)))
    pool.terminate()


def a_thread_waits(kind):
    """A daemon thread blocks in get() while the interpreter ends."""
    idle(kind)
    (pool,) = forgotten
    threading.Thread(target=pool.map, args=(tasks.burn, [20_000] * 5_000, 1), daemon=True).start()
    gates.wait_until(lambda: pool.statistics().n_pending, "the thread's tasks are submitted")


def executor_idle(kind):
    executor = ComposableExecutor(2, kind=kind)
    assert executor.submit(tasks.square, 3).result(30) == 9
    forgotten.append(executor)


def executor_busy(kind):
    """The interpreter waits for what was submitted, as with concurrent.futures."""
    executor = ComposableExecutor(2, kind=kind)
    futures = [executor.submit(tasks.burn, 1_000) for _ in range(200)]
    results = []
    for future in futures:
        future.add_done_callback(lambda done: results.append(done.result()))
    futures[-1].add_done_callback(lambda _: os.write(1, b"last done\n"))
    atexit.register(lambda: print(len(results), set(results)))
    forgotten.append((executor, futures))


def reading_a_module(kind, path):
    """A pool is terminated while its worker is opening a module's file. The file must be closed all the same."""
    os.mkfifo(path)
    os.mkfifo(path + ".arrived")
    arrived = os.open(path + ".arrived", os.O_RDWR)
    pool = ComposablePool(1, kind=kind)
    pool.apply_async(tasks.read_module, (path, path + ".arrived"))
    assert os.read(arrived, 100) == b"reading\n"
    gates.wait_until(are_others_asleep, "the worker waits for a writer")
    pool.terminate()
    gates.wait_until(are_others_asleep, "the interrupt has come")
    os.close(os.open(path, os.O_WRONLY))
    pool.join(timeout=TIMEOUT_S)


def sys_exit_in_with(kind):
    with ComposablePool(2, kind=kind) as pool:
        assert pool.apply(tasks.square, (2,)) == 4
        sys.exit(0)


def only_workers_pass_keywords(kind):
    """On CPython 3.12 the process would free memory of other interpreters, and crash."""
    with ComposablePool(2, kind=kind) as pool:
        assert pool.starmap(tasks.is_close, [(1.0, 1.0), (1.0, 2.0)]) == [True, False]


def parent_to_be_killed(kind, gate_path):
    """Print the workers' pids and wait for SIGKILL. One worker is busy, the others are idle."""
    pool = ComposablePool(3, kind=kind)
    pool.map(tasks.square, range(10), 1)
    pool.apply_async(tasks.stay_forever, (gate_path,))
    pool.apply_async(tasks.spin_forever, (gate_path,))
    print(*(worker.pid for worker in pool._pool), flush=True)
    threading.Event().wait()


def with_blocked_signals(method):
    """A fork server that starts now never hears of its children's ends, and tells nobody."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with ComposablePool(1, kind="process", context=method) as pool:
        assert pool.map(tasks.square, range(5)) == [0, 1, 4, 9, 16]
    pool.join(timeout=TIMEOUT_S)


if __name__ == "__main__":
    main(globals())
