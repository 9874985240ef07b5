"""What the native module claims of itself: multi-phase init, state per module, heap types, its own GIL, no GIL."""

import importlib.util
import os
import pathlib
import sys
import sysconfig

import fresh
import pytest
import tasks

from pool_party import ComposablePool, _native
from pool_party._core.leading import PUMP_DONE, PUMP_ROOM
from pool_party.workers.interp import elf

HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
TYPES = ("Job", "Channel", "Worker", "Interpreter", "Gate")


def load_again():
    spec = importlib.util.spec_from_file_location("pool_party._native", _native.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif("-g" in os.environ.get("CFLAGS", ""), reason="it was asked for debug sections")
def test_the_file_has_nothing_of_the_machine_that_built_python():
    assert elf.Dynamic(_native.__file__).folders == []
    assert b".debug_info" not in pathlib.Path(_native.__file__).read_bytes()  # a name of a section


def test_each_load_is_a_module_of_its_own():
    first, second = load_again(), load_again()
    assert len({id(module) for module in (_native, first, second)}) == 3
    assert all(getattr(first, name) is not getattr(second, name) for name in TYPES)
    assert first.Job(1, 2).n_items == 2


def test_jobs_of_another_module_are_refused():
    channel = _native.Channel(1)
    with pytest.raises(TypeError):
        channel.put_many(load_again().Job(1, 1), [1], _native.MODE_ITEM, None)


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
        _native.Channel(2).look(2)


def test_taking_results_leaves_the_news_of_room():
    """The leader takes a dead worker's results apart from its loop: room that it learned of there would be lost."""

    class Collected(_native.Job):
        def _deliver(self, index, status, value):
            results.append(value)

    n_slots, results = 1024, []
    channel = _native.Channel(1, True)
    channel.open_lane(0)
    worker, job = channel.worker(0), Collected(1, n_slots)
    worker.ready()
    assert channel.take_events()
    assert [channel.put(1, i, _native.MODE_ITEM, abs, -i) for i in range(n_slots)] == list(range(n_slots))
    assert channel.put(1, 0, _native.MODE_ITEM, abs, 0) == -1 and channel.is_starved
    for _ in range(4):
        worker.serve(repr, repr, n_slots // 4)
        channel.take({1: job})
    assert results == list(range(n_slots)) and channel.n_waiting == 0 and channel.is_starved
    channel.lead()
    channel.step_down()
    channel.wait_background()  # returns at once: there is news
    assert channel.pump({1: job}) == PUMP_ROOM and not channel.is_starved
    assert channel.pump({1: job}) == PUMP_DONE
