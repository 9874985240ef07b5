"""Checks that no worker is idle while a task waits, `python wide.py kind n_workers`.

It runs n tasks that each wait for all others to begin, and all must end.

It uses many workers, arguments of many sizes, and every verb. A pool that leaves a worker idle hangs here.
"""

import os
import sys
import tempfile

import duties
from watch import Journal, Watchdog

from pool_party import ComposableExecutor, ComposablePool

SIZES = (0, 200, 30_000, 300_000)
MEMORY = 64_000_000  # bytes of all arguments of one call
STEP_S = float(os.environ.get("POOL_PARTY_MODEL_STEP_S", "50"))


def tasks_that_meet(folder, name, n, size, is_shared):
    path = os.path.join(folder, name)
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    log = fd if is_shared else path
    idents = range(1_000_000, 1_000_000 + n)  # all have the same length, so that the size of the log counts them
    return [(os.devnull, ident, ("meet", log, n), duties.pattern(ident, size)) for ident in idents]


def apply_async(pool, items):
    return [result.get() for result in [pool.apply_async(duties.perform, (item,)) for item in items]]


def map_async(pool, items):
    return pool.map_async(duties.perform, items, 1).get()


def imap(pool, items):
    return list(pool.imap(duties.perform, items))


def imap_unsized(pool, items):
    return sorted(pool.imap_unordered(duties.perform, iter(items)))


def submit(executor, items):
    return [future.result() for future in [executor.submit(duties.perform, item) for item in items]]


def run(kind, n):
    journal = Journal()
    watchdog = Watchdog(journal)
    watchdog.allow(STEP_S, "open")
    context = "fork" if kind == "process" else None
    pool, executor = ComposablePool(n, kind=kind, context=context), None
    with tempfile.TemporaryDirectory(prefix="pool-party-wide-") as folder:
        for verb in (apply_async, map_async, imap, imap_unsized, submit):
            if verb is submit:  # not beside the pool: one set of so many workers is enough for a machine
                pool.terminate()
                pool.join()
                pool = executor = ComposableExecutor(n, kind=kind, context=context)
            for size in (size for size in SIZES if size * n <= MEMORY):
                what = f"{verb.__name__} of {n} tasks with {size} bytes each"
                watchdog.allow(STEP_S, what)
                journal.note(what)
                items = tasks_that_meet(folder, f"{verb.__name__}-{size}", n, size, kind != "process")
                assert verb(pool, items) == [item[1] for item in items]
    watchdog.allow(STEP_S, "the end")
    executor.shutdown()
    watchdog.rest()


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
