"""An idle pool uses no CPU: `python idling.py idle kind seconds policy`."""

import os
import time

from probe import ComposablePool, main, tasks, worker_pids


def cpu_seconds(pids):
    """Return the CPU time of whole processes, with all their threads."""
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def idle(kind, seconds, policy):
    with ComposablePool(2, kind=kind, policy=policy) as pool:
        pool.map(tasks.square, range(1000), 1)
        pids = {os.getpid(), *(worker_pids(pool) if kind == "process" else ())}
        time.sleep(0.5)  # let what follows the work come to rest
        before = cpu_seconds(pids)
        time.sleep(float(seconds))
        used = cpu_seconds(pids) - before
    # /proc counts in ticks of 10 ms, so one tick is noise in 5 s.
    assert used <= max(0.001 * float(seconds), 0.0101), f"{used} s of CPU in {seconds} s"


if __name__ == "__main__":
    main(globals())
