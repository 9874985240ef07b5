"""Many tasks while workers are killed at random: every task has exactly one outcome.

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

from probe import ComposablePool, descendants, gates, resources, signal, tasks, worker_pids

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
        function, args = tasks.square, (i,)
    return pool.apply_async(function, args, {}, succeeded, failed)


class Killer:
    """A thread that SIGKILLs one worker after each `every` finished tasks."""

    def __init__(self, pool, n_kills, n_tasks, seed):
        self.pool, self.n_kills, self.n_done = pool, 0, 0
        self._goals = [round((k + 1) * n_tasks / (n_kills + 1)) for k in range(n_kills)]
        self._rng = random.Random(seed)
        self._thread = threading.Thread(target=self._run)
        self._stop = False
        self._thread.start()

    def _run(self):
        for goal in self._goals:
            while self.n_done < goal and not self._stop:
                time.sleep(0.0005)
            if self._stop:
                return
            time.sleep(self._rng.random() * 0.002)  # at any instant of a worker's loop
            while True:  # a worker that died already, or is not started yet, does not count
                pid = self._rng.choice(worker_pids(self.pool))
                with contextlib.suppress(ProcessLookupError, TypeError):
                    os.kill(pid, signal.SIGKILL)
                    self.n_kills += 1
                    break

    def stop(self):
        self._stop = True
        self._thread.join()


def run(n_tasks, n_kills, context, seed, n_workers):
    outcomes = [[] for _ in range(n_tasks)]
    n_lost_by_get = 0
    with ComposablePool(n_workers, context=context, kind="process") as pool:
        killer = Killer(pool, n_kills, n_tasks, seed)
        try:
            in_flight = collections.deque()
            next_task = 0
            while in_flight or next_task < n_tasks:
                while next_task < n_tasks and len(in_flight) < WINDOW:
                    in_flight.append((next_task, submit(pool, next_task, outcomes)))
                    next_task += 1
                i, result = in_flight.popleft()
                try:
                    assert result.get(60) == expected_of(i), f"task {i}: wrong value"
                except WorkerLost:
                    n_lost_by_get += 1
                killer.n_done += 1
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
    assert n_lost <= killer.n_kills, f"{n_lost} tasks lost by {killer.n_kills} kills"
    assert killer.n_kills == n_kills, f"only {killer.n_kills} of {n_kills} kills"
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

    run(500, 5, context, args.seed, args.workers)  # what is made once, is made
    gc.collect()
    before, below = resources(), len(descendants(os.getpid()))
    started = time.monotonic()
    n_lost = run(args.tasks, args.kills, context, args.seed, args.workers)
    wall_s = time.monotonic() - started

    def is_clean():
        gc.collect()
        now = resources()
        return (
            all(now[key] <= before[key] for key in now) and len(descendants(os.getpid())) <= below
        )

    try:
        gates.wait_until(is_clean, "resources are given back", timeout=15)
    except AssertionError:
        sys.exit(
            f"leaked: before {before}, after {resources()};"
            f" processes {below}, then {descendants(os.getpid())}"
        )
    print(f"{args.tasks} tasks, {args.kills} kills, {n_lost} tasks lost, {wall_s:.1f} s")
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
