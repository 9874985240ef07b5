"""What the native module claims: multi-phase init, state per module, heap types, support for its own GIL and no GIL."""

import importlib.util
import os
import pathlib
import sys
import sysconfig
import weakref

import fresh
import pytest
import tasks

from pool_party import ComposablePool, _native
from pool_party._workers.interp import elf

HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
TYPES = ("Job", "Entry", "Published", "Channel", "Worker", "Interpreter", "Gate")


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
    with pytest.raises(TypeError):
        _native.Entry(load_again().Job(1), None, [1], 0, _native.MODE_ITEM)


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
    expected = f"supports Linux on x86-64 and arm64; this is plan9 on {os.uname().machine}"
    assert completed.err.strip().endswith(f"ImportError: pool_party {expected}")


@pytest.mark.parametrize("n", [0, _native.MAX_WORKERS + 1, sys.maxsize])
def test_channel_refuses_impossible_numbers_of_workers(n):
    with pytest.raises(ValueError, match="from 1 to"):
        _native.Channel(n)


def test_worker_numbers_are_checked():
    with pytest.raises(IndexError, match="no worker 2"):
        _native.Channel(2).state_of(2)


def test_a_pool_may_end_while_its_backlog_is_put():
    class Ending:
        """An argument whose pickling ends the pool, as another thread may."""

        def __reduce__(self):
            channel.clear_backlog()
            channel.close()
            return Ending, ()

    channel = _native.Channel(1)
    assert channel.submit(map_of([Ending(), 2, 3]))
    channel.feed()
    assert not channel.submit(_native.Entry(_native.Job(), None, channel.encode(1)))


def map_of(items, function=None):
    """Return the entry of a map, whose tasks have one item each."""
    return _native.Entry(_native.Job(len(items), 1, _native.JOB_MAP), function, items, 0, _native.MODE_ITEM)


def filled(channel):
    """Return the job of a map that uses all room of a channel by reference, and the job of a single call behind it."""
    entry, more = map_of([-i for i in range(_native.SLOTS)], abs), _native.Job()
    assert channel.submit(entry)
    assert channel.submit(_native.Entry(more, abs, ((-1,), {})))
    assert channel.n_waiting == _native.SLOTS and more.sequence == -1
    return entry.job, more


def ready_worker(channel):
    channel.open_slot(0)
    worker = channel.worker(0)
    worker.ready()
    assert channel.take_events()
    return worker


def test_reaping_a_worker_leaves_the_news_of_room():
    """A dead worker's results are taken outside the leader's loop.

    A notification of room that arrives there must not be lost.
    """
    channel = _native.Channel(1, True)
    worker = ready_worker(channel)
    job, more = filled(channel)
    worker.serve(repr, repr, _native.SLOTS)
    assert channel.reap(0) is None  # there was no task that it had not answered
    assert job.done and job.value == list(range(_native.SLOTS)) and more.sequence == -1
    channel.take_results()
    assert more.sequence >= 0


def test_an_entry_is_in_one_backlog_once():
    channel = _native.Channel(1, True)
    filled(channel)
    entry = _native.Entry(_native.Job(), abs, ((-1,), {}))
    assert channel.submit(entry)
    with pytest.raises(TypeError, match="once"):
        channel.submit(entry)
    with pytest.raises(TypeError, match="Entry"):
        channel.enqueue(None)


def test_what_waits_goes_with_the_backlog():
    channel, argument = _native.Channel(1, True), tasks.Adder(1)
    ref = weakref.ref(argument)
    filled(channel)
    assert channel.submit(_native.Entry(_native.Job(), abs, ((argument,), {})))
    del argument
    assert ref() is not None
    channel.clear_backlog()
    assert ref() is None


def test_a_thread_with_little_time_puts_only_what_needs_no_pickling():
    """Of a map, and of what is behind it: the rest is left to a thread that has time."""
    channel = _native.Channel(1)
    worker, entry = ready_worker(channel), map_of([1, (2.5, "three"), object, 4])
    first = map_of([0] * _native.SLOTS, channel.publish(channel.encode(abs)))
    assert channel.submit(first) and channel.submit(entry) and entry.job.cursor == 0
    worker.serve(repr, repr, _native.SLOTS)
    assert channel.wait(first.job, 3600) and entry.job.cursor == 2
    channel.feed()
    assert entry.job.cursor == 4


def test_a_waiting_thread_with_a_timeout_puts_the_backlog_itself():
    channel = _native.Channel(1, True)
    worker = ready_worker(channel)
    job, more = filled(channel)
    worker.serve(repr, repr, _native.SLOTS)
    assert channel.wait(job, 3600) and job.value == list(range(_native.SLOTS)) and more.sequence >= 0
    worker.serve(repr, repr, 1)
    assert channel.wait(more, 3600) and more.value == 1


def test_a_closed_channel_raises_or_does_nothing():
    channel = _native.Channel(1)
    job = _native.Job()
    channel.close()
    channel.close()
    channel.notify()
    channel.stop(_native.STOP_NOW)
    assert not channel.admit(job)
    for call in (lambda: channel.fd, lambda: channel.wait(job), lambda: channel.state_of(0), channel.counts):
        with pytest.raises(ValueError, match="the pool has ended"):
            call()
