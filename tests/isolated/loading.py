"""The first task of a thread pool imports NumPy: OpenBLAS's count in the second task, and where its threads run."""

import os
import sys

from probe import ComposablePool, tasks

assert "numpy" not in sys.modules
all_cpus = os.sched_getaffinity(0)
with ComposablePool(2, kind="thread", threads_per_worker=1) as pool:
    pool.apply(tasks.openblas_count)
    counts = {count for _ in range(5) for count in pool.apply(tasks.openblas_count)}
    workers = {pool.apply(tasks.thread_id) for _ in range(20)}
    alone = [
        thread
        for thread in map(int, os.listdir("/proc/self/task"))
        if thread not in workers and os.sched_getaffinity(thread) != all_cpus
    ]
print(*counts, int(len(alone) <= 2 - len(workers)))  # a worker that ran no task is still pinned as well
