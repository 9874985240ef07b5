"""Pools open and close, one after the other. Descriptors, threads, children and memfds must stay as they were."""

import gc
import multiprocessing

from probe import TIMEOUT_S, ComposablePool, expect, gates, main, resources, tasks

from pool_party import ComposableExecutor, WorkerLost


def close_and_join(**options):
    pool = ComposablePool(2, **options)
    assert pool.map(tasks.square, range(20), 1) == [x * x for x in range(20)]
    pool.close()
    pool.join(timeout=TIMEOUT_S)


def with_block(**options):
    with ComposablePool(2, **options) as pool:
        assert pool.apply(tasks.square, (2,)) == 4
    pool.join(timeout=TIMEOUT_S)


def never_joined(**options):
    with ComposablePool(2, **options) as pool:
        assert pool.apply(tasks.square, (2,)) == 4


def forgotten(**options):
    pool = ComposablePool(2, **options)
    assert pool.apply(tasks.square, (2,)) == 4
    del pool
    gc.collect()


def busy(**options):
    with ComposablePool(2, **options) as pool:
        pool.map_async(tasks.burn, [1_000] * 1_000, 1)
        pool.imap(tasks.identity, iter(range(1_000)))
    pool.join(timeout=TIMEOUT_S)


def large_data(**options):
    with ComposablePool(2, **options) as pool:
        blobs = [tasks.make_blob(1 << 20, i) for i in range(4)]
        assert pool.map(tasks.identity, blobs, 1) == blobs
    pool.join(timeout=TIMEOUT_S)


def errors(**options):
    with ComposablePool(2, **options) as pool:
        for name in ("ValueError", "SystemExit"):
            expect(BaseException, pool.apply, tasks.raise_named, (name,))
        expect(TypeError, pool.apply_async, 5)
    pool.join(timeout=TIMEOUT_S)


def replaced_workers(**options):
    with ComposablePool(2, maxtasksperchild=1, **options) as pool:
        pool.map(tasks.square, range(4), 1)
    pool.join(timeout=TIMEOUT_S)


def lost_workers(**options):
    with ComposablePool(2, **options) as pool:
        expect(WorkerLost, pool.apply_async(tasks.exit_now, (1,)).get, TIMEOUT_S)
    pool.join(timeout=TIMEOUT_S)


def executor(**options):
    with ComposableExecutor(2, **options) as executor:
        assert list(executor.map(tasks.square, range(5))) == [0, 1, 4, 9, 16]


def bad_initializer(**options):
    try:
        with ComposablePool(2, int, ("no",), **options) as pool:
            expect(Exception, pool.apply_async(tasks.square, (1,)).get, TIMEOUT_S)
    except Exception:
        pass
    else:
        pool.join(timeout=TIMEOUT_S)


def check(what, kind, method, n):
    options = {"kind": kind}
    if method != "default":
        options["context"] = multiprocessing.get_context(method)
    use = globals()[what]
    for _ in range(3):  # create what is created once: fork server, resource tracker, caches
        use(**options)

    def settled():
        gc.collect()
        return resources()

    before = settled()
    for _ in range(int(n)):
        use(**options)
    seen = [settled()]
    try:
        gates.wait_until(
            lambda: all(now <= before[key] for key, now in (seen.append(settled()) or seen[-1]).items()),
            "resources are given back",
            timeout=15,
        )
    except AssertionError:
        raise AssertionError(f"leaked: before {before}, after {n} more pools {seen[-1]}") from None


if __name__ == "__main__":
    main({"check": check}, hang_s=100)
