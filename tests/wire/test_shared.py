"""`share`: all workers see what one writes, in every kind; only a handle is sent; otherwise arrays behave as usual."""

import array
import copy
import functools
import gc
import pickle
import threading

import arrays as array_tasks
import gates
import pytest
import tasks

import pool_party
from pool_party import _native, share
from pool_party._workers.interp.extensions import IS_SUPPORTED

MiB = 1 << 20
DATA = array.array("d", range(1000))


@pytest.mark.parametrize(
    "data", [b"bytes", bytearray(MiB), DATA, memoryview(b"0123456789")[::3], b""], ids=lambda d: type(d).__name__
)
def test_share_of_a_buffer_has_its_format_and_content(data):
    shared = share(data)
    with memoryview(data) as view:
        assert (shared.format, shared.shape, shared.tobytes()) == (view.format, view.shape, view.tobytes())
    assert not shared.readonly


def test_what_a_task_writes_all_see(pool):
    shared = share(DATA)
    result = pool.apply(tasks.overwrite_item, (shared,))
    assert shared[3] == result[3] == 77
    shared[3] = 1
    assert result[3] == 1
    assert pool.map(tasks.total, [shared] * 8, 1) == [sum(shared)] * 8


def test_parts_are_shared_too(pool):
    shared = share(DATA)
    pool.apply(tasks.overwrite_item, (shared[100:200],))
    assert shared[103] == 77
    assert pool.apply(tasks.total, (shared[500:],)) == sum(shared[500:])


def test_read_only(pool):
    shared = share(DATA, readonly=True)
    assert shared.readonly and pool.apply(tasks.total, (shared,)) == sum(DATA)
    with pytest.raises(TypeError, match="read-only"):
        pool.apply(tasks.overwrite_item, (shared,))


def test_shared_memory_outlives_the_callers_reference(make_pool, remote_kind, gate):
    pool = make_pool(1, kind=remote_kind)
    held = pool.apply_async(tasks.pass_gate, (gate.path,))
    gate.wait_arrived()
    waiting = pool.apply_async(tasks.total, (share(DATA),))  # nobody else refers to it
    gc.collect()
    gate.release()
    assert held.get(30) is None and waiting.get(30) == sum(DATA)


def test_a_task_may_share(pool):
    shared = pool.apply(share, (bytes(MiB),))
    assert shared.nbytes == MiB
    pool.apply(tasks.overwrite_item, (shared,))
    assert shared[3] == 77 and sum(pool.map(tasks.total, [shared] * 4, 1)) == 4 * 77


def test_a_worker_that_ends_waits_until_what_it_shared_has_arrived():
    job, channel = _native.Job(1, 1, _native.JOB_MAP), _native.Channel(1)
    channel.open_slot(0)
    published = channel.publish(channel.encode(share))
    assert channel.submit(_native.Entry(job, published, [b"shared"], 0, _native.MODE_ITEM))
    worker = channel.worker(0)
    thread = threading.Thread(target=worker.serve, args=(repr, repr, 1))
    thread.start()
    gates.wait_until(lambda: channel.n_done(0) == 1, "the task has run")
    thread.join(0.05)
    assert thread.is_alive()
    channel.take_results()
    thread.join(30)
    assert not thread.is_alive() and bytes(job.value[0]) == b"shared"


def test_other_memoryviews_are_as_ever(remote_pool):
    share(b"1")
    with pytest.raises(TypeError, match="cannot pickle 'memoryview' object"):
        pickle.dumps(memoryview(b"123"))
    assert remote_pool.apply(tasks.identity, (memoryview(b"123"),)) == b"123"  # as cloudpickle does it


def test_handles_beside_what_plain_pickle_cannot(pool):
    shared = share(DATA)
    assert pool.apply(lambda view: tasks.overwrite_item(view)[3], (shared,)) == 77 == shared[3]
    assert pool.apply(lambda: tasks.overwrite_item(shared[500:])[3]) == 77 == shared[503]


def test_a_handle_travels_and_not_the_data(remote_pool):
    shared = share(bytes(64 * MiB))
    channel = _native.Channel(1)
    payload = channel.encode((shared, shared[5:]))
    assert len(payload[0]) < 300 and [memoryview(b).nbytes for b in payload[1]] == [64 * MiB, 64 * MiB - 5]
    assert remote_pool.apply(len, (shared,)) == 64 * MiB


def test_what_has_no_buffer_is_refused():
    with pytest.raises(TypeError, match=r"a list has no buffer to share: pass an array, as numpy.asarray\(\) makes"):
        share([1, 2])


# ---- NumPy -----------------------------------------------------------------

np = pytest.importorskip("numpy")


