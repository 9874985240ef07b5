"""A long run in a hostile world, `make soak MINUTES=60`: pools are opened, used, disturbed and ended at random.

Workers are killed. Ctrl-C is caught and the pool used again. Handlers of SIGTERM and SIGALRM raise, or terminate the
pool. Large arrays come and go, and the program forks. Each minute prints one line of counts. At the end they must be
flat: the process must hold no more in the second half of the time than in the first. Everything is drawn from one seed,
which the first line prints; only the moments of signals depend on the machine.
"""

import argparse
import collections
import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import random
import signal
import statistics
import sys
import threading
import time

import tasks
from probe import children, descendants, is_gone, open_fds, thread_ids

from pool_party import ComposableExecutor, ComposablePool, PoolClosed, WorkerLost
from pool_party._ground.threads import start_thread

KINDS = ("thread", "process", "interp")
HANG_S = float(os.environ.get("POOL_PARTY_SOAK_HANG_S", "120"))  # a round takes about a second
MANY = 300  # tasks of a call, at most
SLACK = {"fds": 0, "threads": 0, "children": 0, "mappings": 40, "pss_mb": 8.0}  # growth that is only noise

# glibc raises this threshold up to the largest value that was freed, and keeps twice as much in each thread's arena.
# Here that is some 40 MB (with `multiprocessing.Pool` as well), which would hide a leak.
M_MMAP_THRESHOLD = -3


class TimeIsUp(Exception):
    """The exception that this program's signal handlers raise."""


class Soak:
    def __init__(self, kinds, seed, context):
        self.kinds, self.context = kinds, context
        self.rng = random.Random(seed)
        self.counts = collections.Counter()

    # ---- one round ----

    def round(self):
        kind = self.rng.choice(self.kinds)
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        options = {"kind": kind, "context": self.context if kind == "process" else None}
        deeds = [self.calm, self.calm, self.interrupted, self.alarmed, self.ended_by_handler, self.fork, self.large]
        deed = self.rng.choice([*deeds, self.executor, self.killed if kind == "process" else self.calm])
        self.counts[deed.__name__] += 1
        if deed == self.executor:
            self.use_executor(ComposableExecutor(self.rng.choice([1, 2, 3]), **options))
        elif deed != self.fork or "interp" not in self.kinds:  # CPython crashes in a forked child beside interpreters
            self.use_pool(deed, ComposablePool(self.rng.choice([1, 2, 2, 4]), **options))
        self.counts["pools"] += 1

    def use_pool(self, deed, pool):
        try:
            deed(pool)
        except PoolClosed:
            assert deed == self.ended_by_handler, deed
        if self.rng.random() < 0.5:
            pool.terminate()
        pool.close()
        pool.join()

    def work(self, pool):
        """Make calls of all sorts, and check every value."""
        n = self.rng.randrange(1, MANY)
        late = pool.apply_async(tasks.burn, (2_000,))
        assert pool.map(tasks.square, range(n), self.rng.choice([None, 1, 7])) == [x * x for x in range(n)]
        assert sorted(pool.imap_unordered(tasks.square, iter(range(n)))) == [x * x for x in range(n)]
        late.get()
        self.counts["tasks"] += 2 * n + 1

    # ---- kinds of rounds ----

    def calm(self, pool):
        self.work(pool)

    def large(self, pool):
        """Send large values. Some of them outlive their pool by a round."""
        sizes = [self.rng.choice([100, 70_000, 1_000_000, 8_000_000]) for _ in range(8)]
        self.kept = pool.map(tasks.identity, [bytes(size) for size in sizes], 1)
        assert [len(value) for value in self.kept] == sizes
        self.counts["tasks"] += len(sizes)

    def executor(self):
        """Only its name is used; see use_executor."""

    def use_executor(self, executor):
        futures = [executor.submit(tasks.square, x) for x in range(self.rng.randrange(1, MANY))]
        cancelled = {future for future in futures[1::3] if future.cancel()}
        assert all(future.result() == x * x for x, future in enumerate(futures) if future not in cancelled)
        executor.shutdown(wait=True, cancel_futures=self.rng.random() < 0.5)
        self.counts["tasks"] += len(futures)

    def killed(self, pool):
        """Kill workers. Each kill may cost one task at most."""
        results = [pool.apply_async(tasks.place) for _ in range(4)]
        pids = {result.get()[0] for result in results}
        more = [pool.apply_async(tasks.burn_and_square, (x,)) for x in range(MANY)]
        n_kills = 0
        for pid in pids:
            time.sleep(self.rng.random() * 0.003)
            if pid in descendants(os.getpid()) and not is_gone(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    n_kills += 1
        n_lost = sum(self.is_lost(result, x * x) for x, result in enumerate(more))
        assert n_lost <= n_kills, f"{n_lost} tasks lost by {n_kills} kills"
        self.counts["kills"] += n_kills
        self.counts["tasks"] += MANY + 4

    @staticmethod
    def is_lost(result, expected):
        try:
            assert result.get() == expected
        except WorkerLost:
            return True
        return False

    def interrupted(self, pool):
        """Catch Ctrl-C, and use the pool again."""
        for _ in range(self.rng.randrange(1, 6)):
            self.disturb(pool, signal.SIGINT, signal.default_int_handler)
        self.work(pool)

    def alarmed(self, pool):
        """Let a handler raise. After that the pool is ended."""
        self.disturb(pool, self.rng.choice([signal.SIGTERM, signal.SIGALRM]), self.raise_time_is_up)
        pool.terminate()

    def ended_by_handler(self, pool):
        """Terminate the pool in a handler of SIGTERM, as programs usually do."""
        self.disturb(pool, self.rng.choice([signal.SIGTERM, signal.SIGALRM]), lambda *_: pool.terminate())

    @staticmethod
    def raise_time_is_up(number, frame):
        raise TimeIsUp

    def disturb(self, pool, number, handler):
        """Work until a signal comes, which may be at any moment."""
        delay = self.rng.random() * 0.02

        def send():
            time.sleep(delay)
            os.kill(os.getpid(), number)

        before = signal.signal(number, handler)
        sender = threading.Thread(target=send)
        try:
            try:
                start_thread(sender)  # an exception during `Thread.start` would surface as an error about a lock
                while sender.is_alive():
                    self.work(pool)
                time.sleep(0)
            except (KeyboardInterrupt, TimeIsUp):
                self.counts["caught"] += 1
            sender.join()
        finally:
            signal.signal(number, before)
        self.counts["signals"] += 1

    def fork(self, pool):
        """Fork a child that does not use its parent's pool, opens one of its own, and ends."""
        self.work(pool)
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException), ComposablePool(1, kind="thread") as own:
                os._exit(0 if own.map(tasks.square, [3]) == [9] else 1)
            os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        self.work(pool)
        self.counts["forks"] += 1

    # ---- held resources ----

    def held(self):
        self.kept = None
        for _ in range(3):
            gc.collect()
        return {
            "fds": len(open_fds()),
            "threads": len(thread_ids()),
            "children": len(children()),
            "mappings": count_lines("/proc/self/maps"),
            "pss_mb": round(sum(map(pss_mb, [os.getpid(), *children()])), 1),
        }


