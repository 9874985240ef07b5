"""What a call promises under all circumstances: its timeout, a worker as soon as one is free, an outcome.

Each test is a program for which a promise was once broken.
"""

import functools
import multiprocessing
import os
import signal
import sys
import sysconfig
import threading
import time
import weakref
from concurrent.futures import CancelledError

import gates
import pytest
import tasks

from pool_party import PoolTerminated

TIMEOUT_S = 30


def half_ms(x):
    tasks.spin(0.0005)
    return x


# ---- timeouts ----------------------------------------------------------------
# A timeout that is not kept ends with what delays it. So these tests ask what still goes on when it has ended, and
# measure no time.


@pytest.fixture
def busy(kind, make_pool):
    """A pool whose results keep coming for seconds."""
    pool = make_pool(2, kind=kind)
    pool.map_async(half_ms, range(16_000), 1)
    return pool


def test_get_keeps_its_timeout_while_other_results_flow(busy):
    late = busy.apply_async(tasks.square, (3,))
    started = time.monotonic()
    with pytest.raises(multiprocessing.TimeoutError):
        late.get(timeout=0.3)
    assert time.monotonic() - started >= 0.3
    late.wait(0.2)
    assert busy.statistics().n_pending > 1


def test_next_keeps_its_timeout_while_other_results_flow(busy):
    late = busy.imap(tasks.square, [3])
    with pytest.raises(multiprocessing.TimeoutError):
        late.next(timeout=0.3)
    assert busy.statistics().n_pending > 1


def test_result_keeps_its_timeout_while_other_results_flow(kind, make_executor):
    executor = make_executor(2, kind=kind)
    futures = [executor.submit(half_ms, x) for x in range(6_000)]
    with pytest.raises(TimeoutError):
        futures[-1].result(timeout=0.3)
    assert not futures[-2].done()


def test_another_calls_slow_callback_delays_nobody(pool, gate):
    """Callbacks run one after the other, in a thread that waits for nothing else."""
    may_end, has_ended = threading.Event(), threading.Event()
    slow = pool.apply_async(tasks.square, (3,), callback=lambda value: may_end.wait(TIMEOUT_S) and has_ended.set())
    never = pool.apply_async(tasks.pass_gate, (gate.path,))
    with pytest.raises(multiprocessing.TimeoutError):
        never.get(timeout=0.3)
    assert pool.apply(tasks.square, (4,)) == 16 and not slow.ready()
    may_end.set()
    assert slow.get(TIMEOUT_S) == 9 and has_ended.wait(TIMEOUT_S)  # it did not wait in vain
    gate.release()
    never.get(TIMEOUT_S)


class SlowToPickle:
    def __init__(self, may_go):
        self.may_go = may_go

    def __reduce__(self):
        return int, (int(not self.may_go.wait(TIMEOUT_S)),)


def test_another_calls_slow_pickling_delays_no_timeout(remote_kind, make_pool, gate):
    """Arguments that wait for room are pickled later, but not by a thread that waits with a timeout."""
    pool, may_go = make_pool(1, kind=remote_kind), threading.Event()
    held = pool.apply_async(tasks.pass_gate, (gate.path,))
    gate.wait_arrived()
    filling = pool.map_async(tasks.identity, range(1024), 1)  # no slot is left
    slow = pool.map_async(tasks.identity, [SlowToPickle(may_go)], 1)
    never = pool.apply_async(tasks.square, (3,))
    gate.release()  # from now on there is room
    with pytest.raises(multiprocessing.TimeoutError):
        never.get(timeout=0.3)
    may_go.set()
    assert slow.get(TIMEOUT_S) == [0] and never.get(TIMEOUT_S) == 9
    assert filling.get(TIMEOUT_S) == list(range(1024)) and held.get(TIMEOUT_S) is None


def test_a_timeout_that_is_no_number_is_over_at_once(pool, gate):
    """As in `multiprocessing.Pool`. It once waited for ever."""
    result = pool.apply_async(tasks.pass_gate, (gate.path, 1))
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(timeout=float("nan"))
    gate.release()
    result.get(TIMEOUT_S)


def test_cancel_does_not_end_another_threads_wait_early(kind, make_executor, gate):
    """The wait once raised TimeoutError at once, with a minute left."""
    executor = make_executor(1, kind=kind)
    held = executor.submit(tasks.pass_gate, gate.path)
    gate.wait_arrived()
    queued = executor.submit(tasks.square, 3)
    waiting = gates.call_in_thread(queued.result, 60)
    assert queued.cancel()
    with pytest.raises(CancelledError):
        waiting.result(TIMEOUT_S)
    gate.release()
    held.result(TIMEOUT_S)


# ---- no worker is idle while a task waits --------------------------------------


def test_every_process_begins_a_task_at_once(make_pool, gate):
    """Not all arguments fit into shared memory, but workers that claim tasks make room."""
    n_workers = 40
    pool = make_pool(n_workers, kind="process")
    gates.wait_until(lambda: pool.statistics().n_workers_starting == 0, "all are ready", 100)
    argument = b"x" * 30_000
    waiting = pool.map_async(functools.partial(tasks.pass_gate, gate.path), [argument] * n_workers, 1)
    gate.wait_arrived(n_workers, timeout=60)
    gate.release(n_workers)
    waiting.get(60)


