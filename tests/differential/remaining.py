"""Prints the MB that a pool and its workers hold after much work: `python remaining.py pool|process|interp [LIMIT]`.

With a limit, it waits until they hold no more than that.
"""

import gc
import multiprocessing
import os
import sys

import gates
import psutil
import tasks

from pool_party import ComposablePool

MiB = 1 << 20


def of_process(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Pss_Anon:")) / 1024


def of_files():
    """Return the MB of files in memory. Each is counted once, however many processes map it."""
    stats = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            if "memfd:" in os.readlink(f"/proc/self/fd/{fd}"):
                status = os.stat(f"/proc/self/fd/{fd}")
                stats[status.st_ino] = status.st_blocks * 512 / MiB
        except FileNotFoundError:
            pass
    return sum(stats.values())


def total():
    gc.collect()
    children = [child.pid for child in psutil.Process().children(recursive=True)]
    return of_files() + sum(map(of_process, [os.getpid(), *children]))


def is_refused(call):
    try:
        call()
    except LookupError:
        return True
    return False


def work(pool):
    blobs = pool.starmap(tasks.make_blob, [(16 * MiB, i) for i in range(16)], 1)
    assert pool.map(tasks.blob_checksum, blobs, 1) == list(map(tasks.blob_checksum, blobs))
    assert pool.map(tasks.identity, blobs[:4], 2) == blobs[:4]
    assert list(pool.imap(len, ["t" * 8 * MiB] * 8)) == [8 * MiB] * 8
    assert pool.apply(tasks.identity, (bytes(64 * MiB),)) == bytes(64 * MiB)
    assert pool.map(tasks.square, range(50_000)) == [x * x for x in range(50_000)]
    assert pool.map(tasks.identity, [[0.5] * 100_000] * 20, 1)[19] == [0.5] * 100_000
    assert all(is_refused(lambda: pool.apply(tasks.raise_lookup_error, (bytes(8 * MiB),))) for _ in range(5))
    assert sum(len(text) for text in pool.imap_unordered(str, range(100_000), 1000)) == 488_890


def main(kind, limit=None):
    pool = multiprocessing.get_context("forkserver").Pool(2) if kind == "pool" else ComposablePool(2, kind=kind)
    with pool:
        before = total()
        work(pool)
        if limit is not None:
            gates.wait_until(lambda: total() - before <= float(limit), f"at most {limit} MB are left", timeout=20)
        print(total() - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
