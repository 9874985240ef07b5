"""A task that returns when and where it began."""

import os
import threading
import time


def stamp(hold_s: float) -> tuple[int, tuple[int, int]]:
    """Return when this began and in which worker, and keep that busy for a while.

    All processes share the clock, in ns.
    """
    begun_ns = time.perf_counter_ns()
    time.sleep(hold_s)
    return begun_ns, (os.getpid(), threading.get_native_id())
