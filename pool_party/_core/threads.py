"""Starting the pool's own threads."""

import _thread
import threading

from pool_party import _native


def start_thread(thread: threading.Thread) -> None:
    """Start a thread, as a daemon if the interpreter allows that; otherwise our exit hook ends it.

    No signal handler runs during the start. An exception from one in `Thread.start` would surface as an error about a
    lock in `threading`.
    """
    thread.daemon = threading._daemon_threads_allowed()  # type: ignore[attr-defined]
    _native.call_apart(thread.start)


def start_detached(thread: threading.Thread) -> None:
    """Start a thread that nobody joins. It is faster than `start_thread`, but a signal handler may interrupt it."""
    if threading._daemon_threads_allowed():  # type: ignore[attr-defined]
        _thread.start_new_thread(thread.run, ())
    else:
        start_thread(thread)
