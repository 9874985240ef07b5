"""Threads of the pool's own."""

import _thread
import threading

from pool_party import _native


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread, as a daemon where the interpreter allows that; elsewhere our hook at exit ends it.

    No signal handler runs amid it: what one raises in `Thread.start` arrives as an error about a lock of `threading`'s.
    """
    thread.daemon = threading._daemon_threads_allowed()  # type: ignore[attr-defined]
    _native.call_apart(thread.start)


def start_detached(thread: threading.Thread) -> None:
    """Starts a thread that nobody joins; faster than `start_thread`, and a signal handler may come amid it, too."""
    if threading._daemon_threads_allowed():  # type: ignore[attr-defined]
        _thread.start_new_thread(thread.run, ())
    else:
        start_thread(thread)
