"""The header of the memory that a pool shares with its workers is overwritten: calls fail, and nothing hangs."""

import os

from probe import TIMEOUT_S, ComposablePool, expect, main

from pool_party import PoolPartyError

CORE_AT = 65536  # see native/channel/segment.c; the bytes before it are unused


def overwrite():
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith("/memfd:pool_party "):
            os.pwrite(int(fd), b"\xff" * 192, CORE_AT)


def check(pool, call):
    error = expect(PoolPartyError, call)
    assert "overwritten" in str(error), error
    expect(PoolPartyError, pool.apply, abs, (1,))
    pool.terminate()
    pool.join(timeout=TIMEOUT_S)


def by_a_task(kind):
    pool = ComposablePool(2, kind=kind)
    assert pool.map(abs, [-1, -2]) == [1, 2]
    check(pool, lambda: [pool.apply_async(overwrite).get(TIMEOUT_S), pool.apply_async(abs, (1,)).get(TIMEOUT_S)])


def by_the_caller(kind):
    pool = ComposablePool(2, kind=kind)
    assert pool.map(abs, [-1, -2]) == [1, 2]
    overwrite()
    check(pool, lambda: pool.apply_async(abs, (1,)).get(TIMEOUT_S))


if __name__ == "__main__":
    main({"by_a_task": by_a_task, "by_the_caller": by_the_caller})
