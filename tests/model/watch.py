"""Self-observation of a random program: a journal, limits of steps, the clock's noise, and threads that act."""

import collections
import faulthandler
import functools
import os
import queue
import sys
import threading
import time
import traceback


class Journal:
    """The newest steps of a program, printed if it fails, since parallel runs cannot be repeated exactly."""

    def __init__(self):
        self._lines = collections.deque(maxlen=400)
        self._began = time.monotonic()

    def clear(self):
        self._lines.clear()

    def note(self, text):
        self._lines.append(f"{time.monotonic() - self._began:9.4f} {threading.current_thread().name}: {text}")

    def show(self):
        print("\n--- what was done, and when", *list(self._lines), sep="\n", file=sys.stderr, flush=True)


class Watchdog:
    """Ends the program, with its journal and every thread's stack, if a step takes too long."""

    HANG_STATUS = 3

    def __init__(self, journal):
        self._journal = journal
        self._what, self._deadline = "start", float("inf")
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def allow(self, seconds, what):
        """Record that the main thread begins a step that may take this long."""
        self._what, self._deadline = what, time.monotonic() + seconds

    def arm_backstop(self, seconds):
        """Arm a time-out for a hang that holds the GIL, which our own thread cannot see."""
        faulthandler.dump_traceback_later(seconds, exit=True)

    def rest(self):
        self._deadline = float("inf")
        faulthandler.cancel_dump_traceback_later()

    def _run(self):
        while time.monotonic() < self._deadline:
            time.sleep(0.2)
        self._journal.show()
        print(f"\nHUNG in: {self._what}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(self.HANG_STATUS)


class Metronome:
    """Measures how late the system wakes a sleeping thread. No call can be more punctual."""

    PERIOD_S = 0.005

    def __init__(self):
        self._late = collections.deque(maxlen=4_000)
        self._before = time.monotonic()
        threading.Thread(target=self._run, name="metronome", daemon=True).start()

    def _run(self):
        while True:
            self._before = before = time.monotonic()
            time.sleep(self.PERIOD_S)
            now = time.monotonic()
            self._late.append((now, now - before - self.PERIOD_S))

    def noise_since(self, when):
        """The worst lateness since a moment, in seconds, including the present beat."""
        seen = [late for ended, late in list(self._late) if ended >= when]
        return max(0.0, time.monotonic() - self._before - self.PERIOD_S, *seen) if seen else time.monotonic() - when


class Actor:
    """A thread that runs one action after the other. It lives as long as the program."""

    def __init__(self, name):
        self._inbox = queue.SimpleQueue()
        self._n_posted = self._n_done = 0
        self._is_idle = threading.Condition()
        self.errors = []
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def post(self, deed, *args):
        self._n_posted += 1
        self._inbox.put(functools.partial(deed, *args))

    def wait_idle(self):
        """Wait until all actions are done, and raise the first error."""
        with self._is_idle:
            self._is_idle.wait_for(lambda: self._n_done == self._n_posted)
        errors, self.errors = self.errors, []
        if errors:
            raise errors[0]

    def _run(self):
        while True:
            self._do(self._inbox.get())
            with self._is_idle:
                self._n_done += 1
                self._is_idle.notify_all()

    def _do(self, deed):
        try:
            deed()
        except BaseException as error:
            traceback.print_exc()
            self.errors.append(error)


def wait_flat(measure, before, seconds):
    """Wait until each count of `measure()` is back at its old value. Return those that are not, or {}."""
    deadline = time.monotonic() + seconds
    while True:
        now = measure()
        above = {key: (before[key], now[key]) for key in now if now[key] > before[key]}
        if not above or time.monotonic() > deadline:
            return above
        time.sleep(0.005)
