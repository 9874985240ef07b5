"""The broker of pools on other machines, with nodes whose steps a random choice decides, and with a real session."""

import random
import sysconfig
import threading
from collections import deque
from queue import SimpleQueue

import gates
import nets
import pytest
import tasks

import pool_party
from pool_party import (
    ClusterLost,
    ComposableExecutor,
    ComposablePool,
    InitializerFailed,
    PoolPartyError,
    WorkerLost,
    _config,
    _native,
    share,
)
from pool_party._cluster import distant, here, parts
from pool_party._cluster.node import session
from pool_party._cluster.nodes import Node, Nodes
from pool_party._cluster.slots import Slot, Task

TIMEOUT_S = 30


def terms_of(n, initializer=None, kind="thread", **options):
    return distant.Terms(ComposablePool, _config.PoolConfig(kind, n, **options), initializer)


@pytest.fixture
def open_pool(monkeypatch):
    """Return a function that opens a pool on a transport."""
    opened = []

    def open_on(transport, make=ComposablePool, **options):
        monkeypatch.setattr(_config, "_transport_to", lambda *args: transport)
        opened.append(make(2, kind="dask", **options))
        return opened[-1]

    nets.begun.clear()
    yield open_on
    for pool in opened:
        if isinstance(pool, ComposablePool):
            pool.terminate()
            pool.join(TIMEOUT_S)
        else:
            pool.shutdown(cancel_futures=True)


@pytest.fixture
def local_pool(open_pool):
    """Return a function that opens a pool whose one node is in this process."""

    def open_here(**options):
        return open_pool(here.Here(2, terms_of(options.pop("processes", 2), **options)))

    return open_here


@pytest.mark.parametrize("losses", [0, 5])
@pytest.mark.parametrize("seed", range(8))
def test_each_task_has_one_outcome_and_is_begun_once(open_pool, seed, losses):
    pool = open_pool(nets.Net(seed, losses=losses))
    chosen = random.Random(seed)
    results = {x: pool.apply_async(nets.note, (x,)) for x in range(300)}
    cancelled = {x for x in chosen.sample(range(300), 40) if results[x].cancel()}
    n_lost = 0
    for x, result in results.items():
        if x in cancelled:
            assert nets.begun[x] == 0
            continue
        try:
            assert result.get(TIMEOUT_S) == -x and nets.begun[x] == 1
        except WorkerLost:
            n_lost += 1
            assert nets.begun[x] <= 1
    assert n_lost <= 300 if losses else n_lost == 0
    pool.close()
    pool.join(TIMEOUT_S)
    assert max(nets.begun.values()) == 1


@pytest.mark.parametrize("seed", range(4))
def test_maps_and_streams_survive_losses_with_retries(open_pool, seed):
    pool = open_pool(nets.Net(seed, losses=6)).options(retries=20)
    assert pool.map(nets.note, range(200)) == [-x for x in range(200)]
    assert list(pool.imap(nets.note, range(100))) == [-x for x in range(100)]
    assert sorted(pool.imap_unordered(nets.note, range(100))) == sorted(-x for x in range(100))


def test_a_node_that_joins_gets_tasks_back_from_others(open_pool):
    """As long as no worker of theirs has begun them."""
    net = nets.Net(1, n_nodes=1)
    net._steps_of = lambda node: steps_of(node) if not node.running or node is not net.nodes[0] else messages_of(node)
    steps_of = nets.Net._steps_of.__get__(net)

    def messages_of(node):  # its tasks never end
        steps = steps_of(node)
        return [step for step in steps if step.__defaults__ is None]

    pool = open_pool(net)
    held = net.nodes[0].n_workers
    results = [pool.apply_async(nets.note, (x,)) for x in range(2 * held)]
    net.join()
    for result in results[held:]:
        result.wait(TIMEOUT_S)
    assert [result.ready() for result in results] == [False] * held + [True] * held


def test_a_lost_cluster_fails_what_is_pending_and_what_comes(open_pool):
    net = nets.Net(1, n_nodes=0)
    pool = open_pool(net)
    pending = pool.map_async(nets.note, range(10))
    net._inbox.put(("failed", ClusterLost("the scheduler does not answer")))
    with pytest.raises(ClusterLost, match="does not answer"):
        pending.get(TIMEOUT_S)
    with pytest.raises(ClusterLost, match="does not answer"):
        pool.apply(nets.note, (1,))


def test_an_error_while_opening_is_raised(open_pool):
    class Fails:
        def open(self, inbox):
            raise PoolPartyError("as the test wants it")

        def close(self, drains):
            pass

    with pytest.raises(PoolPartyError, match="as the test wants it"):
        open_pool(Fails())


