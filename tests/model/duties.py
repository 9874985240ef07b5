"""The tasks of the random programs: each task records that it began, and then does one deed.

A deed is a tuple: its name and its arguments. The possible outcomes of a task depend only on its deed and on the kind
of worker; `verdict.py` knows them. Everything here loads in workers of every kind.
"""

import os
import signal
import threading
import time

import tasks


def pattern(ident, size):
    """Bytes that identify a task."""
    return bytes([ident & 255]) * size


def note(log, ident):
    """Add a line to a log, which is a path, or a descriptor if worker and parent are one process.

    The task of a terminated thread may be stopped between any two lines, so it must not open anything.
    """
    if isinstance(log, int):
        os.write(log, f"{ident}\n".encode())
    else:
        tasks.log_line(log, ident)


def perform(item):
    """One task, given as a single argument."""
    return perform_args(*item)


def perform_args(log, ident, deed, ballast=b""):
    """One task, given as several arguments."""
    note(log, ident)
    if isinstance(ballast, bytes) and ballast != pattern(ident, len(ballast)):
        raise AssertionError(f"the argument of task {ident} was changed on its way")
    return DEEDS[deed[0]](ident, *deed[1:])


def value(ident, size=0):
    return (ident, pattern(ident, size)) if size else ident


def slow(ident, seconds):
    time.sleep(seconds)
    return ident


def spin(ident, n):
    tasks.burn(n)
    return ident


def hold(ident, gate):
    """Wait until the file `gate` has been removed."""
    _wait_for(lambda: not os.path.exists(gate))
    return ident


def meet(ident, log, n):
    """Wait until `n` tasks have arrived here, so that each needs a worker of its own."""
    note(log, ident)
    status = os.fstat if isinstance(log, int) else os.stat
    pause_s = n / 3000  # all waiting tasks together check 3,000 times a second, and leave the CPUs to others
    _wait_for(lambda: status(log).st_size >= n * len(f"{ident}\n"), pause_s)
    return ident


def _wait_for(condition, pause_s=0.002):
    deadline = time.monotonic() + tasks.GATE_BACKSTOP_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("nobody came")
        time.sleep(pause_s)  # so that many processes leave CPU time to those that are still starting


def fail(ident, name):
    tasks.raise_named(name, *((ident, "a reason") if name == "OddInitError" else (ident,)))


def pid(ident):
    return ident, os.getpid()


def lock(ident):
    return [ident, threading.Lock()]


def explode(ident):
    return tasks.make_exploding(ident)


def die(ident, how):
    """End this worker process during its task."""
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def doomed(ident, seconds):
    """Kill this worker process at about the moment when it sends its result."""
    killer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
    killer.daemon = True
    killer.start()
    return ident


DEEDS = {f.__name__: f for f in (value, slow, spin, hold, meet, fail, pid, lock, explode, die, doomed)}


class Bomb:
    """An argument whose pickling raises a BaseException, as a test's time-out or a second Ctrl-C may."""

    def __reduce__(self):
        raise BombError


class BombError(BaseException):
    """The exception that a Bomb raises."""
