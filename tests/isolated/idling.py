"""An idle pool uses no CPU: `python idling.py idle kind seconds policy`."""

import os
import time

from probe import ComposablePool, main, tasks, worker_pids


def cpu_seconds(pids):
    """Return the CPU time of whole processes, with all their threads.

    It comes from clock_getcpuclockid(3), in ns. /proc counts in ticks of 10 ms, and charges a whole one to whoever runs
    at that moment, which may be a thread that woke up for a microsecond.
    """
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


def idle(kind, seconds, policy):
    with ComposablePool(2, kind=kind, policy=policy) as pool:
        pool.map(tasks.square, range(1000), 1)
        pids = {os.getpid(), *(worker_pids(pool) if kind == "process" else ())}
        time.sleep(0.5)  # let what follows the work come to rest
        before = cpu_seconds(pids)
        time.sleep(float(seconds))
        used = cpu_seconds(pids) - before
    assert used <= 0.002 * float(seconds), f"{used} s of CPU in {seconds} s"


if __name__ == "__main__":
    main(globals())