@pytest.mark.slow
def test_every_thread_begins_a_task_at_once(make_pool):
    """There are fewer slots than tasks."""
    n_workers = 1200
    pool, all_are_there = make_pool(n_workers, kind="thread"), threading.Barrier(n_workers + 1)
    waiting = pool.map_async(lambda x: all_are_there.wait(60), range(n_workers), 1)
    all_are_there.wait(60)
    waiting.get(60)


class WaitsInPickling:
    def __init__(self, pool, path):
        self.pool = pool
        self.path = path

    def __reduce__(self):
        self.pool.apply(tasks.pass_gate, (self.path,))
        return int, ()


def test_pickling_that_waits_for_a_task_holds_up_no_other(remote_kind, make_pool, gate):
    """The thread that puts sleeps during pickling. A task that another thread submits meanwhile is put all the same."""
    pool = make_pool(2, kind=remote_kind)
    waiting = gates.call_in_thread(pool.map, tasks.identity, [WaitsInPickling(pool, gate.path)], 1)
    gate.wait_arrived()
    try:
        assert pool.apply_async(tasks.square, (3,)).get(TIMEOUT_S) == 9
    finally:
        gate.release()
    assert waiting.result(TIMEOUT_S) == [0]


# ---- exceptions during a call ----------------------------------------------------


class RaisesInPickling:
    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        raise self.error


class Stop(BaseException):
    """An exception as test runners use it, which no code mistakes for an error."""


@pytest.mark.parametrize("error", [SystemExit("not now"), Stop()], ids=repr)
@pytest.mark.parametrize("verb", ["apply_async", "map_async", "imap"])
def test_pickling_that_raises_no_ordinary_exception(remote_kind, verb, error, make_pool):
    """The call is withdrawn or fails, and the pool can still be closed."""
    pool = make_pool(1, kind=remote_kind)
    arguments = [(RaisesInPickling(error),)] if verb == "apply_async" else [[RaisesInPickling(error)]]
    with pytest.raises(type(error)):
        call = getattr(pool, verb)(tasks.identity, *arguments)
        call.next(TIMEOUT_S) if verb == "imap" else call.get(TIMEOUT_S)
    assert pool.apply(tasks.square, (3,)) == 9
    pool.close()
    pool.join(timeout=TIMEOUT_S)


class TimeIsUp(TimeoutError):
    pass


class AlarmsInPickling:
    def __reduce__(self):
        signal.raise_signal(signal.SIGALRM)
        return int, ()


