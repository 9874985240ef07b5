"""Survive workers that are killed and tasks that hang.

    python examples/faults.py [--context METHOD] [--quick]

Some tasks kill their own worker, as a crash in C code or the system does when memory runs out. Only the task that the
worker ran is lost: its `get` raises WorkerLost, the pool starts another worker, and the program submits that task
again. One task never returns. `get(timeout)` raises TimeoutError for it in time, and the end of the `with` block ends
its worker.

It prints what was lost and repeated, whether all results are right in the end, and how long the timeout and the end
took. With `multiprocessing.Pool` the first killed task makes `get` wait for ever.
"""

import argparse
import math
import multiprocessing
import os
import signal
import sys
import time

from pool_party import ComposablePool, WorkerLost


def work(n: int, attempt: int) -> int:
    """Return the factorial of n; some tasks kill their worker at the first attempt, some at the second, too."""
    if n % 10 == 3 and attempt <= 1 + n % 20 // 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return math.factorial(n)


def run_all(pool: ComposablePool, numbers: range) -> tuple[dict[int, int], list[WorkerLost]]:
    """Run `work` for all numbers, and again for those that were lost; return the results and the losses."""
    results: dict[int, int] = {}
    losses: list[WorkerLost] = []
    for attempt in (1, 2, 3):
        pending = {n: pool.apply_async(work, (n, attempt)) for n in numbers if n not in results}
        for n, result in pending.items():
            try:
                results[n] = result.get()
            except WorkerLost as error:
                losses.append(error)
    return results, losses


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--context", choices=("fork", "forkserver", "spawn"), help="how processes start")
    parser.add_argument("--quick", action="store_true", help="few tasks")
    args = parser.parse_args()
    numbers, timeout_s = (range(20), 0.1) if args.quick else (range(200), 1.0)

    with ComposablePool(2, context=args.context) as pool:
        results, losses = run_all(pool, numbers)
        is_right = results == {n: math.factorial(n) for n in numbers}
        print(f"{len(numbers)} tasks, {len(losses)} losses; the first: {losses[0]}")
        print(f"workers lost and replaced: {pool.statistics().n_workers_lost}")
        print(f"all results right in the end: {'yes' if is_right else 'NO'}")

        hanging, is_kept = pool.apply_async(time.sleep, (86400,)), False
        started_s = time.perf_counter()
        try:
            hanging.get(timeout=timeout_s)
        except multiprocessing.TimeoutError:
            is_kept = True
        print(f"timeout of {timeout_s} s kept ({time.perf_counter() - started_s:.2f} s): {'yes' if is_kept else 'NO'}")
        is_useful = pool.apply(work, (5, 1)) == math.factorial(5)
        print(f"the pool works on meanwhile: {'yes' if is_useful else 'NO'}")
        ended_s = time.perf_counter()
    pool.join()
    print(f"the pool and the hanging task ended within {time.perf_counter() - ended_s:.2f} s")
    return is_right and is_kept and is_useful


if __name__ == "__main__":
    sys.exit(not main())
