"""Threads of the pool's own."""

import _thread
import threading


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread, as a daemon where the interpreter allows that; elsewhere our hook at exit ends it."""
    try:
        thread.daemon = True
        thread.start()
    except RuntimeError:
        if thread.is_alive():
            raise
        thread.daemon = False
        thread.start()


def start_detached(thread: threading.Thread) -> None:
    """Starts a thread that nobody joins, where a signal handler may come.

    `Thread.start` waits for the thread, and an exception amid that wait turns into one about a lock of its own.
    """
    if threading._daemon_threads_allowed():  # type: ignore[attr-defined]
        _thread.start_new_thread(thread.run, ())
    else:
        start_thread(thread)