def count_lines(path):
    with open(path) as file:
        return sum(1 for _ in file)


def pss_mb(pid):
    """A process's memory in MB. Shared pages are divided among their users."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith("Pss:"))
    except OSError:
        return 0.0


def show(minute, held, counts):
    texts = [f"{key} {value}" for key, value in [*held.items(), *sorted(counts.items())]]
    print(f"{minute:6.1f} min: {', '.join(texts)}", flush=True)


def grown(samples):
    """Return what grew beyond noise from the first to the second half of the time: (before, after) of each.

    The first sample is left out, because it contains what is created once per process.
    """
    samples = samples[1:]
    half = len(samples) // 2
    halves = samples[:half], samples[-half:]
    medians = {key: tuple(statistics.median(s[key] for s in part) for part in halves) for key in SLACK}
    return {key: (before, after) for key, (before, after) in medians.items() if after > before + SLACK[key]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--kind", choices=KINDS, action="append", help="may be given several times; default: all")
    parser.add_argument("--context", help="how processes start; default: as Python does")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 128 * 1024)
    kinds = options.kind or KINDS
    logging.disable()
    print(f"seed {options.seed}, kinds {' '.join(kinds)}, pid {os.getpid()}", flush=True)
    soak = Soak(kinds, options.seed, options.context)
    started = time.monotonic()
    step_s = min(60.0, options.minutes * 60 / 12)
    samples = []
    while time.monotonic() < started + options.minutes * 60:
        soak.round()
        if time.monotonic() > started + step_s * (len(samples) + 1):
            samples.append(soak.held())
            show((time.monotonic() - started) / 60, samples[-1], soak.counts)
    faulthandler.cancel_dump_traceback_later()
    if len(samples) < 5:
        sys.exit("too short a time to compare its halves")
    more = grown(samples)
    print(f"grown: {more}" if more else "flat")
    sys.exit(bool(more))


if __name__ == "__main__":
    main()