@pytest.fixture
def array_pool(kind, pool):
    if kind == "interp" and not IS_SUPPORTED:
        pytest.skip("NumPy loads in interpreters from 3.14 on")
    return pool


def test_shared_arrays(array_pool):
    for original in (
        np.arange(10.0),
        np.ones((300, 400), order="F"),
        np.arange(24, dtype="i2").reshape(2, 3, 4)[:, ::2],
        np.zeros((3, 0)),
    ):
        shared = share(original)
        assert type(shared) is np.ndarray and np.array_equal(shared, original) and shared.dtype == original.dtype
        assert shared.flags.f_contiguous or not original.flags.f_contiguous
        result = array_pool.apply(functools.partial(array_tasks.set_to, 7), (shared,))
        assert (shared == 7).all() and type(result) is np.ndarray and result.strides == shared.strides
        shared[...] = 8
        assert (result == 8).all()


def test_rows_are_shared_and_computed_arrays_are_not(array_pool):
    shared = share(np.zeros((50, 1000)))
    array_pool.map(functools.partial(array_tasks.set_to, 3), [shared[i] for i in range(0, 50, 2)], 1)
    assert (shared[::2] == 3).all() and (shared[1::2] == 0).all()
    assert (array_pool.apply(array_tasks.double, (shared,)) == 2 * shared).all()
    double = shared * 2
    assert not _native.is_shared(double) and not _native.is_shared(copy.copy(shared)) and _native.is_shared(shared[7])


def test_read_only_arrays(array_pool):
    shared = share(np.arange(10.0), readonly=True)
    assert not shared.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array_pool.apply(functools.partial(array_tasks.set_to, 1), (shared,))
    with pytest.raises(ValueError):
        shared.flags.writeable = True
    assert array_pool.apply(np.sum, (shared,)) == 45


def test_types_without_a_buffer_are_refused():
    for odd in (np.array([None, "x"]), np.array(["2026-01-01"], "M8[D]"), np.zeros(2, [("o", object)])):
        with pytest.raises(TypeError, match="cannot be shared"):
            share(odd)


def test_a_masked_array_is_refused_since_its_mask_would_be_lost():
    with pytest.raises(TypeError, match="masked arrays cannot be shared"):
        share(np.ma.masked_array([1.0, 2.0], [False, True]))


def test_share_is_public():
    assert pool_party.share is share and "share" in pool_party.__all__


def test_any_number_of_parts_is_shared(remote_pool):
    n = 4000
    shared = share(array.array("q", bytes(8 * 4 * n)))
    parts = [shared[4 * i : 4 * i + 4] for i in range(n)]
    remote_pool.map(tasks.overwrite_item, parts, n // 2)
    assert [part[3] for part in parts] == [77] * n
    assert remote_pool.apply(tasks.identity, (parts,))[n - 1].tolist() == parts[n - 1].tolist()


def test_any_number_of_rows_is_shared(remote_kind, remote_pool):
    numpy = pytest.importorskip("numpy")
    if remote_kind == "interp" and not IS_SUPPORTED:
        pytest.skip("NumPy does not load in these interpreters")
    rows = share(numpy.zeros((3000, 4)))
    remote_pool.starmap(array_tasks.set_to, [(1, row) for row in rows], 1500)
    assert (rows == 1).all()


def test_an_initializer_gets_the_memory_itself(make_pool, remote_kind):
    shared = share(DATA)
    pool = make_pool(1, kind=remote_kind, initializer=tasks.overwrite_item, initargs=(shared,))
    pool.apply(abs, (1,))
    assert shared[3] == 77


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_an_initializer_of_each_start_method_gets_the_memory_itself(make_pool, context, start_method):
    shared = share(DATA)
    pool = make_pool(1, kind="process", context=context, initializer=tasks.overwrite_item, initargs=(shared,))
    pool.apply(abs, (1,))
    assert shared[3] == 77


def test_an_error_carries_the_memory_itself(pool):
    shared = share(DATA)
    with pytest.raises(LookupError) as caught:
        pool.apply(tasks.raise_lookup_error, (shared,))
    caught.value.args[0][4] = 5
    assert shared[4] == 5


def test_an_error_carries_an_array_itself(make_pool, remote_kind):
    """Its worker has not imported what pickles views of shared memory."""
    if remote_kind == "interp" and not IS_SUPPORTED:
        pytest.skip("NumPy loads in interpreters from 3.14 on")
    pool = make_pool(1, kind=remote_kind, context="spawn" if remote_kind == "process" else None)
    shared = share(np.zeros(5))
    with pytest.raises(LookupError) as caught:
        pool.apply(tasks.raise_lookup_error, (shared,))
    view = pool.apply(memoryview, (shared,))
    shared[4] = 5
    assert caught.value.args[0][4] == view[4] == 5
