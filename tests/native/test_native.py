"""What the native module claims: multi-phase init, state per module, heap types, support for its own GIL and no GIL."""

import functools
import importlib.util
import os
import pathlib
import sys
import sysconfig
import time
from collections import deque

import fresh
import pytest
import tasks

from pool_party import ComposablePool, _native
from pool_party.workers.interp import elf

HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
TYPES = ("Job", "Task", "Published", "Channel", "Worker", "Interpreter", "Gate")


def load_again():
    spec = importlib.util.spec_from_file_location("pool_party._native", _native.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif("-g" in os.environ.get("CFLAGS", ""), reason="it was asked for debug sections")
def test_the_file_has_nothing_of_the_machine_that_built_python():
    assert elf.Dynamic(_native.__file__).folders == []
    assert b".debug_info" not in pathlib.Path(_native.__file__).read_bytes()  # the name of a section


def test_each_load_is_a_module_of_its_own():
    first, second = load_again(), load_again()
    assert len({id(module) for module in (_native, first, second)}) == 3
    assert all(getattr(first, name) is not getattr(second, name) for name in TYPES)
    assert first.Job(2).n_items == 2


def test_jobs_of_another_module_are_refused():
    channel = _native.Channel(1)
    with pytest.raises(TypeError):
        channel.put_many(load_again().Job(1), [1], _native.MODE_ITEM, None)


@pytest.mark.parametrize("name", TYPES)
def test_types_are_heap_types(name):
    assert getattr(_native, name).__flags__ & HEAP_TYPE


def test_every_interpreter_has_a_module_of_its_own():
    with ComposablePool(2, kind="interp") as pool:
        ids = set(pool.map(tasks.native_module_id, range(20), 1)) | {tasks.native_module_id(0)}
    assert len(ids) >= 2


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this build has a GIL")
def test_import_leaves_the_gil_off():
    code = "import sys, pool_party._native; print(sys._is_gil_enabled())"
    fresh.check(fresh.run(["-c", code]), "False")


def test_other_systems_are_told_so():
    completed = fresh.run(["-c", "import sys; sys.platform = 'plan9'; import pool_party"])
    assert completed.returncode == 1
    assert completed.err.strip().endswith("ImportError: pool_party supports Linux on x86-64 and arm64; this is plan9")


@pytest.mark.parametrize("n", [0, _native.MAX_WORKERS + 1, sys.maxsize])
def test_channel_refuses_impossible_numbers_of_workers(n):
    with pytest.raises(ValueError, match="from 1 to"):
        _native.Channel(n)


def test_worker_numbers_are_checked():
    with pytest.raises(IndexError, match="no worker 2"):
        _native.Channel(2).state_of(2)


def test_a_pool_may_end_while_its_backlog_is_put():
    class Ending(deque):
        def __getitem__(self, n):
            del channel.put_waiting  # as another thread does that closes the channel
            return super().__getitem__(n)

    channel = _native.Channel(1, True, Ending(["a map"]))
    channel.put_waiting = lambda is_nested, until_ns: True
    channel.feed_again()
    assert channel.put_waiting is None


def test_reaping_a_worker_leaves_the_news_of_room():
    """A dead worker's results are taken outside the leader's loop.

    A notification of room that arrives there must not be lost.
    """
    n_slots, backlog, n_fed = _native.SLOTS, deque(), []
    channel = _native.Channel(1, True, backlog)
    channel.put_waiting = lambda is_nested, until_ns: n_fed.append(1) or True
    channel.open_slot(0)
    worker, job = channel.worker(0), _native.Job(n_slots, 1, _native.JOB_MAP)
    assert channel.admit(job, None, n_slots)
    worker.ready()
    assert channel.take_events()
    assert channel.put_many(job, [-i for i in range(n_slots)], _native.MODE_ITEM, abs)
    more = _native.Job()
    assert channel.admit(more, None, 1)
    assert not channel.put(_native.Task(more, 0, abs, ((-1,), {}))) and channel.is_starved
    worker.serve(repr, repr, n_slots)
    assert channel.reap(0) is None  # there was no task that it had not answered
    assert job.done and job.value == list(range(n_slots)) and not more.done
    channel.take_results()
    assert n_fed and not channel.is_starved


def test_single_calls_by_reference_are_put_without_python_code():
    """Only what has no room, or is no single task, is left to `put_waiting`."""
    n_slots, backlog, left = _native.SLOTS, deque(), []
    channel = _native.Channel(1, True, backlog)
    channel.put_waiting = lambda is_nested, until_ns: left.append(len(backlog)) or True
    channel.open_slot(0)
    worker, jobs = channel.worker(0), [_native.Job() for _ in range(n_slots + 1)]
    worker.ready()
    for n, job in enumerate(jobs):
        assert channel.admit(job, _native.Task(job, 0, abs, ((-n,), {})), 1)
        channel.feed()
    assert left == [1] and backlog[0].job is jobs[-1]
    worker.serve(repr, repr, n_slots)
    channel.take_results()
    backlog.append(None)
    channel.feed_again()
    assert left == [1, 1] and list(backlog) == [None]
    worker.serve(repr, repr, 1)
    channel.take_results()
    assert [job.value for job in jobs] == list(range(n_slots + 1))


def test_a_thread_with_little_time_puts_only_what_needs_no_pickling():
    channel = _native.Channel(1, False, deque())
    job = _native.Job(3, 1, _native.JOB_MAP)
    assert channel.admit(job, None, 3)
    put = functools.partial(channel.put_many, job, [1, (2.5, "three"), object], _native.MODE_ITEM, None)
    soon = time.monotonic_ns() + 3600 * 10**9
    assert put(0) is None and job.cursor == 0  # its time has passed
    assert put(soon) is None and job.cursor == 2
    assert put() is True and job.cursor == 3


def test_a_waiting_thread_with_a_timeout_puts_the_backlog_itself():
    n_slots, backlog, times = _native.SLOTS, deque(), []
    channel = _native.Channel(1, True, backlog)
    channel.put_waiting = lambda is_nested, until_ns: times.append(until_ns) or False
    channel.open_slot(0)
    worker, job = channel.worker(0), _native.Job(n_slots, 1, _native.JOB_MAP)
    assert channel.admit(job, None, n_slots)
    worker.ready()
    assert channel.put_many(job, [-i for i in range(n_slots)], _native.MODE_ITEM, abs)
    more = _native.Job()
    assert channel.admit(more, None, 1)
    assert not channel.put(_native.Task(more, 0, abs, ((-1,), {})))
    worker.serve(repr, repr, n_slots)
    assert channel.wait(job, 3600) and job.value == list(range(n_slots))
    assert len(times) == 1 and times[0] > time.monotonic_ns()  # the rest was left to the background thread
    channel.feed()
    assert times[1] == -1


def test_a_closed_channel_raises_or_does_nothing():
    channel = _native.Channel(1)
    job = _native.Job()
    channel.close()
    channel.close()
    channel.notify()
    channel.stop(_native.STOP_NOW)
    assert not channel.admit(job, None, 1)
    for call in (lambda: channel.fd, lambda: channel.wait(job), lambda: channel.state_of(0), channel.counts):
        with pytest.raises(ValueError, match="the pool has ended"):
            call()
