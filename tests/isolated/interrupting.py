"""Ctrl-C while the parent waits, `python interrupting.py caught|uncaught verb kind gate-path`, or does its own work."""

import contextlib
import functools
import gc
import itertools
import os
import pathlib
import signal
import sys
import tempfile
import threading

from probe import TIMEOUT_S, ComposablePool, gates, main, resources, tasks

import pool_party
from pool_party import ComposableExecutor
from pool_party._core import workers
from pool_party._core.engine import Engine

PACKAGE = str(pathlib.Path(pool_party.__file__).parent)
FILES = (PACKAGE, threading.__file__)

VERBS = {
    "map": lambda pool, task: pool.map(task, range(2), 1),
    "apply": lambda pool, task: pool.apply(task, (1,)),
    "get": lambda pool, task: pool.apply_async(task, (1,)).get(),
    "get with a time-out": lambda pool, task: pool.map_async(task, range(2), 1).get(60),
    "imap": lambda pool, task: next(pool.imap(task, range(2))),
    "join": lambda pool, task: (pool.apply_async(task, (1,)), pool.close(), pool.join()),
}


def caught(verb, kind, gate_path):
    """The test releases the tasks when it reads "caught". Nothing else may wake this process."""
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
    # The test reads a line and then the rest, so it would lose output that arrives in one read with "caught".
    gates.wait_until(lambda: not os.path.exists(gate_path + ".pass"), "the gate is closed")
    with ComposablePool(2, kind=kind) as again:
        print(again.map(tasks.square, range(3)), flush=True)


def uncaught(verb, kind, gate_path):
    with ComposablePool(2, kind=kind) as pool:
        VERBS[verb](pool, functools.partial(tasks.pass_gate, gate_path))


def interrupt_in_wait():
    """Have KeyboardInterrupt raised in the program as soon as it waits for a call."""

    def handle(signum, frame):
        if frame.f_code is Engine.wait.__code__:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.default_int_handler(signum, frame)

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)


def withdrawn(verb, kind):
    """What has not begun when its wait is interrupted never begins, since nobody could take the results."""
    with tempfile.TemporaryDirectory() as folder:
        gate, log = gates.Gate(os.path.join(folder, "gate")), os.path.join(folder, "log")
        pool = ComposablePool(1, kind=kind)
        running = pool.apply_async(tasks.pass_gate, (gate.path, 5))
        gate.wait_arrived()
        interrupt_in_wait()
        try:
            if verb == "apply":
                pool.apply(tasks.log_line, (log, "begun"))
            else:
                pool.starmap(tasks.log_line, [(log, "begun")] * 20, 1)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the wait was not interrupted")
        assert pool.statistics().n_pending == 1
        gate.release()
        assert running.get(TIMEOUT_S) == 5 and pool.apply(tasks.square, (3,)) == 9
        assert not os.path.exists(log)
        pool.terminate()
        pool.join(timeout=TIMEOUT_S)
        gate.close()


def submit_four(executor, gate_path, log_path):
    """Two tasks that run until they are interrupted, and two that never begin."""
    calls = [executor.submit(tasks.spin_until_interrupted, gate_path, log_path) for _ in range(2)]
    return calls + [executor.submit(tasks.log_line, log_path, "begun") for _ in range(2)]


def left(kind, gate_path, log_path, where="within", method=None):
    """An executor whose `with` block is left by Ctrl-C: its tasks are interrupted, and its futures have outcomes.

    The test sends it after "ready", once both tasks stand at the gate. At the end of the block that is said within
    `__exit__`: Python may raise KeyboardInterrupt before the first line of a function, which nobody could catch there.
    """
    workers.GRACE_S = TIMEOUT_S

    def say_and_join():
        del executor._engine.join
        print("ready", flush=True)
        return executor._engine.join()

    try:
        with ComposableExecutor(2, kind=kind, context=method) as executor:
            calls = submit_four(executor, gate_path, log_path)
            if where == "within":
                print("ready", flush=True)
                calls[0].result()
            executor._engine.join = say_and_join
    except KeyboardInterrupt:
        errors = [type(call.exception(TIMEOUT_S)).__name__ for call in calls]
    # The workers get the terminal's SIGINT, too: one that takes it late may answer before its call is over.
    assert set(errors[:2]) <= {"PoolTerminated", "KeyboardInterrupt"}, errors
    assert errors[2:] == ["PoolTerminated"] * 2, errors
    gates.call_in_thread(executor.shutdown).result(TIMEOUT_S)
    print(*pathlib.Path(log_path).read_text().split())


