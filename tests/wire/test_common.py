"""A large object that several tasks of one call name is sent once, and no task notices."""

import _pickle
import gc
import io
import os
import threading
import weakref

import commons
import gates
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pool_party

SIZE = 5_000_000
N_TASKS = 8


def deep(value):
    for _ in range(6):
        value = (value, 0)
    return value


SHAPES = {
    "alone": lambda blob: blob,
    "in a tuple": lambda blob: (blob, 1),
    "deep": deep,
    "in a pickle": lambda blob: commons.Plain(blob),
}
BLOBS = {"bytes": lambda: bytes([7]) * SIZE, "text": lambda: "\xe9" * SIZE, "wide": lambda: "\u20ac" * (SIZE // 2)}


def can_set_apart():
    """Whether large objects deep in a pickle can be sent apart, which CPython 3.13.0 cannot do."""
    try:
        _pickle.Pickler(io.BytesIO()).persistent_id = abs
    except AttributeError:
        return False
    return True


CAN_SET_APART = can_set_apart()
IS_SANITIZED = "ASAN_OPTIONS" in os.environ  # freed memory then stays allocated for a while


def idle_memory(pool):
    return pool.statistics().idle_bytes


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def has_pins(pool):
    return pool._engine._channel.has_pins


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("blob", BLOBS)
def test_it_is_in_memory_once_however_many_tasks_wait(remote_kind, make_pool, gate, shape, blob):
    pool = make_pool(1, kind=remote_kind)
    value = BLOBS[blob]()
    items = [(gate.path, SHAPES[shape](value)) for _ in range(N_TASKS)]
    pool.map(abs, [1])
    before = resident_bytes()
    call = pool.starmap_async(commons.pass_gate_with, items, 1)
    gate.wait_arrived()
    grown = resident_bytes() - before
    gate.release(N_TASKS)
    assert call.get(60) == [commons.first_and_size(value)] * N_TASKS
    if CAN_SET_APART or shape in ("alone", "in a tuple"):
        assert idle_memory(pool) < 4 * SIZE
    if shape in ("alone", "in a tuple") and not IS_SANITIZED:  # otherwise the first task's pickle may contain it
        assert grown < 4 * SIZE


@pytest.mark.parametrize("shape", ["alone", "deep", "in a pickle"])
def test_a_stream_shares_bytes(remote_kind, make_pool, shape):
    pool = make_pool(2, kind=remote_kind)
    value = bytes([3]) * SIZE
    item = SHAPES[shape](value)
    assert list(pool.imap(commons.first_and_size, (item for _ in range(N_TASKS)))) == [(3, SIZE)] * N_TASKS


def test_a_stream_takes_a_buffer_as_it_is_when_it_is_read(remote_pool):
    buffer = commons.Buffer(bytearray(3_000_000))

    def read():
        for i in range(10):
            buffer.data[0] = i
            yield buffer

    assert [first for first, _ in remote_pool.imap(commons.first_and_size, read())] == list(range(10))


@pytest.mark.parametrize("size", [400_000, 3_000_000])
@pytest.mark.parametrize("chunk", [1, 3])
def test_what_a_task_writes_no_other_sees(remote_pool, size, chunk):
    buffer = commons.Buffer(bytearray(size))
    seen = remote_pool.map(commons.add_one, [buffer] * 12, chunk)
    assert seen == [i % chunk for i in range(12)]  # the items of a chunk are one object, as with multiprocessing.Pool
    assert buffer.data[0] == 0


def test_a_task_may_keep_it_beyond_its_call(remote_kind, make_pool):
    pool = make_pool(1, kind=remote_kind)
    for i in range(1, 5):
        pool.map(commons.keep, [commons.Buffer(bytearray([i]) * 3_000_000)] * 3, 1)
    pool.map(commons.first_and_size, [bytes(3_000_000 + i) for i in range(10)], 1)  # reuse the released blocks
    assert pool.apply(commons.look_at_kept, (0,)) == [(i, i) for i in range(1, 5) for _ in range(3)]


def test_a_fork_of_a_worker_sees_it_as_it_was(make_pool):
    pool = make_pool(2, kind="process")
    assert pool.map(commons.fork_and_read, [commons.Buffer(bytearray([5]) * 3_000_000)] * 6, 1) == [5] * 6


@pytest.mark.parametrize("nested", [False, True])
def test_identity_inside_a_task_is_kept(remote_pool, nested):
    blob = bytes(SIZE)
    pair = (blob, deep(1), blob) if nested else (blob, 1, blob)
    other = (blob, deep(1), bytes(bytearray(blob)))
    assert remote_pool.map(commons.are_one, [pair, other] * 4, 2) == [True, False] * 4


class Marked(bytearray):
    """A bytearray that can be referred to weakly."""


@pytest.mark.parametrize("end", ["done", "terminated", "failed"])
def test_the_caller_does_not_keep_it_for_the_call(remote_kind, make_pool, gate, end):
    pool = make_pool(1, kind=remote_kind)
    data = Marked(3_000_000)
    mark = weakref.ref(data)
    buffer = commons.Buffer(data)
    items = [(gate.path, buffer)] * 3 + [(gate.path, threading.Lock())] * (end == "failed")
    call = pool.starmap_async(commons.pass_gate_with, items, 1)
    gate.wait_arrived()
    if end == "terminated":
        pool.terminate()
        gate.release(3)
    else:
        gate.release(3)
        call.wait(60)
    assert end == "terminated" or call.successful() == (end == "done")
    del data, buffer, items, call  # the call's error refers to the frames where it was raised
    gates.wait_until(lambda: gc.collect() >= 0 and mark() is None, "the caller's buffer is let go")
    if end != "terminated":
        gates.wait_until(lambda: not has_pins(pool), "nothing is retained")


def test_a_killed_worker_gives_it_back(make_pool):
    pool = make_pool(2, kind="process")
    value = bytes([1]) * SIZE
    for _ in range(3):
        call = pool.starmap_async(commons.kill_worker, [(value, i == 3) for i in range(N_TASKS)], 1)
        with pytest.raises(pool_party.WorkerLost):
            call.get(60)
    assert pool.map(commons.first_and_size, [value] * N_TASKS, 1) == [(1, SIZE)] * N_TASKS
    gates.wait_until(lambda: not has_pins(pool), "nothing is retained")
    assert idle_memory(pool) < 8 * SIZE


@pytest.mark.parametrize("start_method", ["fork"])
def test_a_worker_does_not_take_it_for_that_of_another_pool(make_pool, context, start_method):
    pool = make_pool(1, kind="process", context=context)
    blobs = [bytes([i]) * 300_000 for i in range(3)]
    assert pool.starmap(commons.nest, [(blob, start_method) for blob in blobs * 2], 1) == [(0, 300_000)] * 6


leaves = st.sampled_from(["bytes", "text", "buffer", "small"])
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, min_size=1, max_size=3) | st.tuples(inner, inner), max_leaves=5
)


def build(tree, objects):
    if isinstance(tree, str):
        return objects[tree]
    return type(tree)(build(part, objects) for part in tree)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    items=st.lists(trees, min_size=1, max_size=12), chunk=st.integers(1, 5), size=st.sampled_from([270_000, 2_200_000])
)
def test_any_mixture_arrives_as_it_is_sent(remote_pool, items, chunk, size):
    objects = {
        "bytes": b"b" * size,
        "text": "\u20ac" * (size // 2),
        "buffer": commons.Buffer(bytearray(size)),
        "small": 1,
    }
    values = [build(tree, objects) for tree in items]
    expected = [commons.describe(value) for value in values]
    assert remote_pool.map(commons.describe, values, chunk) == expected
    assert list(remote_pool.imap(commons.describe, values, chunk)) == expected
