"""Many tasks while workers are killed at random. Every task must have exactly one outcome.

python stress_kill.py --tasks 100000 --kills 200
"""

import argparse
import collections
import contextlib
import faulthandler
import gc
import multiprocessing
import os
import random
import sys
import threading
import time

from probe import ComposablePool, descendants, gates, is_gone, resources, signal, tasks

from pool_party import WorkerLost

WINDOW = 2_000  # calls in flight


def expected_of(i):
    return tasks.pattern(60_000, i) if i % 500 == 0 else i * i


def submit(pool, i, outcomes):
    def succeeded(value):
        outcomes[i].append("right" if value == expected_of(i) else "wrong")

    def failed(error):
        outcomes[i].append("lost" if isinstance(error, WorkerLost) else repr(error))

    if i % 500 == 0:
        function, args = tasks.identity, (tasks.pattern(60_000, i),)
    else:
        function, args = tasks.burn_and_square, (i,)
    return pool.apply_async(function, args, {}, succeeded, failed)


class Killer:
    """A thread that SIGKILLs one worker each time that `every` more tasks have finished."""

    def __init__(self, pool, n_kills, every, seed):
        self.pool, self.n_left = pool, n_kills
        self._every = self._goal = every
        self._n_starts_left = 3  # a pool gives up after four workers in a row that never were ready
        self._n_done = 0
        self._is_time = threading.Event()
        self._rng = random.Random(seed)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def note_done(self):
        self._n_done += 1
        if self._n_done >= self._goal:
            self._is_time.set()

    def _run(self):
        while self.n_left:
            self._is_time.wait()
            time.sleep(self._rng.random() * 0.002)  # to hit any instruction of a worker's loop
            self._kill()
            self._goal = self._n_done + self._every
            self._is_time.clear()

    def _kill(self):
        while self.n_left:  # a dead worker does not count, and while all are being replaced there is none
            worker = self._rng.choice(self.pool._engine.workers or [None])
            if worker is None or worker.pid is None or is_gone(worker.pid):
                continue
            was_ready = worker.was_ready
            if not was_ready and self._n_starts_left == 0:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
                self._n_starts_left -= not was_ready
                self.n_left -= 1
                return

    def stop(self):
        self.n_left = 0
        self._is_time.set()
        self._thread.join()


def run(n_tasks, n_kills, context, seed, n_workers):
    """Run at least n_tasks tasks, and more until the last worker is killed."""
    outcomes = []
    n_lost_by_get = 0
    with ComposablePool(n_workers, context=context, kind="process") as pool:
        killer = Killer(pool, n_kills, n_tasks // (n_kills + 1), seed)
        try:
            in_flight = collections.deque()
            while in_flight or len(outcomes) < n_tasks:
                while len(in_flight) < WINDOW and (len(outcomes) < n_tasks or killer.n_left):
                    outcomes.append([])
                    i = len(outcomes) - 1
                    in_flight.append((i, submit(pool, i, outcomes)))
                i, result = in_flight.popleft()
                try:
                    assert result.get(60) == expected_of(i), f"task {i}: wrong value"
                except WorkerLost:
                    n_lost_by_get += 1
                killer.note_done()
            assert killer.n_left == 0
        finally:
            killer.stop()
        pool.map(tasks.square, range(100), 1)
        stats = pool.statistics()
        pool.close()
        pool.join(timeout=60)
    wrong = {i: seen for i, seen in enumerate(outcomes) if seen not in (["right"], ["lost"])}
    assert not wrong, f"not exactly one right outcome: {dict(list(wrong.items())[:10])}"
    n_lost = outcomes.count(["lost"])
    assert n_lost == n_lost_by_get
    assert n_lost <= n_kills, f"{n_lost} tasks lost by {n_kills} kills"
    assert stats.n_pending == 0 and stats.n_workers_lost <= n_kills, stats
    return n_lost


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--start-method", default=None)
    parser.add_argument("--hang-s", type=float, default=500)
    args = parser.parse_args()
    faulthandler.dump_traceback_later(args.hang_s, exit=True)
    context = args.start_method and multiprocessing.get_context(args.start_method)

    run(500, 5, context, args.seed, args.workers)  # create what is created once
    gc.collect()
    before, below = resources(), len(descendants(os.getpid()))
    started = time.monotonic()
    n_lost = run(args.tasks, args.kills, context, args.seed, args.workers)
    wall_s = time.monotonic() - started

    def is_clean():
        gc.collect()
        now = resources()
        return all(now[key] <= before[key] for key in now) and len(descendants(os.getpid())) <= below

    try:
        gates.wait_until(is_clean, "resources are given back", timeout=15)
    except AssertionError:
        sys.exit(f"leaked: before {before}, after {resources()}; processes {below}, then {descendants(os.getpid())}")
    print(f"{args.tasks} tasks, {args.kills} kills, {n_lost} tasks lost, {wall_s:.1f} s")
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
