"""Signals to the whole process group while workers start and are replaced, at random instants.

KIND       how workers start: fork, forkserver, spawn, loky, thread or interp
SEED       of the random instants
ROUNDS     pools, one after the other

The program notes the signals and goes on, as one that handles Ctrl-C. Afterwards each pool works and ends, and at the
end no process and no descriptor is left. Nothing is printed: no traceback of a process that was only starting.
"""

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys

from probe import TIMEOUT_S, ComposablePool, gates, tasks

from pool_party import WorkerLost

WINDOW_S = {"spawn": 0.5, "loky": 0.7, "forkserver": 0.2}  # about how long a start takes, on a slow machine

# SIGHUP ends the resource tracker of `multiprocessing`, which warns of that when it is started again.
NUMBERS = {kind: [signal.SIGINT, signal.SIGTERM, signal.SIGHUP] for kind in ("fork", "thread", "interp")}

SENDER = """
import os, random, sys, time
group, seed, window = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
os.setpgid(0, 0)
choose = random.Random(seed)
print(flush=True)
for _ in range(choose.randrange(1, 12)):
    time.sleep(choose.random() * window / 8)
    for _ in range(choose.choice((1, 1, 5))):
        os.killpg(group, int(choose.choice(sys.argv[4:])))
"""


def note(number, frame):
    """Handle a signal as a program that goes on."""


@contextlib.contextmanager
def storm(seed, window_s, numbers):
    """Send signals to this process group from another process. Waits for its end."""
    command = [sys.executable, "-S", "-c", SENDER, os.getpgrp(), seed, window_s, *map(int, numbers)]
    sender = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE)
    sender.stdout.readline()
    try:
        yield
    finally:
        sender.stdout.close()
        assert sender.wait(TIMEOUT_S) == 0


def opened(kind):
    if kind in ("thread", "interp"):
        return ComposablePool(2, kind=kind)
    return ComposablePool(2, kind="process", context=context_of(kind))


def context_of(kind):
    if kind != "loky":
        return kind
    from joblib.externals.loky.backend.context import get_context

    return get_context("loky")


def end_worker(pool, kind):
    """Have a worker be replaced."""
    if kind not in ("thread", "interp"):
        with contextlib.suppress(WorkerLost):
            pool.apply_async(os.kill, (pool.apply(os.getpid), signal.SIGKILL)).get(TIMEOUT_S)


def works(pool):
    """Whether the pool works within some tries, since a signal may have ended a worker amid a task."""
    for _ in range(50):
        with contextlib.suppress(WorkerLost):
            return pool.map_async(tasks.square, range(20), 1).get(TIMEOUT_S) == [x * x for x in range(20)]
    return False


def children():
    """The pids of the living children, but for the processes that `multiprocessing` keeps for later."""
    found = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    names = {pid: pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found}
    return [pid for pid, name in names.items() if b"tracker" not in name and b"forkserver" not in name]


def one_round(kind, choose):
    numbers = [signal.SIGINT] if choose.random() < 0.6 else NUMBERS.get(kind, [signal.SIGINT, signal.SIGTERM])
    seed, window_s = choose.randrange(2**32), WINDOW_S.get(kind, 0.05)
    if choose.random() < 0.3:
        numbers = [signal.SIGINT]
        with opened(kind) as pool, storm(seed, window_s, numbers):
            end_worker(pool, kind)
            assert works(pool)
    else:
        with storm(seed, window_s, numbers):
            pool = opened(kind)
        with pool:
            assert works(pool)
    pool.join(timeout=TIMEOUT_S)


def main(kind, seed, rounds):
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, note)
    choose = random.Random(int(seed))
    n_descriptors = []
    for _ in range(int(rounds)):
        one_round(kind, choose)
        gates.wait_until(lambda: not children(), "no child is left")
        n_descriptors.append(len(os.listdir("/proc/self/fd")))
    assert max(n_descriptors[1:], default=0) <= n_descriptors[0] + 3, n_descriptors  # a server started anew has some


if __name__ == "__main__":
    main(*sys.argv[1:])
