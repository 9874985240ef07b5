"""Gates hold tasks in workers of any kind, without sleeping. A gate is two named FIFOs."""

import os
import select
import threading
import time


class Gate:
    """Tasks call `tasks.pass_gate(gate.path)`. The test sees them arrive, and lets them pass."""

    def __init__(self, path):
        self.path = str(path)
        for suffix in (".arrived", ".pass"):
            os.mkfifo(self.path + suffix)
        # O_RDWR opens a FIFO at once, and keeps it open while no task uses it.
        self._arrived = os.open(self.path + ".arrived", os.O_RDWR | os.O_NONBLOCK)
        self._pass = os.open(self.path + ".pass", os.O_RDWR | os.O_NONBLOCK)
        self._pids = []
        self._buffer = b""
        self._closed = False

    def wait_arrived(self, n=1, timeout=30.0):
        """Wait until `n` more tasks have arrived at the gate. Return their workers' pids."""
        deadline = time.monotonic() + timeout
        while len(self._pids) < n:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._arrived], [], [], left)[0]:
                raise AssertionError(f"{len(self._pids)} of {n} tasks arrived in {timeout} s")
            *lines, self._buffer = (self._buffer + os.read(self._arrived, 65536)).split(b"\n")
            self._pids += map(int, lines)
        taken, self._pids = self._pids[:n], self._pids[n:]
        return taken

    def release(self, n=1):
        """Let `n` tasks pass, now or when they arrive."""
        os.write(self._pass, b"." * n)

    def close(self):
        """Let every task pass from now on."""
        if not self._closed:
            self._closed = True
            for suffix in (".pass", ".arrived"):
                os.unlink(self.path + suffix)
            os.close(self._pass)
            os.close(self._arrived)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()


def wait_until(condition, what, timeout=30.0):
    """Poll a condition that other processes bring about. Return its value once it is true."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(0.002)
    return value


class call_in_thread:
    """Run `fn` in a thread. `result(timeout)` fails the test if it hangs."""

    def __init__(self, fn, *args, **kwargs):
        self._call = (fn, args, kwargs)
        self._value = self._error = None
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"call {fn!r}")
        self._thread.start()

    def _run(self):
        fn, args, kwargs = self._call
        try:
            self._value = fn(*args, **kwargs)
        except BaseException as error:
            self._error = error

    def result(self, timeout=30.0):
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"{self._call[0]!r} did not return in {timeout} s"
        if self._error is not None:
            raise self._error
        return self._value
