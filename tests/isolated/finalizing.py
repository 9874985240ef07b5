"""A finalizer storm: objects of the user's, whose finalizers use and end pools, in all threads and at any moment.

argv: the kinds of workers, separated by commas, the first seed, and the number of programs. Each program opens two or
three pools, uses them from three threads, and ends them. The collector runs as often as it can.
"""

import _thread
import faulthandler
import gc
import logging
import sys
import threading
import traceback

import storms
from probe import ComposablePool, tasks

from pool_party import ComposableExecutor

HANG_S = 90
N_STEPS = 12


def open_pool(storm, kinds):
    kind = storm.rng.choice(kinds)
    options = {"kind": kind, "context": "forkserver"} if kind == "process" else {"kind": kind}
    if storm.rng.random() < 0.3:
        options |= {"initializer": storms.initialize, "initargs": (storms.Trap(storm),)}
    if storm.rng.random() < 0.15:
        options["log"] = True
    make = ComposableExecutor if storm.rng.random() < 0.4 else ComposablePool
    return make(storm.rng.choice([1, 2]), **options)


def run(seed, kinds):
    """Run one program. Return the number of finalizers that ran."""
    storm = storms.Storm(seed)
    for _ in range(storm.rng.choice([2, 3])):
        storm.pools.append(open_pool(storm, kinds))
    over = [_thread.allocate_lock() for _ in range(2)]

    def act(lock):
        try:
            storms.act(storm, N_STEPS)
        except BaseException as error:
            storm.violations.append(error)
        finally:
            lock.release()

    for lock in over:
        lock.acquire()
        _thread.start_new_thread(act, (lock,))  # `threading` has a lock that finalizers must not find held
    storms.act(storm, N_STEPS)
    for lock in over:
        lock.acquire()
    storm.ends = False
    storm.results.clear()
    for pool in storm.pools:
        if isinstance(pool, ComposablePool):
            pool.terminate()
            pool.join(timeout=HANG_S)
        else:
            pool.shutdown(cancel_futures=True)
    for error in storm.violations:
        traceback.print_exception(error)
    assert not storm.violations, f"seed {seed}"
    return storm.n_finalized


def main(kinds, first, n_programs):
    logging.disable()  # callbacks that raise
    kinds = kinds.split(",")
    n_finalized = 0
    for kind in kinds:  # what is imported later would be imported amid the storm
        with ComposablePool(1, kind=kind, log=True) as pool:
            pool.apply_async(tasks.square, (2,), {}, print).get()
            list(pool.imap(tasks.square, iter([1])))
    gc.set_threshold(1)
    for seed in range(int(first), int(first) + int(n_programs)):
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        print("seed", seed, flush=True)
        n_finalized += run(seed, kinds)
    faulthandler.cancel_dump_traceback_later()
    leave(kinds)
    print("finalizers", n_finalized, "threads", threading.active_count(), flush=True)


def leave(kinds):
    """Leave pools open, with traps in them, for the end of the program."""
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    storm = storms.Storm(0)
    for kind in kinds:
        storm.pools.append(ComposablePool(1, kind=kind))
        storm.pools.append(ComposableExecutor(1, kind=kind))
    storms.act(storm, N_STEPS)
    globals()["kept"] = storm


if __name__ == "__main__":
    main(*sys.argv[1:])
