"""Threads of the pool's own."""

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
