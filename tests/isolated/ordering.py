"""No two threads can wait for each other's locks, those of imports among them: all are taken in one order."""

import os
import sys
import threading

import lock_order

if __name__ == "__main__":
    lock_order.record()

from probe import ComposablePool, main, tasks

import pool_party


def use(**options):
    """A pool, with an import of extension modules and threadpoolctl beside it, and a block of the user's."""
    with ComposablePool(2, **options) as pool:
        assert pool.map(tasks.square, range(10)) == [x * x for x in range(10)]
        import numpy  # noqa: F401
        import threadpoolctl

        with threadpoolctl.threadpool_limits(1):
            assert list(pool.imap(tasks.square, range(10), 3)) == [x * x for x in range(10)]
        assert pool.apply_async(tasks.square, (3,)).get() == 9


def use_forked(kind):
    """The same in a forked child.

    Without a GIL, CPython 3.13 dies in a fork while an interpreter's thread is amid the import of an extension module
    (docs/limits.md), so the worker has started before.
    """
    with ComposablePool(1, kind=kind) as pool:
        pool.apply(abs, (-1,))
        if pid := os.fork():
            assert (status := os.waitpid(pid, 0)[1]) == 0, status
            return
        try:
            use(kind=kind)
            check()
            os._exit(0)
        finally:
            os._exit(1)


def check():
    assert not (text := lock_order.report()), text


def use_all(kind):
    for policy in "dynamic", "static", None, *(("exclusive", "counting") if kind == "process" else ()):
        use(kind=kind, policy=policy)
    use(kind=kind, scope="machine")
    use_forked(kind)
    pool_party.map(tasks.square, range(10))
    pool_party.patch()
    pool_party.unpatch()
    check()
    print("ok")


def contradict(folder):
    """What `check` looks for is found: two orders of two locks, and what is imported under a lock that it takes."""
    first, second, third = (lock_order.Lock(threading.RLock(), name) for name in ("first", "second", "third"))
    for one, other in (first, second), (second, first), (second, third):
        with one, other:
            pass
    sys.path.insert(0, folder)
    sys.lock = third
    with third:
        import late  # noqa: F401
    for orders in sorted(lock_order.cycles(), key=str):
        print(", ".join(sorted({lock for order in orders for lock in order})))


if __name__ == "__main__":
    main({"use_all": use_all, "contradict": contradict})
