"""Pools of interpreters that use NumPy, one after the other, beside a main interpreter that uses it as well.

check [POOLS [WORKERS]]     no descriptors, threads, copies, TSS keys or files stay, and little memory
"""

import ctypes
import gc
import os
import tempfile
import threading

import numpy as np
from probe import TIMEOUT_S, ComposablePool, gates, main, resources

# Each interpreter that has ended is known to leave 1.5 to 2 MB: see docs/interpreters.md. Its arenas would be some 8
# more.
MAX_GROWTH_MB = 6.0
MAX_GROWTH_OF_MANY_MB = 3.0


def compute(n):
    import numpy as np

    a = np.random.default_rng(n).standard_normal((20, 20))
    return float(np.linalg.eigvalsh(a @ a.T).sum()), float(np.fft.rfft(a).real.sum())


def use(workers, expected):
    with ComposablePool(workers, kind="interp") as pool:
        found = pool.map(compute, range(2 * workers), 1)
    pool.join(timeout=TIMEOUT_S)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


class Computing:
    """The main interpreter's own use of NumPy at the same time, in a thread."""

    def __init__(self, expected):
        self._expected = expected
        self._is_over = threading.Event()
        self._error = None
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            while not self._is_over.wait(0.02):
                for n, expected in enumerate(self._expected):
                    np.testing.assert_allclose(compute(n), expected, rtol=1e-9)
        except Exception as error:
            self._error = error

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *exc):
        self._is_over.set()
        self._thread.join(TIMEOUT_S)
        assert self._error is None, self._error


def count_keys():
    """Count the TSS keys of this process, of which there can be 1,024."""
    libc, key, free = ctypes.CDLL(None), ctypes.c_uint(), []
    while libc.pthread_key_create(ctypes.byref(key), None) == 0:
        free.append(key.value)
    for made in free:
        libc.pthread_key_delete(made)
    return 1024 - len(free)


def settled():
    gc.collect()
    with open("/proc/self/maps") as maps:
        files = {line.split(maxsplit=5)[5] for line in maps if line.count("/")}
    return resources() | {
        "libraries": len(files),
        "keys": count_keys(),
        "files": len(os.listdir(tempfile.gettempdir())),
    }


def private_mb():
    """Return this process's private memory."""
    with open("/proc/self/smaps_rollup") as rollup:
        return sum(int(line.split()[1]) for line in rollup if line.startswith("Private_")) / 1024


def check(pools=4, workers=2):
    pools, workers = int(pools), int(workers)
    tempfile.tempdir = tempfile.mkdtemp()  # to find what these pools leave there
    expected = [compute(n) for n in range(2 * workers)]
    with Computing(expected):
        for _ in range(2):  # load libraries that are loaded once
            use(workers, expected)
        before = seen = settled()
        mb_before = private_mb()
        for _ in range(pools):
            use(workers, expected)

        def is_as_before():
            nonlocal seen
            seen = settled()
            return all(seen[key] <= before[key] for key in before)

        try:
            gates.wait_until(is_as_before, "resources are given back", timeout=15)
        except AssertionError:
            raise AssertionError(f"leaked: before {before}, after {pools} more pools {seen}") from None
        grown = (private_mb() - mb_before) / (pools * workers)
    os.rmdir(tempfile.tempdir)
    assert grown < (MAX_GROWTH_OF_MANY_MB if pools >= 50 else MAX_GROWTH_MB), (
        f"{grown:.1f} MB for each interpreter that has ended"
    )
    print(f"ok, {grown:.2f} MB" if pools > 4 else "ok")


if __name__ == "__main__":
    main({"check": check}, hang_s=1500)
