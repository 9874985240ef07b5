"""Kills workers of a Dask cluster at random, while a pool on it runs tasks: `make soak-cluster KILLS=300`.

Each task notes that it runs in a file. At the end each must have exactly one outcome, none may have run twice, those
that have a result must have run, and no process may be left.
"""

import argparse
import collections
import itertools
import os
import pathlib
import random
import sys
import tempfile
import threading
import time

import clusters
import gates
import psutil

from pool_party import ComposablePool, WorkerLost, share

N_WORKERS = 3  # of Dask
AHEAD = 2_000  # tasks that are submitted before the outcome of the first is asked for
PAUSE_S = 0.3  # between kills, on average
N_BYTES = 8  # of a number in the file


def note(path, number, array):
    """Note that this task runs. array: shared memory, which must be what the program made."""
    with open(path, "ab", buffering=0) as log:
        log.write(number.to_bytes(N_BYTES))
    return number, array is None or (array[0], len(array))


def victims(cluster):
    """Return the processes below the nannies: Dask workers, fork servers, and workers of ours."""
    found = []
    for nanny in cluster.workers:
        try:
            found += psutil.Process(nanny.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            pass
    return found


def kill_some(cluster, n_kills, is_over):
    """Kill processes at random, the workers of Dask among them. Return how many of each name."""
    killed = collections.Counter()
    while not is_over.is_set() and killed.total() < n_kills:
        time.sleep(random.expovariate(1 / PAUSE_S))
        try:
            victim = random.choice(victims(cluster))
            depth = len(victim.parents())
            victim.kill()
        except (psutil.NoSuchProcess, IndexError):
            continue
        killed[f"level {depth}"] += 1
    is_over.set()
    return killed


def play(cluster, folder, n_kills):
    """Submit tasks until enough was killed. Return outcomes by name, the records of runs, and what was killed."""
    path = folder / "runs"
    path.touch()
    arrays = [None, share(b"a" * 300_000), share(b"b" * 300_000, readonly=True)]
    outcomes, wrong = {}, []
    is_over = threading.Event()
    with ComposablePool(2, kind="dask", address=str(cluster.file)) as pool:
        killing = gates.call_in_thread(kill_some, cluster, n_kills, is_over)
        pending = collections.deque()

        def settle():
            number, result, array = pending.popleft()
            try:
                found = result.get(300)
                outcomes[number] = "result"
                expected = (number, array is None or (array[0], len(array)))
                if found != expected:
                    wrong.append((number, found))
            except WorkerLost:
                outcomes[number] = "WorkerLost"

        for number in itertools.count():
            array = random.choice(arrays) if number % 20 == 0 else None
            pending.append((number, pool.apply_async(note, (os.fspath(path), number, array)), array))
            if len(pending) > AHEAD:
                settle()
            if is_over.is_set():
                break
        while pending:
            settle()
        killed = killing.result(60)
    noted = path.read_bytes()
    runs = collections.Counter(int.from_bytes(noted[at : at + N_BYTES]) for at in range(0, len(noted), N_BYTES))
    return outcomes, runs, killed, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    random.seed(options.seed)
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with clusters.Cluster(folder, n_workers=N_WORKERS, nanny=True) as cluster:
            gates.wait_until(lambda: len(victims(cluster)) >= N_WORKERS, "the workers are there", 60)
            outcomes, runs, killed, wrong = play(cluster, folder, options.kills)
        left = [process for process in psutil.Process().children(recursive=True) if process.is_running()]
    twice = {number: n for number, n in runs.items() if n > 1}
    unrun = [number for number, outcome in outcomes.items() if outcome == "result" and not runs[number]]
    counts = collections.Counter(outcomes.values())
    print(f"{time.monotonic() - begin_s:.0f} s, killed {dict(killed)}: {len(outcomes)} tasks, {dict(counts)}")
    print(f"run twice: {twice}; results of tasks that have not run: {unrun}; wrong: {wrong}; left: {left}")
    sys.exit(bool(twice or unrun or wrong or left or set(outcomes) != set(range(len(outcomes)))))


if __name__ == "__main__":
    main()
