"""Pools of interpreters that use NumPy, one after the other: no descriptors, threads or copies stay."""

import gc

from probe import TIMEOUT_S, ComposablePool, gates, main, resources


def norm(n):
    import numpy as np

    return float(np.linalg.norm(np.ones(n)))


def use():
    with ComposablePool(2, kind="interp") as pool:
        assert pool.map(norm, [1, 4, 9, 16], 1) == [1.0, 2.0, 3.0, 4.0]
    pool.join(timeout=TIMEOUT_S)


def settled():
    gc.collect()
    return resources()


def private_mb():
    """Memory that is this process's own."""
    with open("/proc/self/smaps_rollup") as rollup:
        return sum(int(line.split()[1]) for line in rollup if line.startswith("Private_")) / 1024


def check(n=6):
    for _ in range(2):  # libraries that are loaded once
        use()
    before = seen = settled()
    mb_before = private_mb()
    for _ in range(n):
        use()

    def is_as_before():
        nonlocal seen
        seen = settled()
        return all(seen[key] <= before[key] for key in before)

    try:
        gates.wait_until(is_as_before, "resources are given back", timeout=15)
    except AssertionError:
        raise AssertionError(f"leaked: before {before}, after {n} more pools {seen}") from None
    # 1.6 to 2.5 MB are known; some 10 if arenas were not given back, or some 5 more if copies were not closed
    grown = (private_mb() - mb_before) / (2 * n)
    assert grown < 6, f"{grown:.1f} MB for each interpreter that has ended"
    print("ok")


if __name__ == "__main__":
    main({"check": check}, hang_s=90)
