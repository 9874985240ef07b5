"""Numba's count of threads: each thread's own, kept to a worker's budget from the import of Numba on.

Numba can mask threads that it has started, and start no more. Worker processes therefore start with `NUMBA_NUM_THREADS`
as large as their budget may become.
"""

from __future__ import annotations

import sys
import threading

_mine = threading.local()  # now: what this worker has set or seen last; users: the most that the user wants there


def keep_to(n: int) -> None:
    """Lets Numba use n threads in the calling thread, a worker's; fewer if the user wants so, or it has not so many."""
    numba = sys.modules.get("numba")
    if numba is None or not hasattr(numba, "set_num_threads"):  # it is being imported
        return
    most = numba.config.NUMBA_NUM_THREADS
    if n >= most and not hasattr(_mine, "now"):
        return  # asking Numba would start its threads
    now = numba.get_num_threads()
    if now != getattr(_mine, "now", most):
        _mine.users = now
    _mine.now = min(n, most, getattr(_mine, "users", most))
    if _mine.now != now:
        numba.set_num_threads(_mine.now)
