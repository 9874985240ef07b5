"""Random programs against the public interface, `python play.py kind`: a state machine for hypothesis.

One example is the life of a pool and sometimes of an executor beside it. Its rules submit calls with every verb, from
the main thread and two others, wait for them with and without a time-out, cancel them, kill workers, interrupt the main
thread, and end the pool. `verdict.py` decides which observations of each call are allowed. A step that takes too long
ends the program with its journal and every thread's stack, so a hang is a failure.

By default the examples are the same every time. `--profile random` uses new ones, from a seed that is printed.
`--seconds` sets how long. `--forgive` leaves out properties that are known to be broken.
"""

import argparse
import collections
import contextlib
import functools
import gc
import itertools
import logging
import multiprocessing
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time
import weakref

import duties
import tasks
import verdict
from hypothesis import HealthCheck, Phase, reproduce_failure, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from probe import descendants, is_gone, resources
from verdict import Violation
from watch import Actor, Journal, Metronome, Watchdog, wait_flat

import pool_party
from pool_party import ComposableExecutor, ComposablePool, PoolClosed, PoolTerminated
from pool_party._ground.threads import start_thread

PACKAGE = str(pathlib.Path(pool_party.__file__).parent)
KINDS = ("thread", "process", "interp")
EXAMPLES = {"thread": 25, "process": 6, "interp": 12}  # about 15 s on two busy cores
STEP_S = float(os.environ.get("POOL_PARTY_MODEL_STEP_S", "60"))  # no step takes this long, on any machine
# How late a timed wait may be, beyond the system's own lateness. The pool promises 20 ms, but a machine that runs
# several test suites at once cannot measure that.
LATE_S = 0.15
TIMED_OUT = (multiprocessing.TimeoutError, TimeoutError)
PROPERTIES = {
    "flat": "a pool that was joined leaves no descriptor, mapping, thread or child",
    "punctual": "a timed wait ends in time",
    "callbacks-apart": "callbacks run one after the other, in none of the program's threads",
    "interrupts": "Ctrl-C reaches the program, which goes on with the pool",
    "alarms": "an exception that a signal handler raises reaches the program",
    "terminate-in-handler": "a signal handler may terminate the pool",
    "bombs": "a BaseException amid pickling leaves nothing behind",
    "workers-busy": "no worker is idle while a task waits",
    "counts": "statistics() add up",
}

# ---- random input ----------------------------------------------------------

SIZES = st.sampled_from([0, 0, 1, 200, 5_000, 40_000, 300_000])
SIMPLE = st.one_of(
    st.builds(lambda size: ("value", size), SIZES),
    st.builds(lambda s: ("slow", s), st.sampled_from([0.0, 0.0005, 0.003, 0.01])),
    st.builds(lambda n: ("spin", n), st.sampled_from([10, 1_000])),
    st.just(("pid",)),
)
FAILURES = st.sampled_from(["ValueError", "PlainError", "SystemExit", "GeneratorExit", "OddInitError"])
FAILING = st.one_of(
    st.builds(lambda name: ("fail", name), FAILURES), st.just(("fail", "UnpicklableError")), st.just(("lock",)),
    st.just(("explode",)),
)  # fmt: skip
DOOMED = st.one_of(
    st.builds(lambda how: ("die", how), st.sampled_from(["exit", "kill"])),
    st.builds(lambda s: ("doomed", s), st.sampled_from([0.0, 0.00002, 0.00005, 0.0001, 0.0003, 0.001])),
)
TIMEOUTS = st.sampled_from([0, 0.0, 0.0005, 0.005, 0.02, 0.05])
CHUNKS = st.sampled_from([1, 1, 1, 2, 3, 7])
ACTORS = st.integers(0, 2)
WHOLE = ("apply", "apply_async", "map", "map_async", "starmap", "starmap_async", "submit")
STREAMS = ("imap", "imap_unordered", "executor.map")
BLOCKING = ("apply", "map", "starmap")
ON_EXECUTOR = ("submit", "executor.map")


def deeds_of(kind):
    """Draw mostly deeds that succeed; in processes, also some that kill their worker."""
    many = [SIMPLE, SIMPLE, SIMPLE, FAILING]
    return st.one_of(*many, DOOMED) if kind == "process" else st.one_of(*many)


# ---- calls -----------------------------------------------------------------


class Call:
    """A submitted call with all observations of it."""

    def __init__(self, verb, items, chunk):
        self.verb, self.n_items = verb, len(items)
        self.chunks = [items[i : i + chunk] for i in range(0, len(items), chunk)]
        self.is_list = verb not in ("apply", "apply_async", "submit")
        self.handle = None
        self.is_cancelled = False
        self.is_held = any(deed[0] == "hold" for _, deed in items)
        self.outcome = None  # the first outcome seen
        self.callbacks = []  # (success, value) of each callback that ran
        self.wants_callbacks = False
        self.stream = None
        self.in_use = threading.Lock()  # iterators belong to one thread at a time
        self.n_read = 0  # items read of an unsized input
        self.n_taken = 0
        self.window = None  # how far the input may be read ahead

    def __repr__(self):
        return f"{self.verb} of {self.n_items} in {len(self.chunks)}"

    def idents(self):
        return [ident for chunk in self.chunks for ident, _ in chunk]


def is_same(first, second):
    """Return whether two observations of a call are equal. A cancelled future makes a new error for each."""
    return first is second or (type(first) is type(second) and type(first).__name__ == "CancelledError")


