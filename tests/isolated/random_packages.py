"""Many interpreters, opened and ended in one process, each of which uses some packages that are chosen at random.

check [N [SEED [PACKAGE ...]]]   N interpreters; no threads, descriptors, mapped files or TSS keys accumulate

The packages are those of tests/science/uses/ that are installed and load by default, or those that are named.

What is loaded once, such as bundled libraries, is loaded before by an interpreter that uses all of these packages.
"""

import importlib.metadata
import pathlib
import random
import sys

from arrays_leaks import private_mb, settled
from probe import TIMEOUT_S, gates, main

from pool_party import InterpreterPool
from pool_party._workers.interp.known import PACKAGES

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "science"))

import packages
import uses

AT_ONCE = 4


def is_installed(name):
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def candidates():
    """Return the packages that are installed and loaded by default."""
    installed = filter(is_installed, packages.ALL)
    return [name for name in installed if set(packages.NAMES.get(name, [name])) <= set(PACKAGES)]


def use(names):
    """Return the results of packages' uses, in a worker."""
    return [repr(uses.ALL[name]()) for name in names]


def accumulating():
    """Return the counts that must not grow. Temporary files are not counted: other programs make some."""
    return {key: count for key, count in settled().items() if key != "files"}


def run_pool(choices, expected):
    """Open a pool with an interpreter for each choice of packages, and end it."""
    with InterpreterPool(len(choices)) as pool:
        for names, found in zip(choices, pool.map(use, choices, 1), strict=True):
            assert found == [expected[name] for name in names], (names, found)
    pool.join(timeout=TIMEOUT_S)


def check(n="40", seed="0", *names):
    names, rng = list(names) or candidates(), random.Random(int(seed))
    expected = dict(zip(names, use(names), strict=True))
    for _ in range(2):
        run_pool([names], expected)
    before = seen = accumulating()
    mb_before, left = private_mb(), int(n)
    while left:
        size = min(left, rng.randint(1, AT_ONCE))
        run_pool([rng.sample(names, rng.randint(1, min(3, len(names)))) for _ in range(size)], expected)
        left -= size

    def is_as_before():
        nonlocal seen
        seen = accumulating()
        return all(seen[key] <= before[key] for key in before)

    try:
        gates.wait_until(is_as_before, "resources are given back", timeout=15)
    except AssertionError:
        raise AssertionError(f"leaked: before {before}, after {n} interpreters {seen}") from None
    left_mb = (private_mb() - mb_before) / int(n)
    print(f"{n} interpreters, {len(names)} packages: {left_mb:.1f} MB for each", file=sys.stderr)
    print("ok")


if __name__ == "__main__":
    main({"check": check}, hang_s=3000)
