"""Ctrl-C while the parent waits, `python interrupting.py caught|uncaught verb kind gate-path`, or does its own work."""

import contextlib
import functools
import gc
import itertools
import logging
import os
import pathlib
import signal
import sys

from probe import TIMEOUT_S, ComposablePool, gates, main, resources, tasks

import pool_party

PACKAGE = str(pathlib.Path(pool_party.__file__).parent)

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


class CtrlC:
    """Sends Ctrl-C at the n-th line that the main thread runs in the package, wherever that is."""

    def __init__(self, n_lines):
        self.n_left = n_lines

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exc_info):
        sys.settrace(None)

    def _trace(self, frame, event, arg):
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.n_left -= 1
            if self.n_left == 0:
                signal.raise_signal(signal.SIGINT)
        return self._trace


def use(pool):
    assert pool.apply_async(tasks.square, (2,), callback=abs).get() == 4
    assert pool.map(tasks.square, range(3), 1) == [0, 1, 4]
    assert list(pool.imap_unordered(tasks.square, iter([3]))) == [9]


def at_each_line(kind, step):
    """Of submitting, waiting, delivering and replacing workers. The program goes on with the pool each time."""
    in_finalizers = []  # Python prints what is raised there, and goes on
    sys.unraisablehook = lambda info: in_finalizers.append(info.exc_type)
    context = "fork" if kind == "process" else None  # the fastest
    pool = ComposablePool(2, kind=kind, maxtasksperchild=3, context=context)
    for n in itertools.count(1, int(step)):
        interrupted = False
        with CtrlC(n) as ctrl_c:
            try:
                use(pool)
            except KeyboardInterrupt:
                interrupted = True
        if ctrl_c.n_left > 0:
            break
        assert interrupted or in_finalizers.pop() is KeyboardInterrupt, f"Ctrl-C at line {n} was lost"
    assert n > 100, f"only {n} lines were run"
    gates.wait_until(lambda: pool.statistics().n_pending == 0, "what was submitted is done")
    gates.wait_until(lambda: len(pool._pool) == 2, "both places are filled")
    gates.call_in_thread(use, pool).result(TIMEOUT_S)
    pool.close()
    pool.join(timeout=TIMEOUT_S)


def at_each_line_of_a_life(kind, step):
    """Of a pool that is opened, used and ended in a with block: it leaves nothing."""
    sys.unraisablehook = lambda info: None
    context = "fork" if kind == "process" else None
    before = None
    for n in itertools.count(1, int(step)):
        pool = None
        with CtrlC(n) as ctrl_c, contextlib.suppress(KeyboardInterrupt):
            pool = ComposablePool(2, kind=kind, context=context)
            with pool:
                assert pool.apply(tasks.square, (2,)) == 4
        if pool is not None:  # it may have been interrupted before the block, or before its end had begun
            pool.terminate()
            pool.join(timeout=TIMEOUT_S)
        if ctrl_c.n_left > 0:
            break
        before = before or resources()
    assert n > 100, f"only {n} lines were run"
    del pool
    gc.collect()
    gates.wait_until(lambda: all(resources()[what] <= n for what, n in before.items()), f"no more than {before}")


def in_a_start(kind):
    """What a start raises goes to the caller, or is logged, and the place is filled by whoever leads next."""
    logging.disable(logging.ERROR)
    with ComposablePool(1, kind=kind, maxtasksperchild=1) as pool:
        crew = pool._scheduler._crew
        start, n_left = crew._start_worker, [3]

        def interrupted_start(n):
            if n_left[0] > 0:
                n_left[0] -= 1
                raise KeyboardInterrupt
            start(n)

        crew._start_worker = interrupted_start
        for _ in range(5):
            with contextlib.suppress(KeyboardInterrupt):  # unless the background thread met it
                assert pool.apply_async(tasks.square, (2,)).get(TIMEOUT_S) == 4
        assert n_left == [0]


if __name__ == "__main__":
    main(globals())