def abandoned(kind, gate_path, log_path):
    """The same without a `with` block and with nobody who catches the Ctrl-C, while a thread waits for a future."""
    workers.GRACE_S = TIMEOUT_S
    calls = submit_four(ComposableExecutor(2, kind=kind), gate_path, log_path)
    threading.Thread(target=lambda: print(type(calls[1].exception()).__name__)).start()
    print("ready", flush=True)
    calls[0].result()


def tell_evaluations(event, args):
    """Print what the program evaluates after a Ctrl-C that nobody has caught: up to 3.13 its exit status is then 1."""
    if event == "compile" and hasattr(sys, "last_exc"):
        places, frame = [], sys._getframe(1)
        while frame is not None:
            places.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
            frame = frame.f_back
        if not any("_print_exception_bltin" in place for place in places):  # the interpreter undoes those
            print(threading.current_thread(), args[0], *places, sep="\n", file=sys.stderr)


def swallowed(gate_path, log_path):
    """A task that goes on after its KeyboardInterrupt is ended with its process."""
    if sys.version_info < (3, 14):
        sys.addaudithook(tell_evaluations)
    with ComposableExecutor(1, kind="process") as executor:
        call = executor.submit(tasks.spin_through_interrupts, gate_path, log_path)
        print("ready", flush=True)
        call.result()


class Interruption:
    """Sends a signal when the main thread checks for signals for the n-th time in files with these prefixes.

    Python checks when a function begins, after a call of a C function, and when it jumps. Under a debugger or a
    coverage tool it also checks at each line.
    """

    TOOL = 4

    def __init__(self, n, number=signal.SIGINT, files=PACKAGE):
        self.n_left = n
        self.number = number
        self.files = files
        self.pid = os.getpid()

    def __enter__(self):
        monitoring = sys.monitoring
        monitoring.use_tool_id(self.TOOL, "interruption")
        events = monitoring.events
        for event in (events.PY_START, events.C_RETURN, events.JUMP, events.LINE):
            monitoring.register_callback(self.TOOL, event, self._look)
        monitoring.set_events(self.TOOL, events.PY_START | events.JUMP | events.LINE | events.CALL)  # and C_RETURN
        return self

    def __exit__(self, *exc_info):
        sys.monitoring.set_events(self.TOOL, 0)
        sys.monitoring.free_tool_id(self.TOOL)

    def _look(self, code, *rest):
        if threading.get_ident() != threading.main_thread().ident or os.getpid() != self.pid:
            return None
        if not code.co_filename.startswith(self.files):
            return None
        self.n_left -= 1
        if self.n_left == 0:
            signal.raise_signal(self.number)
        return None


class Alarm(Exception):
    """Raised by the handler of an alarm, as by one that limits a program's time."""


def use(pool):
    assert pool.apply_async(tasks.square, (2,), callback=abs).get() == 4
    assert pool.map(tasks.square, range(3), 1) == [0, 1, 4]
    assert list(pool.imap_unordered(tasks.square, iter([3]))) == [9]


def look(pool):
    """Look at everything that a program may look at. The pool may end meanwhile."""
    with pool.trace(os.devnull):
        pool.apply(tasks.square, (2,))
        pool.statistics()
        for worker in pool._pool:
            assert worker.is_alive() or worker.exitcode in (None, 0, -signal.SIGTERM)


def raise_alarm(number, frame):
    raise Alarm