def test_functions_are_sent_once_to_each_node(open_pool):
    net = nets.Net(3, n_nodes=2)
    pool = open_pool(net)
    seen = []
    for node in net.nodes:
        run = node.run
        node.run = lambda functions, *args, run=run: (seen.extend(functions), run(functions, *args))
    for _ in range(5):
        pool.map(nets.note, range(20), 1)
    assert len(seen) == len(net.nodes)


def test_changed_functions_are_sent_again_and_old_ones_forgotten(open_pool):
    net = nets.Net(3, n_nodes=1)
    pool = open_pool(net)
    for n in range(300):
        assert pool.apply(lambda x, n=n: x + n, (1,)) == n + 1
    counts = [0]
    for n in range(3):
        counts[0] = n
        assert pool.map(lambda x: counts[0] + x, [1, 2]) == [n + 1, n + 2]
    assert len(net.nodes[0].functions) <= 130


def test_several_threads_cancel_a_call(local_pool, gate):
    """Each is told whether it was cancelled."""
    pool = local_pool(processes=1)
    blocking = pool.apply_async(tasks.pass_gate, (gate.path,))
    gate.wait_arrived(1)
    for _ in range(30):
        calls = [pool.apply_async(tasks.square, (n,)) for n in range(5)]
        barrier = threading.Barrier(4)

        def cancel_all(calls=calls, barrier=barrier):
            barrier.wait(TIMEOUT_S)
            return [call.cancel() for call in calls]

        outcomes = [thread.result(TIMEOUT_S) for thread in [gates.call_in_thread(cancel_all) for _ in range(4)]]
        assert all(any(found) for found in zip(*outcomes, strict=True))
    gate.release(1)
    blocking.get(TIMEOUT_S)


# ---- shared memory ----

SIZE = distant.APART_MIN


def first_and_number(array, number):
    return array[0], number


def firsts_in(net):
    """Return the first bytes of the parts that each node keeps."""
    return [{part[0] for part in list(node.parts.values())} for node in net.nodes]


def wait_until_forgotten(pool, condition):
    def look():
        if sysconfig.get_config_var("Py_GIL_DISABLED"):  # a thread that sleeps frees its objects when it goes on
            pool.apply(abs, (-1,))
        return condition()

    gates.wait_until(look, "the nodes have forgotten")


def test_a_part_is_sent_once_to_each_node(open_pool):
    net = nets.Net(3, n_nodes=2)
    pool = open_pool(net)
    seen = []
    for node in net.nodes:
        run = node.run
        node.run = lambda functions, parts, batch, run=run: (seen.extend(parts), run(functions, parts, batch))
    array = share(b"a" * SIZE)
    arguments = [(array, n) for n in range(50)]
    expected = [(ord("a"), n) for n in range(50)]
    for _ in range(5):
        assert pool.starmap(first_and_number, arguments, 1) == expected
    for argument, outcome in list(zip(arguments, expected, strict=True))[:10]:
        assert pool.apply(first_and_number, argument) == outcome
    assert len(seen) == len(set(seen)) + 1 == len(net.nodes)


@pytest.mark.parametrize("make", ["map", "apply"])
def test_each_call_has_the_memory_as_it_was_made(open_pool, make):
    pool = open_pool(nets.Net(3))
    array = share(bytes(SIZE))
    for n in range(5):
        array[0] = n
        if make == "map":
            result = pool.starmap_async(first_and_number, [(array, 0)] * 20, 1)
            assert result.get(TIMEOUT_S) == [(n, 0)] * 20
        else:
            result = pool.apply_async(first_and_number, (array, 0))
            array[0] = 99  # comes too late
            assert result.get(TIMEOUT_S) == (n, 0)


def test_a_view_that_cannot_be_written_to_may_change(open_pool):
    pool = open_pool(nets.Net(3))
    array = share(bytes(SIZE))
    view = array.toreadonly()
    for n in range(5):
        array[0] = n
        assert pool.apply(first_and_number, (view, 0)) == (n, 0)


def test_nodes_forget_what_the_program_frees(open_pool):
    net = nets.Net(3, n_nodes=2)
    pool = open_pool(net)
    kept = share(b"k" * SIZE, readonly=True)
    freed = [share(b"f" * SIZE, readonly=n % 2 == 0) for n in range(4)]
    pool.starmap(first_and_number, [(array, 0) for array in [kept, *freed] for _ in range(20)], 1)
    assert set().union(*firsts_in(net)) == {*b"kf"}
    del freed
    wait_until_forgotten(pool, lambda: set().union(*firsts_in(net)) == {*b"k"})
    assert pool.apply(first_and_number, (kept, 1)) == (ord("k"), 1)


