"""Ctrl-C while the parent waits: `python interrupting.py caught|uncaught verb kind gate-path`."""

import functools
import os

from probe import ComposablePool, gates, main, tasks

VERBS = {
    "map": lambda pool, task: pool.map(task, range(2), 1),
    "apply": lambda pool, task: pool.apply(task, (1,)),
    "get": lambda pool, task: pool.apply_async(task, (1,)).get(),
    "get with a time-out": lambda pool, task: pool.map_async(task, range(2), 1).get(60),
    "imap": lambda pool, task: next(pool.imap(task, range(2))),
    "join": lambda pool, task: (pool.apply_async(task, (1,)), pool.close(), pool.join()),
}


def caught(verb, kind, gate_path):
    """The test lets the tasks go when it reads "caught"; nothing else may wake this process."""
    try:
        with ComposablePool(2, kind=kind) as pool:
            VERBS[verb](pool, functools.partial(tasks.pass_gate, gate_path))
    except KeyboardInterrupt:
        print("caught", flush=True)
    else:
        print("not interrupted", flush=True)
    pool.join(timeout=30)
    if kind == "process":
        gates.wait_until(lambda: not any(worker.is_alive() for worker in pool._pool), "no worker is left")
    # What comes in one read with "caught" would be lost to the test, which reads a line, then the rest.
    gates.wait_until(lambda: not os.path.exists(gate_path + ".pass"), "the gate is closed")
    with ComposablePool(2, kind=kind) as again:
        print(again.map(tasks.square, range(3)), flush=True)


def uncaught(verb, kind, gate_path):
    with ComposablePool(2, kind=kind) as pool:
        VERBS[verb](pool, functools.partial(tasks.pass_gate, gate_path))


if __name__ == "__main__":
    main(globals())