class Trap:
    """Sends a signal to this thread at the n-th line that it runs in the package."""

    def __init__(self, number, n_lines):
        self.number, self.n_left = number, n_lines

    @property
    def has_sprung(self):
        return self.n_left <= 0

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exc_info):
        sys.settrace(self._before)

    def _trace(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.n_left -= 1
            if self.n_left == 0:
                signal.raise_signal(self.number)
        return self._trace


class Alarm:
    """Sends a signal to this process after a delay, from a thread, so that it arrives between any two instructions."""

    def __init__(self, number, delay_s):
        self._number, self._delay_s = number, delay_s
        self.has_sprung = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        start_thread(self._thread)  # an exception during `Thread.start` would surface as an error about a lock
        return self

    def __exit__(self, *exc_info):
        self._thread.join()

    def _run(self):
        time.sleep(self._delay_s)
        self.has_sprung = True
        os.kill(os.getpid(), self._number)


class TimeIsUp(Exception):
    """Raised by the program's own handler of SIGALRM."""


# ---- the machine -----------------------------------------------------------


class Program:
    """The state that lasts from one example to the next."""

    def __init__(self, options):
        self.kind, self.forgiven = options.kind, frozenset(options.forgive)
        self.journal = Journal()
        self.watchdog = Watchdog(self.journal)
        self.metronome = Metronome()
        self.actors = [Actor("actor 1"), Actor("actor 2")]
        self.folder = tempfile.mkdtemp(prefix="pool-party-model-")
        self.n_examples = 0
        self.tally = collections.Counter()
        self.watchdog.arm_backstop(20 * STEP_S)  # it has a thread of its own
        self._warm_up()
        self.at_rest = resources()

    def _warm_up(self):
        """Create what is created once per process."""
        for context in ("fork", "forkserver") if self.kind == "process" else (None,):
            with ComposablePool(2, kind=self.kind, context=context) as pool:
                pool.map(duties.perform, [(os.devnull, 1, ("value", 300_000), b"\1" * 300_000)] * 8, 1)
                list(pool.imap(tasks.square, iter(range(3))))
            pool.join(timeout=STEP_S)
        del pool
        gc.collect()

    def forgives(self, name):
        assert name in PROPERTIES, name
        return name in self.forgiven


class PoolMachine(RuleBasedStateMachine):
    program: Program
    pool_class = ComposablePool

    def __init__(self):
        super().__init__()
        p = self.program
        p.n_examples += 1
        p.journal.clear()
        p.watchdog.arm_backstop(20 * STEP_S)
        self.kind = p.kind
        self.world, self.executor_world = verdict.World(p.kind), verdict.World(p.kind)
        self.n_steps = self.n_chunks = self.n_floods = 0
        self.calls, self.maybe = [], set()  # maybe: idents of tasks whose submission was interrupted
        self.idents = itertools.count(p.n_examples * 100_000)
        self.fds = []  # descriptors of logs
        self.log = self.open_log("log")
        self.gate = os.path.join(p.folder, f"gate-{p.n_examples}-0")  # held tasks wait for its removal
        # Random choices depend only on these, which the main thread changes. Otherwise no example could be repeated.
        self.is_ending, self.n_pids = False, 0
        self.pids = []  # pids of workers, as reported by tasks
        self.pool = self.executor = None
        self.opening = threading.Lock()
        self.in_callback = 0
        self.may_miss_callbacks = False  # the main thread was interrupted, perhaps during a callback

    def open_log(self, name):
        """Open a file that tasks write to.

        Return its path, or a descriptor if tasks run in this process; see duties.note.
        """
        path = os.path.join(self.program.folder, f"{name}-{self.program.n_examples}-{self.n_steps}")
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        self.fds.append(fd)
        return path if self.kind == "process" else fd

    @initialize(
        n=st.sampled_from([1, 2, 2, 3, 5]),
        max_tasks=st.sampled_from([None, None, None, 1, 3]),
        context=st.sampled_from(["fork", "fork", "forkserver"]),
        ending=st.sampled_from(["close", "terminate", "with"]),
    )
    def open(self, n, max_tasks, context, ending):
        # Replacing workers after each task must not make an example long.
        context = None if self.kind != "process" else "fork" if max_tasks else context
        self.note(f"open {n} workers, max_tasks {max_tasks}, context {context}, ending {ending}")
        self.n_workers, self.ending, self.replaces_workers = n, ending, max_tasks is not None
        self.pool = self.pool_class(n, maxtasksperchild=max_tasks, context=context, kind=self.kind)
        self.make_executor = functools.partial(
            ComposableExecutor, n, kind=self.kind, context=context, max_tasks_per_child=max_tasks
        )

    # ---- actions ----

    def note(self, text):
        self.program.journal.note(text)

    def act(self, actor, what, deed, *args):
        """Run an action in one of three threads. Only the main thread waits for it."""
        self.n_steps += 1
        self.program.tally[what.split()[0]] += 1
        if actor and len(self.program.actors) >= actor:
            self.program.watchdog.allow(STEP_S, f"{what}, or what another thread does")
            self.program.actors[actor - 1].post(self._do, what, deed, args)
        else:
            self.program.watchdog.allow(STEP_S, what)
            self._do(what, deed, args)

    def _do(self, what, deed, args):
        self.note(f"{what} {args if len(repr(args)) < 300 else ''}")
        try:
            result = deed(*args)
        except BaseException as error:
            self.note(f"{what} raised {error!r}"[:300])
            raise
        self.note(f"{what} is done")
        return result

    def hold(self):
        """Return a deed that ends when let_go is called."""
        if not os.path.exists(self.gate):
            with open(self.gate, "w"):
                pass
        return "hold", self.gate

    def let_go(self):
        """Release all held tasks, so that a wait without a time-out ends."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.gate)
        self.gate += "+"

    # ---- submitting ----

    def make_items(self, deeds):
        items = [(next(self.idents), deed) for deed in deeds]
        for world in (self.world, self.executor_world):
            world.n_kills += sum(deed[0] == "doomed" for deed in deeds)
        return items

    def plan(self, verb, deeds, chunk=1):
        """Record a call that is about to be submitted."""
        call = Call(verb, self.make_items(deeds), chunk)
        self.n_pids += call.verb == "apply_async" and deeds[0][0] == "pid"
        self.calls.append(call)
        return call

    def world_of(self, call):
        return self.executor_world if call.verb in ON_EXECUTOR else self.world

    def as_argument(self, ident, deed, ballast):
        return self.log, ident, deed, duties.pattern(ident, ballast)

    any_call = rule(
        data=st.data(),
        actor=ACTORS,
        verb=st.sampled_from(WHOLE + STREAMS),
        n=st.sampled_from([0, 1, 1, 2, 5, 20]),
        chunk=CHUNKS,
        ballast=SIZES,
        callback=st.sampled_from([None, "note", "raise", "slow"]),
        sized=st.booleans(),
        buffersize=st.sampled_from([None, 1, 2, 5]),
    )

    @any_call
    def submit(self, **drawn):
        self._submit_drawn(**drawn)

    @any_call
    def submit_another(self, **drawn):  # a second rule doubles its frequency
        self._submit_drawn(**drawn)

    def _submit_drawn(self, data, actor, verb, n, chunk, ballast, callback, sized, buffersize):
        deeds_strategy = deeds_of(self.kind) if data.draw(st.integers(0, 2)) == 0 else SIMPLE
        if verb in ("apply", "apply_async", "submit"):
            n = chunk = 1
        call = self.plan(verb, [data.draw(deeds_strategy) for _ in range(n)], chunk)
        if verb in BLOCKING:
            self.let_go()
        what = f"{call!r} of {ballast} bytes, callback {callback}, sized {sized}, buffer {buffersize}"
        self.act(actor, what, self._submit, call, ballast, callback, sized, buffersize)

    @rule(n=st.integers(1, 3), verb=st.sampled_from(["apply_async", "submit", "map_async"]))
    def submit_held(self, n, verb):
        """Submit tasks that stay in their workers until they are released."""
        n = 1 if self.replaces_workers else n
        for _ in range(n if verb != "map_async" else 1):
            n_items = n if verb == "map_async" else 1
            call = self.plan(verb, [self.hold()] * n_items)
            self.act(0, f"held {call!r}", self._submit, call, 0, "note", True, None)

    def _submit(self, call, ballast, callback, sized, buffersize):
        arguments = [self.as_argument(ident, deed, ballast) for chunk in call.chunks for ident, deed in chunk]
        world = self.world_of(call)
        was_closed = world.is_closed
        call.wants_callbacks = callback is not None and call.verb.endswith("_async")
        try:
            done = self._start(call, arguments, callback, sized, buffersize)
        except PoolClosed as error:
            self._check_refused(error, world)
            return
        except BaseException as error:
            if call.verb not in BLOCKING:
                raise
            done = False, error
        if was_closed and not (call.verb == "executor.map" and call.n_items == 0):
            raise Violation(f"{call!r} was admitted by a closed pool")
        self.n_chunks += len(call.chunks) if call.verb not in ON_EXECUTOR else 0
        if call.verb in BLOCKING:
            self.see(call, done)

    def _check_refused(self, error, world):
        if not (world.is_terminating if isinstance(error, PoolTerminated) else world.is_closing):
            raise Violation("refused though nobody ended the pool") from error

    def _start(self, call, arguments, callback, sized, buffersize):
        """Submit a call. Blocking verbs return their outcome."""
        verb, pool, chunk = call.verb, self.pool, len(call.chunks[0]) if call.chunks else 1
        callbacks = self.callbacks_of(call, callback) if call.wants_callbacks else {}
        if verb == "apply":
            return True, pool.apply(
                duties.perform_args, arguments[0][:2], {"deed": arguments[0][2], "ballast": arguments[0][3]}
            )
        if verb == "apply_async":
            call.handle = pool.apply_async(duties.perform, arguments, **callbacks)
        elif verb == "map":
            return True, pool.map(duties.perform, arguments if sized else iter(arguments), chunk)
        elif verb == "map_async":
            call.handle = pool.map_async(duties.perform, arguments, chunk, **callbacks)
        elif verb == "starmap":
            return True, pool.starmap(duties.perform_args, arguments if sized else iter(arguments), chunk)
        elif verb == "starmap_async":
            call.handle = pool.starmap_async(duties.perform_args, arguments, chunk, **callbacks)
        elif verb == "submit":
            self.need_executor()
            call.handle = self.executor.submit(duties.perform, arguments[0])
        elif verb == "executor.map":
            self.need_executor()
            call.stream = verdict.Stream(call.chunks, ordered=True, ends_at_error=True)
            call.handle = self.executor.map(duties.perform, arguments, chunksize=chunk, buffersize=buffersize)
        else:
            source = arguments if sized else self.read(call, arguments)
            call.stream = verdict.Stream(call.chunks, ordered=verb == "imap", ends_at_error=False)
            call.window = None if sized or buffersize is None else -(-buffersize // chunk) * chunk
            call.handle = getattr(pool, verb)(duties.perform, source, chunk, buffersize)
        return None

    def read(self, call, arguments):
        """Yield an input without a length, checking how far it is read ahead."""
        for argument in arguments:
            window = call.window
            if (
                window is not None
                and call.n_read > call.n_taken + window + len(call.chunks[0])
                and not self.world.is_closing
            ):
                raise Violation(f"{call.n_read} items read, {call.n_taken} taken, buffersize {window}")
            call.n_read += 1
            yield argument

    def need_executor(self):
        with self.opening:  # two threads may need it at once
            if self.executor is None:
                self.executor = self.make_executor()

    def callbacks_of(self, call, how):
        owner = weakref.ref(self)

        def note(success, value):
            machine = owner()
            machine.enter_callback()
            try:
                call.callbacks.append((success, value))
                if how == "slow":
                    time.sleep(0.005)
            finally:
                machine.in_callback -= 1
            if how == "raise":
                raise ValueError("a callback raised")

        return {"callback": functools.partial(note, True), "error_callback": functools.partial(note, False)}

    def enter_callback(self):
        self.in_callback += 1
        name = threading.current_thread().name
        is_ours = name == "MainThread" or name.startswith("actor")
        if (self.in_callback > 1 or is_ours) and not self.program.forgives("callbacks-apart"):
            self.fail_later(Violation(f"a callback ran in {name}, {self.in_callback} at once"))

    def fail_later(self, error):
        self.note(repr(error))
        self.program.actors[0].errors.append(error)

    # ---- observations ----

    def see(self, call, outcome):
        """Check that an observed outcome is allowed and the same each time, and that callbacks have run."""
        if call.outcome is None:
            call.outcome = outcome
            verdict.check_whole(call, outcome, self.world_of(call))
        elif call.outcome[0] != outcome[0] or not is_same(call.outcome[1], outcome[1]):
            raise Violation(f"two outcomes of {call!r}: {call.outcome!r}, {outcome!r}"[:600])
        if call.wants_callbacks and not self.may_miss_callbacks:
            expected = [outcome] if call.n_items else []
            if [success for success, _ in call.callbacks] != [success for success, _ in expected]:
                raise Violation(f"{call!r}: callbacks {call.callbacks!r} at the outcome {outcome!r}"[:600])
        pid = outcome[0] and call.verb == "apply_async" and call.chunks[0][0][1][0] == "pid"
        if pid:
            self.pids.append(outcome[1][1])

    @precondition(lambda self: self.calls)
    @rule(
        actor=ACTORS,
        index=st.integers(0, 1_000),
        how=st.sampled_from(["get", "wait", "ask", "cancel"]),
        timeout=TIMEOUTS,
    )
    def look(self, actor, index, how, timeout):
        call = self.calls[index % len(self.calls)]
        if call.verb == "executor.map":
            self.let_go()  # its `next` takes no time-out
        if call.verb in STREAMS:
            self.act(actor, f"next {call!r} {timeout}", self._next, call, timeout)
        elif call.verb == "submit":
            self.act(actor, f"{how} {call!r} {timeout}", self._look_future, call, how, timeout)
        else:
            self.act(actor, f"{how} {call!r} {timeout}", self._look_result, call, how, timeout)

    @precondition(lambda self: self.calls)
    @rule(actor=ACTORS, index=st.integers(0, 1_000))
    def finish(self, actor, index):
        """Wait for a call without a time-out."""
        call = self.calls[index % len(self.calls)]
        self.let_go()
        self.act(actor, f"finish {call!r}", self._finish, call)

    def _finish(self, call):
        if call.stream is not None:
            while self._next(call, None):
                pass
        elif call.verb == "submit":
            self._look_future(call, "get", None)
        elif call.handle is not None:
            self._look_result(call, "get", None)

    def timed(self, timeout, function, *args):
        """Return the outcome of a wait, or None if it timed out. Check that it is punctual."""
        before = time.monotonic()
        try:
            outcome = True, function(*args, timeout=timeout)
        except BaseException as error:
            outcome = False, error
        after = time.monotonic()
        self._check_punctual(timeout, before, after, outcome)
        return outcome

    def _check_punctual(self, timeout, before, after, outcome):
        if timeout is None or self.program.forgives("punctual"):
            return
        late = after - before - timeout
        if late > LATE_S and late > LATE_S + 4 * self.program.metronome.noise_since(before):
            raise Violation(f"a wait of {timeout} s took {after - before:.3f} s")
        timed_out = outcome[0] is False and isinstance(outcome[1], TIMED_OUT)
        if timed_out and late < -0.002:
            raise Violation(f"TimeoutError {-late:.3f} s too early, after {after - before:.3f} s") from outcome[1]

    def _look_result(self, call, how, timeout):
        result = call.handle
        if result is None:  # the call is a blocking one, was refused, or is not submitted yet
            return
        if how == "ask" or how == "cancel":
            ready = result.ready()
            if ready:
                self._look_result(call, "get", 0)
            elif call.outcome is not None:
                raise Violation(f"{call!r} is not ready after its outcome was seen")
        elif how == "wait":
            self.timed(timeout, result.wait)
        else:
            success, value = self.timed(timeout, result.get)
            if not success and type(value) is multiprocessing.TimeoutError and timeout is not None:
                if call.outcome is not None:
                    raise Violation(f"{call!r} timed out after its outcome was seen")
                return
            self.see(call, (success, value))
            if result.successful() is not success or not result.ready():
                raise Violation(f"{call!r}: successful() is {result.successful()}, get() gave {value!r}")

    def _look_future(self, call, how, timeout):
        future = call.handle
        if future is None:
            return
        if how == "cancel":
            call.is_cancelled |= call.outcome is None  # from now on CancelledError may be seen
            if future.cancel():
                if not future.cancelled():
                    raise Violation("cancel() is True, cancelled() is False")
            elif future.cancelled():
                raise Violation("cancel() is False, cancelled() is True")
        elif how == "ask":
            running, done = future.running(), future.done()
            if done and not future.done():
                raise Violation("a future was done, and is not")
            if running and call.outcome is not None:
                raise Violation("a future is running after its outcome was seen")
        else:
            success, value = self.timed(timeout, future.result if how == "get" else future.exception)
            if not success and isinstance(value, TimeoutError) and timeout is not None:
                if call.outcome is not None:
                    raise Violation(f"{call!r} timed out after its outcome was seen")
                return
            if how == "wait" and success and value is None:
                return
            self.see(call, (False, value) if how == "wait" else (success, value))

    def _next(self, call, timeout):
        """Take one result of an iterator. Return whether there may be more."""
        if not call.in_use.acquire(blocking=False):
            return False
        try:
            if call.handle is None or call.stream is None:
                return False
            return self._take(call, timeout)
        finally:
            call.in_use.release()

    def _take(self, call, timeout):
        world = self.world_of(call)
        if call.verb == "executor.map":
            success, value = self.timed(None, lambda timeout: next(call.handle))
        else:
            success, value = self.timed(timeout, call.handle.next)
        call.n_taken += len(call.chunks[0]) if call.chunks and not success else 1
        if success:
            call.stream.take_value(value, world)
        elif isinstance(value, StopIteration):
            call.stream.end(world)
            return False
        elif timeout is not None and isinstance(value, TIMED_OUT):
            call.n_taken -= len(call.chunks[0]) if call.chunks else 1
            return False
        elif call.verb == "executor.map" and isinstance(value, PoolClosed) and world.is_closing:
            call.stream.is_over = True  # the executor read no more of its input
        else:
            call.stream.take_error(value, world)
        return True

    @rule(actor=ACTORS, how=st.sampled_from(["statistics", "statistics", "collect"]))
    def look_around(self, actor, how):
        self.act(actor, how, self._count if how == "statistics" else gc.collect)

    def _count(self):
        for subject in filter(None, (self.pool, self.executor)):
            s = subject.statistics()
            repr(subject)
            good = min(s.n_submitted, s.n_completed, s.n_failed, s.n_pending) >= 0 and s.n_completed <= s.n_submitted
            if not good and not self.program.forgives("counts"):
                raise Violation(f"impossible counts: {s}")

    @precondition(lambda self: any(call.verb in STREAMS for call in self.calls))
    @rule(index=st.integers(0, 1_000))
    def drop(self, index):
        """Drop an iterator that is no longer needed."""
        streams = [call for call in self.calls if call.verb in STREAMS]
        call = streams[index % len(streams)]
        self.act(0, f"drop {call!r}", self._drop, call)

    def _drop(self, call):
        if call.in_use.acquire(blocking=False):  # never released
            call.handle = None

    # ---- disturbances ----

    @precondition(lambda self: self.kind == "process" and self.n_pids and not self.is_ending)
    @rule(actor=ACTORS, index=st.integers(0, 1_000), delay=st.sampled_from([0, 0, 0.0002, 0.002]))
    def kill(self, actor, index, delay):
        self.world.n_kills += 1  # known pids are those of the pool
        self.act(actor, "kill", self._kill, index, delay)

    def _kill(self, index, delay):
        time.sleep(delay)
        pid = self.pids[index % len(self.pids)] if self.pids else None
        if pid in descendants(os.getpid()) and not is_gone(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @precondition(lambda self: self.kind == "process" and not self.is_ending)
    @rule(
        verb=st.sampled_from(["imap_unordered", "imap_unordered", "imap", "map_async", "executor.map"]),
        delays=st.lists(
            st.sampled_from([None, None, 0.0, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005]), min_size=2, max_size=6
        ),
    )
    def lose(self, verb, delays):
        """Kill workers when they send their result, or between that and the end of their task."""
        self.let_go()
        deeds = [("value", 0) if delay is None else ("doomed", delay) for delay in delays]
        call = self.plan(verb, deeds)
        self.act(0, f"lose {verb}", self._lose, call)

    @precondition(lambda self: self.kind == "process" and not self.is_ending)
    @rule(n=st.integers(3, 6), ordered=st.booleans(), every=st.integers(1, 4))
    def shoot(self, n, ordered, every):
        """Kill workers as soon as their result has arrived, when they may not have ended their task."""
        self.let_go()
        self.world.n_kills += n
        call = self.plan("imap" if ordered else "imap_unordered", [("pid",)] * n)
        self.act(0, "shoot", self._shoot, call, every)

    def _shoot(self, call, every):
        self._submit(call, 0, None, True, None)
        for n in itertools.count():
            success, value = self.timed(None, call.handle.next) if call.handle else (False, StopIteration())
            if success and n % every == 0:
                self._shoot_at(value[1])
            if success:
                call.stream.take_value(value, self.world)
            elif isinstance(value, StopIteration):
                break
            else:
                call.stream.take_error(value, self.world)
        if call.handle:
            call.stream.end(self.world)

    def _shoot_at(self, pid):
        """Kill at once, as the exact moment matters. No pid is reused in such a short time."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _lose(self, call):
        self._submit(call, 0, "note", True, None)
        self._finish(call)

    @precondition(lambda self: not self.is_ending and self.n_floods < 1 and self.n_steps > 6)
    @rule(
        verb=st.sampled_from(["map_async", "imap", "slow callback"]),
        how=st.sampled_from(["get", "wait", "next", "result"]),
    )
    def flood(self, verb, how):
        """Wait with a time-out while many results of another call arrive."""
        self.n_floods += 1
        self.act(0, f"flood by {verb}, {how}", self._flood, verb, how)

    def _flood(self, verb, how):
        late = self.plan({"result": "submit", "next": "imap"}.get(how, "apply_async"), [self.hold()])
        self._submit(late, 0, "note", True, None)
        n = 40 if self.replaces_workers else 1_000 if self.n_workers > 1 else 500
        for _ in range(8 if verb == "slow callback" else 1):
            n_items = n // 20 if verb == "slow callback" else n
            call = self.plan("imap" if verb == "imap" else "map_async", [("slow", 0.0005)] * n_items)
            self._submit(call, 0, "slow" if verb == "slow callback" else "note", True, None)
        if late.handle is None:  # another thread ended the pool meanwhile
            return
        if how == "next":
            self._next(late, 0.02)
        elif how == "result":
            self._look_future(late, "get", 0.02)
        else:
            self._look_result(late, how, 0.02)

    # A task that is killed would be missing.
    @precondition(lambda self: not self.is_ending and self.n_steps > 2 and self.world.n_kills == 0)
    @rule(verb=st.sampled_from(["apply_async", "map_async", "imap", "submit"]), ballast=SIZES, sized=st.booleans())
    def meet(self, verb, ballast, sized):
        """Submit as many tasks as there are workers. They end when all have begun."""
        if not self.program.forgives("workers-busy"):
            self.let_go()
            self.act(0, f"meet {verb} {ballast}", self._meet, verb, ballast, sized)

    def _meet(self, verb, ballast, sized):
        n = self.n_workers
        meeting = self.open_log("meeting")
        n_calls = n if verb in ("apply_async", "submit") else 1
        calls = [self.plan(verb, [("meet", meeting, n)] * (n // n_calls)) for _ in range(n_calls)]
        for call in calls:
            self._submit(call, ballast, None, sized, None)
        if any(call.handle is None for call in calls):  # another thread ended the pool meanwhile
            os.write(self.fds[-1], b" " * 20 * n)
        for call in calls:
            self._finish(call)

    def work(self, n_rounds):
        """Call methods of all kinds, which a signal may interrupt.

        After an interruption, each task may have run or not.
        """
        try:
            self._work(n_rounds)
        except PoolClosed as error:  # another thread, or the signal's handler, ended the pool meanwhile
            self._check_refused(error, self.world)
        except pool_party.WorkerLost as error:
            self.world.blame_kill(error)

    def _work(self, n_rounds):
        for _ in range(n_rounds):
            items = self.make_items([("value", 0)] * 5)
            self.maybe.update(ident for ident, _ in items)
            arguments = [self.as_argument(ident, deed, 100) for ident, deed in items]
            self.pool.apply(duties.perform, arguments[:1])
            self.pool.map(duties.perform, arguments[1:3], 1)
            for _ in self.pool.imap_unordered(duties.perform, iter(arguments[3:])):
                pass

    @precondition(lambda self: not self.is_ending and self.n_steps > 2)
    @rule(spring=st.one_of(st.integers(1, 600), st.floats(0, 0.003)), n_rounds=st.integers(1, 3))
    def interrupt(self, spring, n_rounds):
        """Send Ctrl-C at any moment. The program catches it and continues with the pool."""
        if not self.program.forgives("interrupts"):
            self.let_go()
            self.act(0, f"interrupt {spring}", self._interrupt, signal.SIGINT, KeyboardInterrupt, spring, n_rounds)

    @precondition(lambda self: not self.is_ending and self.n_steps > 8)
    @rule(spring=st.floats(0, 0.003), n_rounds=st.integers(1, 3))
    def alarm(self, spring, n_rounds):
        """Raise an exception in the handler of another signal. After that the program ends the pool.

        No trap at a line is used, since it would raise where no signal can: at the end of a with block, before its
        exit.
        """
        if self.program.forgives("alarms"):
            return
        self.let_go()

        def handler(number, frame):
            raise TimeIsUp

        before = signal.signal(signal.SIGALRM, handler)
        try:
            self.act(0, f"alarm {spring}", self._interrupt, signal.SIGALRM, TimeIsUp, spring, n_rounds)
        finally:
            signal.signal(signal.SIGALRM, before)
        self.is_ending = True
        self._end("terminate")

    def _interrupt(self, number, error_type, spring, n_rounds):
        """Work until a signal comes. Its handler's exception must propagate, or Python must report it as unraisable."""
        self.may_miss_callbacks = self.program.forgives("callbacks-apart")
        unraisable = []
        before, sys.unraisablehook = sys.unraisablehook, lambda info: unraisable.append(info.exc_type)
        trap = Trap(number, spring) if isinstance(spring, int) else Alarm(number, spring)
        came = False
        try:
            try:
                with trap:
                    self.work(n_rounds)
                # The thread that sends it was joined, so the signal is pending or has been handled.
                deadline = time.monotonic() + 1
                while trap.has_sprung and time.monotonic() < deadline and not unraisable:
                    time.sleep(0)
            except error_type:
                came = True
        finally:
            sys.unraisablehook = before
        self.note(f"sprung {trap.has_sprung}, came {came}, unraisable {unraisable}")
        if trap.has_sprung and not came and error_type not in unraisable:
            raise Violation(f"{error_type.__name__} was swallowed")

    @precondition(lambda self: not self.is_ending and self.n_steps > 8)
    @rule(spring=st.one_of(st.integers(1, 900), st.floats(0, 0.004)))
    def terminate_in_handler(self, spring):
        """End the pool in a handler of SIGTERM, as programs usually do, at any moment of the main thread."""
        if not self.program.forgives("terminate-in-handler"):
            self.let_go()
            self.is_ending = True
            self.act(0, f"terminate_in_handler {spring}", self._terminate_in_handler, spring)

    def _terminate_in_handler(self, spring):
        def handler(number, frame):
            self.note("the handler terminates the pool")
            self.world.is_terminating = self.world.is_closing = True
            self.pool.terminate()
            self.world.is_closed = True
            self.note("the handler is done")

        before = signal.signal(signal.SIGTERM, handler)
        try:
            with Trap(signal.SIGTERM, spring) if isinstance(spring, int) else Alarm(signal.SIGTERM, spring):
                self.work(20)
        finally:
            signal.signal(signal.SIGTERM, before)

    @precondition(lambda self: self.kind != "thread" and not self.is_ending)
    @rule(verb=st.sampled_from(["apply_async", "map_async", "imap", "imap_unsized", "submit"]), where=st.integers(0, 2))
    def bomb(self, verb, where):
        """Pickling an argument raises a BaseException. It must propagate to some caller, and the pool must continue."""
        if not self.program.forgives("bombs"):
            self.let_go()
            self.act(0, f"bomb {verb} {where}", self._bomb, verb, where)

    def _bomb(self, verb, where):
        items = [0, 1, 2]
        items[where] = duties.Bomb()
        try:
            if verb == "submit":
                self.need_executor()
                self.executor.submit(tasks.identity, items).result()
            elif verb == "apply_async":
                self.pool.apply_async(tasks.identity, (items,)).get()
            elif verb == "map_async":
                self.pool.map_async(tasks.identity, items, 1).get()
            else:
                list(self.pool.imap(tasks.identity, items if verb == "imap" else iter(items)))
        except duties.BombError:
            return
        except pool_party.WorkerLost as error:
            self.world_of(Call(verb, [], 1)).blame_kill(error)
            return
        except PoolClosed as error:
            self._check_refused(error, self.world_of(Call(verb, [], 1)))
            return
        raise Violation(f"{verb}: what the pickling raised came out nowhere")

    # ---- ending ----

    @precondition(lambda self: self.n_steps > 15 and not self.is_ending)
    @rule(actor=ACTORS, how=st.sampled_from(["close", "terminate", "shutdown", "cancel_futures", "with", "join"]))
    def end(self, actor, how):
        if actor == 0 and how in ("terminate", "with"):
            self.let_go()
        self.is_ending |= how != "join"
        self.act(actor, f"end {how}", self._end, how)

    def _end(self, how):
        if how in ("shutdown", "cancel_futures"):
            if self.executor is not None:
                for call in self.calls:
                    call.is_cancelled |= how == "cancel_futures" and call.outcome is None
                self.executor_world.is_closing = True
                self.executor.shutdown(wait=False, cancel_futures=how == "cancel_futures")
                self.executor_world.is_closed = True
            return
        if how == "join":
            try:
                self.pool.join(timeout=0)
            except (ValueError, multiprocessing.TimeoutError):
                return
            if not self.world.is_closing:
                raise Violation("an open pool was joined")
            return
        self.world.is_terminating |= how != "close"
        self.world.is_closing = True
        if how == "close":
            self.pool.close()
        elif how == "terminate":
            self.pool.terminate()
        else:
            self.pool.__exit__(None, None, None)
        self.world.is_closed = True

    def teardown(self):
        error = sys.exc_info()[1]
        has_failed = isinstance(error, Exception) or any(actor.errors for actor in self.program.actors)
        try:
            if self.pool is not None:
                self._give_up() if has_failed else self._tear_down()
        except BaseException:
            has_failed = True
            raise
        finally:
            if has_failed:
                self.program.journal.show()
            self.program.watchdog.allow(STEP_S, "the next example")
            self.let_go()
            self.close_logs()

    def close_logs(self):
        """After the last task: no other file may get a descriptor that a task still writes to."""
        while self.fds:
            os.close(self.fds.pop())

    def _give_up(self):
        """After a violation: end everything, so that another example can be tried."""
        self.let_go()
        for world in (self.world, self.executor_world):
            world.is_closing = world.is_terminating = True
        self.pool.terminate()
        if self.executor is not None:
            self.executor.shutdown(cancel_futures=True)
        for actor in self.program.actors:
            with contextlib.suppress(Exception):
                actor.wait_idle()

    def _tear_down(self):
        program = self.program
        program.watchdog.allow(2 * STEP_S, "all threads come to rest")
        self.let_go()
        for actor in program.actors:
            actor.wait_idle()
        gc.collect()
        gc.disable()  # from here on objects must be freed without the garbage collector
        try:
            program.watchdog.allow(STEP_S, f"{self.ending}, join")
            self.note(f"teardown: {self.ending}")
            self._end(self.ending)
            self.pool.join()
            self.note("joined")
            if self.executor is not None:
                self.executor_world.is_closing = True
                self.executor.shutdown(wait=True)
                self.note("shut down")
            program.watchdog.allow(STEP_S, "looking at all calls after the end")
            self._check_calls()
            self._check_runs()
            self._check_counts()
            self.close_logs()
            self._check_flat()
        finally:
            gc.enable()
        self.calls.clear()
        self.pool = self.executor = self.make_executor = None

    def _check_calls(self):
        """Check that every call has its one outcome now."""
        for call in self.calls:
            if call.handle is not None and call.stream is None:
                is_done = call.handle.done() if call.verb == "submit" else call.handle.ready()
                if not is_done:
                    raise Violation(f"{call!r} is not ready after join")
            if call.handle is not None:
                self._finish(call)
        for call in self.calls:
            was_admitted = call.handle is not None
            if (
                call.wants_callbacks
                and was_admitted
                and not self.may_miss_callbacks
                and len(call.callbacks) != min(call.n_items, 1)
            ):
                raise Violation(f"{call!r}: callbacks {call.callbacks!r}")

    def _check_runs(self):
        """Check that no task ran twice, that tasks with observed values ran once, and that cancelled ones did not."""
        with open(self.fds[0], closefd=False) as log:
            log.seek(0)
            ran = collections.Counter(map(int, log))
        twice = {ident: n for ident, n in ran.items() if n > 1}
        if twice:
            raise Violation(f"tasks ran more than once: {twice}")
        for call in self.calls:
            if call.outcome is None:
                continue
            n_ran = sum(ran[ident] for ident in call.idents())
            if call.outcome[0] and n_ran != call.n_items:
                raise Violation(f"{call!r} succeeded, but {n_ran} of its tasks ran")
            if type(call.outcome[1]).__name__ == "CancelledError" and n_ran:
                raise Violation(f"{call!r} was cancelled, and ran")

    def _check_counts(self):
        if self.program.forgives("counts"):
            return
        for subject in filter(None, (self.pool, self.executor)):
            s = subject.statistics()
            if s.n_pending or s.n_completed != s.n_submitted or not 0 <= s.n_failed <= s.n_submitted:
                raise Violation(f"after the end: {s}")

    def _check_flat(self):
        if self.program.forgives("flat"):
            return
        above = wait_flat(resources, self.program.at_rest, 2)
        if above:
            raise Violation(f"left after join (before, now): {above}")


# ---- running ---------------------------------------------------------------


def profile(options, n_examples, derandomize):
    return settings(
        max_examples=n_examples,
        stateful_step_count=options.steps,
        derandomize=derandomize,
        database=None,
        deadline=None,
        print_blob=True,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if options.shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


def run(options):
    machine = type("Machine", (PoolMachine,), {"program": Program(options)})
    if options.blob:
        version, blob = options.blob.split(":", 1)
        reproduce_failure(version, blob.encode())(machine)
        run_state_machine_as_test(machine, settings=profile(options, 1, False))
    elif options.profile == "fixed":
        run_state_machine_as_test(machine, settings=profile(options, options.examples, True))
    else:
        run_random(machine, options)
    machine.program.watchdog.rest()
    print(f"{options.kind}: {machine.program.n_examples} examples, {dict(machine.program.tally.most_common())}")


def run_random(machine, options):
    """Run new examples for the given seconds. Each batch has its own seed."""
    number = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    deadline = time.monotonic() + options.seconds
    while True:
        print(f"seed {number}", flush=True)
        batch = seed(number)(type("Machine", (machine,), {}))
        run_state_machine_as_test(batch, settings=profile(options, options.examples, False))
        if time.monotonic() > deadline:
            return
        number = (number + 1) % 2**32


def main():
    parser = argparse.ArgumentParser(description="random programs against pools", epilog=f"properties: {PROPERTIES}")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--profile", "--hypothesis-profile", choices=("fixed", "random"),
                        default=os.environ.get("POOL_PARTY_MODEL_PROFILE", "fixed"))  # fmt: skip
    parser.add_argument("--examples", type=int, help=f"of a batch; default: {EXAMPLES}")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0, help="of the random profile: at least one batch")
    parser.add_argument("--seed", type=int, help="of the random profile's first batch")
    parser.add_argument("--blob", metavar="VERSION:BLOB", help="run what a failure printed as @reproduce_failure")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--forgive", default=[], type=lambda text: text.split(","), metavar="PROPERTY,...")
    options = parser.parse_args()
    options.examples = options.examples or EXAMPLES[options.kind]
    multiprocessing.set_forkserver_preload(["duties"])
    logging.disable()  # callbacks that raise are part of the programs
    run(options)