def test_no_node_keeps_more_parts_than_it_may_have_open(open_pool):
    net = nets.Net(3, n_nodes=1)
    pool = open_pool(net)
    arrays = [share(bytes([n]) * SIZE, readonly=True) for n in range(parts.KEPT_MAX + 50)]
    for _ in range(2):
        assert pool.map(bytes, arrays, 1) == [bytes(array) for array in arrays]
    wait_until_forgotten(pool, lambda: len(net.nodes[0].parts) <= parts.KEPT_MAX)


def test_a_lost_node_is_replaced_by_one_that_gets_the_parts(open_pool):
    pool = open_pool(nets.Net(5, losses=5))
    array = share(b"a" * SIZE)
    results = [pool.apply_async(first_and_number, (array, n)) for n in range(300)]
    for n, result in enumerate(results):
        try:
            assert result.get(TIMEOUT_S) == (ord("a"), n)
        except WorkerLost:
            pass


@pytest.mark.parametrize("worker_kind", ["thread", "process", "interp"])
def test_the_workers_of_a_node_see_the_same_memory(local_pool, worker_kind):
    pool = local_pool(kind=worker_kind)
    array = share(b"a" * 2 * SIZE)
    places = set(pool.starmap(tasks.name_of_memory, [(array[:-5], n) for n in range(20)], 1))
    assert len(places) == 1
    assert places != {tasks.name_of_memory(array[:-5], 0)}


@pytest.mark.parametrize("worker_kind", ["thread", "process"])
def test_a_write_to_it_is_refused(local_pool, worker_kind):
    numpy = pytest.importorskip("numpy")
    pool = local_pool(kind=worker_kind)
    array = share(numpy.zeros(SIZE))
    with pytest.raises(ValueError, match="read-only"):
        pool.apply(tasks.add_in_place, (array, 1))
    assert not array.any()


def test_arrays_arrive_as_they_are(local_pool):
    numpy = pytest.importorskip("numpy")
    pool = local_pool(kind="process")
    array = share(numpy.asfortranarray(numpy.random.default_rng(1).random((300, 400))))
    for part in (array, array[:, 30:], array.T, array.T[7:]):
        result = pool.apply(tasks.identity, (part,))
        assert (result == part).all()
        assert result.strides == part.strides


def strided_arrays():
    import numpy

    numbers = numpy.random.default_rng(2).random((60, 70, 80))
    yield from (numbers[:, :, ::3], numbers[::-1, 3:], numbers.transpose(1, 0, 2), numbers[:, :1, :].T, numbers.T[5:])
    yield numbers[::2].astype(">f4")[:, ::2]
    yield numpy.arange(200_000).astype("M8[s]")[::2]
    yield numpy.zeros(30_000, "i4, f8")[::3]
    yield numpy.ma.masked_greater(numbers, 0.5)[:, ::2]
    yield numpy.array([[], {}, "a"] * 10_000, dtype=object)[::2]


def test_arrays_that_are_not_contiguous_travel_packed():
    numpy = pytest.importorskip("numpy")
    for array in strided_arrays():
        frames = distant.encode(array, distant.Machines())
        found = distant.decode(distant.as_buffers(frames))
        assert (type(found), found.dtype, found.shape) == (type(array), array.dtype, array.shape)
        assert (found == array).all() and found.flags.writeable and found.flags.c_contiguous
        if type(array) is numpy.ndarray and array.dtype.kind not in "OM":
            assert len(frames[0]) < 1_000


def test_a_machine_without_descriptors_copies_parts(local_pool, monkeypatch):
    def share(*args, **kwargs):
        raise OSError("as the test wants it")

    array = pool_party.share(b"a" * SIZE)
    monkeypatch.setattr(distant, "share", share)
    pool = local_pool(kind="process")
    assert pool.map(bytes, [array] * 5, 1) == [bytes(array)] * 5


def test_initializers_get_it_once_for_each_node(local_pool):
    array = share(b"a" * SIZE)
    call = (tasks.keep, (array,))
    encoded = distant.encode(call, distant.Machines(), apart=distant.Shared)
    pool = local_pool(kind="process", initializer=encoded)
    places = {pool.apply(tasks.name_of_kept_memory) for _ in range(20)}
    assert len(places) == 1
    assert places != {tasks.name_of_memory(array, 0)}


# ---- a session in this process ----


