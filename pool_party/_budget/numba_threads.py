"""Numba's thread count, which each thread has for itself: limited to a worker's budget once Numba is imported.

Numba can mask threads that it has started, but cannot start more. Worker processes therefore set `NUMBA_NUM_THREADS` to
the largest that their budget may become.
"""

from __future__ import annotations

import sys
import threading

_mine = threading.local()  # now: what this worker has set or seen last; users: the most that the user has set here


def keep_to(n: int) -> None:
    """Let Numba use up to n threads in the calling worker's thread, or fewer if the user set fewer or it has fewer."""
    numba = sys.modules.get("numba")
    if numba is None or not hasattr(numba, "set_num_threads"):  # it is still being imported
        return
    most = numba.config.NUMBA_NUM_THREADS
    if n >= most and not hasattr(_mine, "now"):
        return  # asking Numba for its count would start its threads
    now = numba.get_num_threads()
    if now != getattr(_mine, "now", most):
        _mine.users = now
    _mine.now = min(n, most, getattr(_mine, "users", most))
    if _mine.now != now:
        numba.set_num_threads(_mine.now)