def at_each_place(kind, step, how="Ctrl-C"):
    """Interrupt each place of submitting, waiting, delivering and replacing workers.

    The program continues with the pool.
    """
    number, raised = (signal.SIGINT, KeyboardInterrupt) if how == "Ctrl-C" else (signal.SIGALRM, Alarm)
    signal.signal(signal.SIGALRM, raise_alarm)
    in_finalizers = []  # Python prints errors raised in finalizers, and continues
    sys.unraisablehook = lambda info: in_finalizers.append(info.exc_type)
    context = "fork" if kind == "process" else None  # the fastest method
    pool = ComposablePool(2, kind=kind, maxtasksperchild=3, context=context)
    for n in itertools.count(1, int(step)):
        interrupted = False
        with Interruption(n, number) as interruption:
            try:
                use(pool)
            except raised:
                interrupted = True
        if interruption.n_left > 0:
            break
        assert interrupted or in_finalizers.pop() is raised, f"the signal at place {n} was lost"
    assert n > 50, f"only {n} places were found"
    gates.wait_until(lambda: pool.statistics().n_pending == 0, "what was submitted is done")
    gates.wait_until(lambda: len(pool._pool) == 2, "both places are filled")
    gates.call_in_thread(use, pool).result(TIMEOUT_S)
    pool.close()
    pool.join(timeout=TIMEOUT_S)


def ended_at_each_place(kind, step, do=use):
    """End the pool in a signal handler, which returns. Everything in progress must end in one way or another."""
    context = "fork" if kind == "process" else None
    pool = None

    def end(number, frame):
        pool.terminate()
        pool.join(timeout=TIMEOUT_S)

    signal.signal(signal.SIGTERM, end)
    for n in itertools.count(1, int(step)):
        pool = ComposablePool(2, kind=kind, context=context)
        with Interruption(n, signal.SIGTERM) as interruption, contextlib.suppress(ValueError):  # which PoolClosed is
            do(pool)
        if interruption.n_left > 0:
            break
        pool.join(timeout=TIMEOUT_S)
        assert not pool._pool, pool._pool
        gates.wait_until(lambda: not any("pool_party" in thread.name for thread in threading.enumerate()), "they ended")
    assert n > 50, f"only {n} places were found"
    pool.terminate()
    pool.join(timeout=TIMEOUT_S)


def ended_while_looked_at(kind, step):
    ended_at_each_place(kind, step, look)


def at_each_place_of_an_opening(kind, step):
    """Interrupt opening at each place, even in `threading`, which starts threads.

    The handler's exception must come out.
    """
    signal.signal(signal.SIGALRM, raise_alarm)
    in_finalizers = []
    sys.unraisablehook = lambda info: in_finalizers.append(info.exc_type)
    context = "fork" if kind == "process" else None
    for n in itertools.count(1, int(step)):
        interrupted = False
        with Interruption(n, signal.SIGALRM, FILES) as interruption:
            try:
                pool = ComposablePool(1, kind=kind, context=context)
            except Alarm:
                interrupted = True
        if interruption.n_left > 0:
            break
        if not interrupted:
            assert in_finalizers.pop() is Alarm, f"the signal at place {n} was lost"
            pool.terminate()
        gates.wait_until(lambda: not any("pool_party" in thread.name for thread in threading.enumerate()), "they ended")
    assert n > 50, f"only {n} places were found"
    pool.terminate()
    pool.join(timeout=TIMEOUT_S)


def at_each_place_of_a_life(kind, step):
    """Interrupt a pool that is opened, used and ended in a with block. It must leave nothing behind."""
    sys.unraisablehook = lambda info: None
    context = "fork" if kind == "process" else None
    before = None
    for n in itertools.count(1, int(step)):
        pool = None
        with Interruption(n) as interruption, contextlib.suppress(KeyboardInterrupt):
            pool = ComposablePool(2, kind=kind, context=context)
            with pool:
                assert pool.apply(tasks.square, (2,)) == 4
        if pool is not None:  # it may have been interrupted before the block, or before its end had begun
            pool.terminate()
            pool.join(timeout=TIMEOUT_S)
        if interruption.n_left > 0:
            break
        before = before or resources()
    assert n > 50, f"only {n} places were found"
    del pool
    gc.collect()
    try:
        gates.wait_until(lambda: all(resources()[what] <= n for what, n in before.items()), "nothing is left")
    except AssertionError:
        raise AssertionError(f"{resources()} are left of {before}; {threading.enumerate()}") from None


if __name__ == "__main__":
    main(globals())