def test_values_are_copied(local_pool):
    pool = local_pool()
    values = [1, 2]
    assert pool.apply(tasks.identity, (values,)) == values
    assert pool.apply(tasks.identity, (values,)) is not values


def test_every_mode(local_pool):
    pool = local_pool()
    assert pool.apply(tasks.affine, (2,), {"a": 3, "b": 1}) == 7
    assert pool.map(tasks.square, range(10), 3) == [x * x for x in range(10)]
    assert pool.starmap(tasks.multiply, [(1, 2), (3, 4)], 1) == [2, 12]
    assert pool.starmap(tasks.multiply, [(1, 2), (3, 4)], 2) == [2, 12]
    assert list(pool.imap(tasks.square, range(10), 4)) == [x * x for x in range(10)]


def test_a_result_that_does_not_pickle_is_named(local_pool):
    import multiprocessing.pool

    with pytest.raises(multiprocessing.pool.MaybeEncodingError, match="lock"):
        local_pool().apply(tasks.make_lock)


def test_an_argument_that_does_not_pickle_fails_its_call_alone(local_pool):
    import threading

    pool = local_pool()
    with pytest.raises(TypeError, match="lock"):
        pool.apply(tasks.identity, (threading.Lock(),))
    assert pool.apply(tasks.square, (3,)) == 9


def test_the_traceback_begins_in_the_task(local_pool):
    with pytest.raises(ZeroDivisionError) as caught:
        local_pool().apply(divmod, (1, 0))
    assert "_cluster/node/tasks" not in str(caught.value.__cause__)


def test_a_failing_initializer_breaks_the_pool(local_pool):
    pool = local_pool(initializer=distant.encode((divmod, (1, 0)), distant.Machines()))
    with pytest.raises(InitializerFailed, match="ZeroDivisionError"):
        pool.apply(tasks.square, (3,))


def test_an_initializer_that_has_failed_already_is_told():
    """Before the session begins to handle messages, which is where others are."""
    told, inbox = [], SimpleQueue()
    encoded = distant.encode((divmod, (1, 0)), distant.Machines())
    node = session.Session(terms_of(1, encoded), 1, told.append)
    gates.wait_until(lambda: not node._pool._engine.is_running, "its pool is broken")
    frames = distant.encode(((1,), {}))
    inbox.put(("run", {1: distant.encode_whole(tasks.square)}, {}, [(0, 1, _native.MODE_CALL, None, frames)]))
    inbox.put(("end", False))
    node.handle_all(inbox)
    assert [what for what, *_ in told] == ["broken"]


def test_an_initializer_may_fail_while_the_pool_is_being_opened(open_pool):
    class Broken(nets.Net):
        def open(self, inbox):
            super().open(inbox)
            inbox.put(("messages", self.nodes[0].name, [("broken", ZeroDivisionError("as the test wants it"))]))

    pool = open_pool(Broken(1))
    gates.wait_until(lambda: not pool._engine.is_running, "the pool is broken")
    with pytest.raises(InitializerFailed, match="as the test wants it"):
        pool.apply(nets.note, (1,))


def test_options_for_other_kinds_and_for_this_one():
    with pytest.raises(ValueError, match="address is for kind='dask', not 'thread'"):
        ComposablePool(1, kind="thread", address="tcp://localhost:8786")
    with pytest.raises(ValueError, match="worker_kind is for kind='dask' or 'mpi', not 'process'"):
        ComposableExecutor(1, worker_kind="thread")
    with pytest.raises(ValueError, match="insecure is for kind='dask', not 'mpi'"):
        ComposablePool(1, kind="mpi", insecure=True)
    with pytest.raises(ValueError, match="worker_kind is one of"):
        ComposablePool(1, kind="dask", worker_kind="dask")
    with pytest.raises(ValueError, match="kind must be one of"):
        ComposablePool(1, kind="dask", worker_kind="fibre")
    with pytest.raises(ValueError, match="log and output"):
        ComposablePool(1, kind="dask", log=True)
    with pytest.raises(ValueError, match="policy"):
        ComposablePool(1, kind="dask", policy="typo")
    with pytest.raises(ValueError, match="at least 1"):
        ComposablePool(0, kind="dask")


def test_such_a_pool_cannot_be_traced(local_pool, tmp_path):
    with pytest.raises(PoolPartyError, match="cannot be traced"):
        local_pool().trace(tmp_path / "trace.json")