@pytest.mark.parametrize("verb", ["apply_async", "map_async"])
def test_what_an_alarm_raises_amid_pickling_goes_to_the_caller(remote_kind, verb, make_pool):
    """It is not a failure of pickling, although it is an Exception."""

    def ring(number, frame):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # only once: another attempt follows
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, ring)
    try:
        pool = make_pool(1, kind=remote_kind)
        argument = AlarmsInPickling()
        with pytest.raises(TimeIsUp):
            getattr(pool, verb)(tasks.identity, (argument,) if verb == "apply_async" else [argument])
        assert pool.apply(tasks.square, (3,)) == 9
        pool.close()
        pool.join(timeout=TIMEOUT_S)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_no_thread_for_the_input_of_imap(kind, make_pool, monkeypatch):
    pool = make_pool(1, kind=kind)

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("pool_party._core.submit.start_detached", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        pool.imap(tasks.square, iter([1]))
    monkeypatch.undo()
    assert pool.statistics().n_pending == 0
    pool.close()
    pool.join(timeout=TIMEOUT_S)


# ---- callbacks -------------------------------------------------------------------


@pytest.mark.parametrize("is_decided", [False, True])
def test_a_callback_may_wait_for_other_calls(pool, is_decided):
    """A callback may wait for another callback, which another thread runs before this one continues."""
    seen = []

    def note_after_another(value):
        other = pool.apply_async(tasks.square, (value,), callback=seen.append)
        gates.wait_until(lambda: not is_decided or other.settled, "the other call has its outcome")
        seen.append(("other", other.get(TIMEOUT_S)))

    assert pool.apply_async(tasks.square, (2,), callback=note_after_another).get(TIMEOUT_S) == 4
    assert seen == [16, ("other", 16)]


def test_a_callback_may_ask_for_its_own_outcome(pool):
    seen, is_made = [], threading.Event()

    def ask(value):
        assert is_made.wait(TIMEOUT_S)
        seen.append(call.get(TIMEOUT_S))

    call = pool.apply_async(tasks.square, (2,), callback=ask)
    is_made.set()
    assert call.get(TIMEOUT_S) == 4 and seen == [4]


@pytest.mark.parametrize("how", ["terminate", "close and join"])
def test_a_callback_may_end_the_pool(kind, how, make_pool):
    pool = make_pool(1, kind=kind)

    def end(value):
        if how == "terminate":
            pool.terminate()
        else:
            pool.close()
            pool.join(timeout=TIMEOUT_S)

    assert pool.apply_async(tasks.square, (2,), callback=end).get(TIMEOUT_S) == 4
    pool.join(timeout=TIMEOUT_S)
    assert not pool._pool


def test_a_callback_that_has_ended_the_pool_may_go_on(kind, make_pool):
    """The outcome of its call is there meanwhile. `get` raised ValueError."""
    pool, may_end = make_pool(1, kind=kind), threading.Event()

    def end(value):
        pool.terminate()
        may_end.wait(TIMEOUT_S)

    call = pool.apply_async(tasks.square, (2,), callback=end)
    gates.wait_until(lambda: pool._engine._ended.done, "the pool has ended")
    assert call.get(TIMEOUT_S) == 4
    may_end.set()
    pool.join(timeout=TIMEOUT_S)
    assert call.get() == 4


def test_what_interrupts_a_task_at_the_end_is_not_its_outcome(kind, make_pool, gate, monkeypatch):
    """Threads and interpreters are ended by SystemExit, which the caller must not see."""
    pool = make_pool(1, kind=kind)
    call = pool.apply_async(tasks.spin_forever, (gate.path,))
    waiting = gates.call_in_thread(call.get)
    gate.wait_arrived()
    end_workers = pool._engine._workers.terminate

    def end_workers_and_wait(**how):
        answer = end_workers(**how)
        gates.wait_until(call.ready, "the call has an outcome", TIMEOUT_S)
        return answer

    monkeypatch.setattr(pool._engine._workers, "terminate", end_workers_and_wait)
    pool.terminate()
    with pytest.raises(PoolTerminated):
        waiting.result(TIMEOUT_S)
    pool.join(timeout=TIMEOUT_S)
    assert pool.statistics().n_failed == 1, "counted once"


def test_callbacks_run_in_the_order_of_outcomes_and_one_at_a_time(pool):
    running, seen, overlaps = threading.Lock(), [], []

    def note(value):
        if not running.acquire(blocking=False):
            overlaps.append(value)
            return
        seen.append(value)
        running.release()

    calls = [pool.apply_async(tasks.identity, (x,), callback=note) for x in range(300)]
    for call in calls:
        call.get(TIMEOUT_S)
    assert sorted(seen) == list(range(300)) and not overlaps


# ---- nothing stays ----------------------------------------------------------------


def test_a_closed_pool_keeps_nothing_open(kind, make_pool):
    """A closed pool keeps nothing open, without the cyclic garbage collector. `join` releases what the system holds."""

    def count():
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), sum("memfd:" in line for line in maps)

    def use(end):
        pool = make_pool(1, kind=kind)
        assert pool.map(tasks.square, range(3), 1) == [0, 1, 4]
        getattr(pool, end)()
        pool.join(timeout=TIMEOUT_S)

    use("close")
    import gc

    gc.collect()
    gc.disable()
    try:
        before = count()
        for end in ("close", "terminate") * 3:
            use(end)
        assert count() <= before
    finally:
        gc.enable()


def test_a_call_that_is_over_is_let_go(kind, make_pool):
    """The thread that ran its callback once kept it until the next one."""
    pool = make_pool(1, kind=kind)
    result = pool.apply_async(tasks.square, (2,), callback=abs)
    assert result.get(TIMEOUT_S) == 4
    result = weakref.ref(result)
    gates.wait_until(lambda: result() is None, "nobody has it")


@pytest.mark.skipif(sysconfig.get_config_var("Py_GIL_DISABLED"), reason="a thread that sleeps drops no references")
def test_an_item_of_imap_is_let_go(kind, make_pool):
    """The thread that reads the input once kept the item until there was room for the next one."""
    items = []

    def make_item(number):
        item = tasks.Adder(number)
        items.append(weakref.ref(item))
        return item

    iterator = make_pool(1, kind=kind).imap(callable, map(make_item, range(10)), buffersize=1)
    assert next(iterator)
    gates.wait_until(lambda: not any(item() for item in items), "nobody has them")


def test_values_outlive_the_pool(remote_kind, make_pool):
    pool = make_pool(1, kind=remote_kind)
    blob = pool.apply(tasks.make_blob, (5 << 20, 7))
    pool.close()
    pool.join(timeout=TIMEOUT_S)
    assert tasks.blob_checksum(blob) == tasks.blob_checksum(tasks.make_blob(5 << 20, 7))


class Big:
    pass


def test_globals_of_functions_of_main_are_let_go(remote_kind, make_pool):
    """What a function of `__main__` names must live as long as the program wants, not as long as the pool."""
    import weakref

    main = sys.modules["__main__"]
    main.big = Big()
    exec("def name_big():\n    return type(big).__name__", vars(main))
    gone = weakref.ref(main.big)
    try:
        pool = make_pool(1, kind=remote_kind)
        assert pool.apply(main.name_big) == "Big"
        del main.big
        gates.wait_until(lambda: gone() is None, "nobody keeps it")
    finally:
        del main.name_big