def test_a_task_that_is_withdrawn_and_sent_again_has_one_outcome(gate):
    """However late the thread is that runs the callbacks of the withdrawn one."""
    told = []
    node = session.Session(terms_of(1), 1, told.append)
    encoded = distant.encode_whole(tasks.pass_gate)

    def send(number, path):
        frames = distant.encode(((path, number), {}))
        node.handle(("run", {1: encoded}, [], [(number, 1, _native.MODE_CALL, None, frames)]))

    try:
        send(0, gate.path)
        gate.wait_arrived()
        for _ in range(200):
            send(1, gate.path)
            node.handle(("give_back", 1))
        send(1, gate.path)
        gate.release(2)
        gates.wait_until(lambda: sum(what == "outcome" for what, *_ in told) == 2, "both have their outcome")
    finally:
        node.close()
    assert [message[1] for message in told if message[0] == "given_back"] == [[1]] * 200
    outcomes = [message for message in told if message[0] == "outcome"]
    assert {number: distant.decode(value) for _, number, _, value, _ in outcomes} == {0: 0, 1: 1}


def test_a_node_that_can_make_no_workers_is_left_alone(open_pool):
    net = nets.Net(1, n_nodes=2)
    pool = open_pool(net)
    lost, ended = net.nodes[0], []
    lost.end = lambda drains: ended.append(lost)
    net._inbox.put(("messages", lost.name, [("unusable", "as the test wants it")]))
    gates.wait_until(lambda: ended, "its session ends")
    assert pool.map(nets.note, range(50), 1) == [-x for x in range(50)]
    assert pool.statistics().n_workers_lost == lost.n_workers


# ---- the groups of nodes ----


@pytest.mark.parametrize("seed", range(20))
def test_groups_of_nodes_are_what_counting_finds(seed):
    chosen, nodes, waiting, sent = random.Random(seed), Nodes(), deque(), []
    for step in range(300):
        there = list(nodes)
        match chosen.choice(["add", "submit", "submit", "share", "finish", "finish", "adapt", "ask", "remove"]):
            case "add" if len(there) < 8:
                nodes.add(Node(f"node {step}", chosen.randint(1, 4), sent.append))
            case "submit":
                waiting.extend(Task(Slot(None), (step, n), None, 0, None, [b""]) for n in range(chosen.randint(1, 9)))
            case "share":
                n_had_room, n_waited, n_idle = nodes.n_room, len(waiting), nodes.n_idle
                nodes.share_out(waiting)
                assert len(waiting) == max(0, n_waited - n_had_room)
                assert nodes.n_idle == max(0, n_idle - n_waited)
            case "finish" if busy := [node for node in there if node.tasks]:
                node = chosen.choice(busy)
                node.tasks.pop(chosen.choice(list(node.tasks)))
                node.is_asked = False
                nodes.note(node)
            case "adapt" if there:
                node = chosen.choice(there)
                node.limit = chosen.randint(2, 4) * node.n_workers
                nodes.note(node)
            case "ask":
                sent.clear()
                nodes.ask_back()
                assert sum(n for _, n in sent) <= nodes.n_idle
            case "remove" if there and chosen.random() < 0.2:
                assert nodes.remove(chosen.choice(there).name)
        there = list(nodes)
        assert nodes.n_idle == sum(node.n_idle for node in there)
        assert nodes.n_room == sum(node.room for node in there)
        assert set(nodes._idle) == {node for node in there if node.n_idle}
        assert set(nodes._open) == {node for node in there if node.room}
        assert set(nodes._spare) == {node for node in there if node.n_spare and not node.is_asked}


def test_tasks_that_come_one_by_one_are_shared_out_evenly():
    nodes, sent = Nodes(), []
    for n in range(3):
        nodes.add(Node(f"node {n}", 1, lambda message, n=n: sent.append(n)))
    for n in range(6):
        nodes.share_out(deque([Task(Slot(None), n, None, 0, None, [b""])]))
    assert sorted(sent[:3]) == sorted(sent[3:]) == [0, 1, 2]


# ---- the native side ----


def test_claim_and_reply_are_for_channels_by_reference():
    channel = _native.Channel(1, False)
    channel.open_slot(0)
    worker = channel.worker(0)
    with pytest.raises(TypeError, match="by reference"):
        worker.claim(False)
    with pytest.raises(RuntimeError, match="claim has taken"):
        worker.reply(_native.STATUS_OK, 1)
    channel.close()


def test_claim_without_a_task_or_after_the_end():
    channel = _native.Channel(1, True)
    channel.open_slot(0)
    worker = channel.worker(0)
    assert worker.claim(False) is None
    channel.stop(_native.STOP_NOW)
    assert worker.claim(True) is None
    channel.close()
