"""Pools on a Dask cluster: real schedulers and workers, which are lost, come late, or are not ours."""

import importlib.util
import itertools
import os
import signal
import socket
import textwrap
import threading
import time

import clusters
import fresh
import gates
import psutil
import pytest
import tasks

import pool_party
from pool_party import ClusterLost, ComposableExecutor, ComposablePool, TaskTimeout, WorkerLost

TIMEOUT_S = 60

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="there is no distributed here"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # of Dask's own connections
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two workers with nannies, which tests leave as they are."""
    with clusters.Cluster(tmp_path_factory.mktemp("cluster"), nanny=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster):
    import distributed

    with distributed.Client(cluster.address, set_as_default=False) as client:
        cluster.wait_for_workers(client)
        yield client


@pytest.fixture
def fragile(tmp_path):
    """Two workers without nannies, to be killed."""
    import distributed

    with clusters.Cluster(tmp_path) as cluster:
        with distributed.Client(cluster.address, set_as_default=False) as client:
            cluster.wait_for_workers(client)
        yield cluster


def pids_of(pool):
    return {pid for pid, *_ in pool.map(tasks.worker_ident, range(50), 1)}


# ---- addresses ----


@pytest.mark.parametrize("what", ["nobody", "silent", "closes"])
def test_an_address_that_is_no_schedulers(monkeypatch, what):
    """Such as that of the dashboard, which waits for a request while `distributed.Client` waits for a greeting."""
    from pool_party._cluster import dask

    monkeypatch.setattr(dask, "SCHEDULER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        if what == "nobody":
            server.close()
        if what == "closes":
            threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        with pytest.raises(ConnectionError, match=f"no Dask scheduler answers at {address}"):
            ComposablePool(1, kind="dask", address=address)


# ---- what works as in any pool ----


@pytest.mark.parametrize("worker_kind", ["thread", "process", "interp"])
def test_every_verb(cluster, client, worker_kind):
    with ComposablePool(kind="dask", address=cluster.address, worker_kind=worker_kind) as pool:
        assert pool.kind == "dask" and pool.statistics().n_workers == 2
        assert pool.apply(tasks.multiply, (6,), {"y": 7}) == 42
        assert pool.map(tasks.square, range(100)) == [x * x for x in range(100)]
        assert pool.map(tasks.square, range(100), 1) == [x * x for x in range(100)]
        assert pool.starmap(tasks.multiply, [(1, 2), (3, 4)]) == [2, 12]
        assert list(pool.imap(tasks.square, range(20), 3)) == [x * x for x in range(20)]
        assert sorted(pool.imap_unordered(tasks.square, range(20))) == [x * x for x in range(20)]
        assert pool.submit(tasks.square, 4).result(TIMEOUT_S) == 16
        offset = 5
        assert pool.map(lambda x: x + offset, range(5)) == [5, 6, 7, 8, 9]
        with pytest.raises(ZeroDivisionError):
            pool.apply(divmod, (1, 0))


def test_keywords_of_dask_reach_the_function(client):
    keywords = {"key": 1, "workers": 2, "pure": 3, "retries": 4, "priority": 5, "resources": 6}
    with ComposableExecutor(kind="dask", client=client) as executor:
        assert executor.submit(tasks.echo, **keywords).result(TIMEOUT_S) == ((), keywords)
        assert executor.submit(sorted, [-3, 2], key=abs).result(TIMEOUT_S) == [2, -3]
    assert client.status == "running"


def test_equal_calls_are_all_run(client):
    with ComposablePool(kind="dask", client=client) as pool:
        assert len(set(pool.starmap(os.urandom, [(8,)] * 20))) == 20


def test_a_scheduler_file(cluster, client):
    with ComposablePool(kind="dask", address=str(cluster.file)) as pool:
        assert pool.apply(tasks.square, (3,)) == 9


@pytest.mark.parametrize("shape", [(3, 0), (1000, 500)])
def test_arrays_may_be_written_to(client, shape):
    import numpy

    array = numpy.ones(shape)
    with ComposablePool(kind="dask", client=client) as pool:
        there = pool.apply(_add_one, (array,))
        there += 1
        assert there.shape == shape and (there == 3).all() and (array == 1).all()


def _add_one(array):
    array += 1
    return array


@pytest.mark.parametrize("worker_kind", ["thread", "process"])
def test_results_are_as_they_were_when_their_task_ended(client, worker_kind):
    """Although each task returns the same array, which the next one fills with other numbers."""
    with ComposablePool(1, kind="dask", client=client, worker_kind=worker_kind) as pool:
        results = pool.map(_fill, range(100), 1)
    assert [set(result.tolist()) for result in results] == [{n} for n in range(100)]


_filled = []


def _fill(n):
    import numpy

    if not _filled:
        _filled.append(numpy.empty(10_000))
    _filled[0][:] = n
    return _filled[0]


def test_shared_memory_travels_as_a_copy(client):
    array = pool_party.share(b"some bytes" * 10_000)
    with ComposablePool(kind="dask", client=client) as pool:
        assert pool.apply(bytes, (array,)) == bytes(array)


def test_a_stream_without_end_is_bounded(client):
    read = itertools.count()
    with ComposablePool(kind="dask", client=client) as pool:
        results = pool.imap(tasks.square, read, buffersize=50)
        assert list(itertools.islice(results, 100)) == [x * x for x in range(100)]
        assert next(read) <= 151


def test_a_task_that_takes_too_long_is_ended(client):
    with ComposablePool(1, kind="dask", client=client) as pool:
        with pytest.raises(TaskTimeout):
            pool.apply(time.sleep, (TIMEOUT_S,), timeout_s=0.2)
        assert pool.map(tasks.square, range(20), 1) == [x * x for x in range(20)]


def test_initializers_run_once_in_each_worker(client):
    with ComposablePool(2, tasks.set_greeting, ("ready",), kind="dask", client=client) as pool:
        assert set(pool.map(tasks.get_greeting, range(50), 1)) == {"ready"}


def test_no_worker_is_left_after_the_end(client):
    with ComposablePool(kind="dask", client=client) as pool:
        pids = pids_of(pool)
    gates.wait_until(lambda: not any(map(psutil.pid_exists, pids)), "the workers have ended")


def test_a_killed_program_leaves_no_worker(cluster, client, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(f"""
            import time, tasks
            from pool_party import ComposablePool

            pool = ComposablePool(kind="dask", address="{cluster.address}")
            print(*{{pid for pid, *_ in pool.map(tasks.worker_ident, range(50), 1)}}, flush=True)
            pool.map(time.sleep, [{TIMEOUT_S}] * 10, 1)
            """)
    )
    process = fresh.start([program], options=())
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert pids
    fresh.end(process)
    gates.wait_until(lambda: not any(map(psutil.pid_exists, pids)), "the workers have ended")


def test_a_script_may_leave_its_pool_open(cluster, client, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(f"""
            from pool_party import ComposablePool

            def double(x):
                return 2 * x

            pool = ComposablePool(kind="dask", address="{cluster.address}")
            print(pool.map(double, range(3)))
            """)
    )
    completed = fresh.run([program], options=(), timeout=TIMEOUT_S)
    assert completed.returncode == 0 and completed.out == "[0, 2, 4]\n", completed


# ---- what is refused ----


def test_connections_that_others_may_read_are_refused():
    with pytest.raises(ValueError, match=r"not encrypted.*insecure=True"):
        ComposablePool(kind="dask", address="tcp://192.0.2.1:8786")


@pytest.mark.parametrize(
    ("address", "is_protected"),
    [
        ("tcp://127.0.0.1:8786", True),
        ("tcp://[::1]:8786", True),
        ("tcp://localhost:1", True),
        ("inproc://192.0.2.2/1/2", True),
        ("tls://192.0.2.2:8786", True),
        ("tcp://192.0.2.2:8786", False),
        ("tcp://cluster.example:8786", False),
        ("ws://192.0.2.2:8786", False),
    ],
)
def test_which_connections_are_protected(address, is_protected):
    from pool_party._cluster import dask

    assert dask.is_protected(address) is is_protected


def test_another_version_is_refused(client):
    client.run(_set_version, "0.0.0")
    try:
        with pytest.raises(pool_party.PoolPartyError, match=r"has version 0\.0\.0 of pool_party"):
            ComposablePool(kind="dask", client=client)
    finally:
        client.run(_set_version, pool_party.__version__)


def _set_version(version):
    import pool_party

    pool_party.__version__ = version


def test_a_node_says_why_it_cannot_open_a_pool(client):
    with pytest.raises(pool_party.PoolPartyError, match=r"cannot open a pool.*nothing_of_this_name"):
        ComposablePool(kind="dask", client=client, worker_kind="interp", extensions=["nothing_of_this_name!"])


def test_without_dask_one_sentence_says_what_to_install(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import sys
            from pool_party import ComposablePool
            sys.modules["dask"] = sys.modules["dask.config"] = None
            try:
                ComposablePool(kind="dask")
            except ImportError as error:
                print(error)
            """)
    )
    assert "pip install composable-pool[dask]" in fresh.run([program]).out


def test_an_asynchronous_client_is_refused(cluster):
    import asyncio

    import distributed

    async def main():
        async with distributed.Client(cluster.address, asynchronous=True, set_as_default=False) as client:
            with pytest.raises(ValueError, match="must not be asynchronous"):
                ComposablePool(kind="dask", client=client)

    asyncio.run(main())


# ---- the doctor ----


def test_the_doctor_names_what_differs(cluster, client, capsys):
    from pool_party._cli import main

    client.run(_set_version, "0.0.0", workers=[min(client.nthreads())])
    try:
        assert main.main(["doctor", "--cluster", cluster.address]) == 1
    finally:
        client.run(_set_version, pool_party.__version__)
    text = capsys.readouterr().out
    assert f"pool_party is 0.0.0 at {min(client.nthreads())}, and {pool_party.__version__} here" in text
    assert "has 2 Dask workers" in text and "MB/s" in text
    assert main.main(["doctor", "--cluster", str(cluster.file)]) == 1
    assert "pool_party is" not in capsys.readouterr().out


def test_the_doctor_says_that_no_scheduler_answers(monkeypatch, capsys):
    from pool_party._cli import clusters, main

    monkeypatch.setattr(clusters, "PATIENCE_S", 0.5)
    assert main.main(["doctor", "--cluster", "tcp://127.0.0.1:1"]) == 1
    assert "does not answer" in capsys.readouterr().out


def test_the_doctor_names_nodes_that_cannot_be_used():
    from pool_party._cli import clusters
    from pool_party._cluster.node import checks

    node = checks.look()
    older = {**node, "python": "3.9.1", "packages": {**node["packages"], "numpy": None}}
    found = {"one": ImportError("No module named 'pool_party'"), "two": OSError("lost"), "three": older}
    problems = list(clusters._problems({"one": 1, "two": 1, "three": 10_000}, found))
    for expected in ("one has no pool_party", "two does not answer", "Python is 3.9.1 at three", "10000 threads"):
        assert sum(expected in problem for problem in problems) == 1
    assert next(iter(clusters._problems({}, {}))).startswith("the cluster has no worker")


# ---- losses ----


def test_a_killed_worker_costs_what_it_had_and_no_more(fragile, gate):
    with ComposablePool(kind="dask", address=fragile.address, worker_kind="thread") as pool:
        held = [pool.apply_async(tasks.pass_gate, (gate.path,)) for _ in range(2)]
        victim, _ = gate.wait_arrived(2)
        os.kill(victim, signal.SIGKILL)
        gates.wait_until(lambda: any(result.ready() for result in held), "the loss is noticed")
        gate.release(2)
        [result.wait(TIMEOUT_S) for result in held]
        (lost,) = [result for result in held if not result.successful()]
        with pytest.raises(WorkerLost, match="was lost"):
            lost.get()
        assert pool.map(tasks.square, range(50), 1) == [x * x for x in range(50)]
        assert pool.statistics().n_workers == 1 and pool.statistics().n_workers_lost == 1


def test_lost_tasks_are_tried_again_if_the_program_says_so(fragile, gate):
    with ComposablePool(kind="dask", address=fragile.address, worker_kind="thread") as pool:
        held = pool.options(retries=1).apply_async(tasks.pass_gate, (gate.path,))
        (victim,) = gate.wait_arrived()
        os.kill(victim, signal.SIGKILL)
        gate.wait_arrived()
        gate.release(2)
        held.get(TIMEOUT_S)
        assert pool.statistics().n_retried == 1


def test_workers_that_come_later_are_used(fragile):
    with ComposablePool(
        1, tasks.set_greeting, ("ready",), kind="dask", address=fragile.address, worker_kind="thread"
    ) as pool:
        assert set(pool.map(tasks.get_greeting, range(20), 1)) == {"ready"}
        late = fragile.add_worker()
        gates.wait_until(lambda: pool.statistics().n_workers == 3, "it has joined", TIMEOUT_S)
        gates.wait_until(lambda: late.pid in pids_of(pool), "it works", TIMEOUT_S)
        assert set(pool.map(tasks.get_greeting, range(50), 1)) == {"ready"}


def test_a_lost_scheduler_fails_all_calls_soon(fragile):
    with ComposablePool(kind="dask", address=fragile.address) as pool:
        pending = pool.map_async(time.sleep, [TIMEOUT_S] * 4, 1)
        fragile.scheduler.kill()
        with pytest.raises(ClusterLost, match="does not answer"):
            pending.get(TIMEOUT_S)
        with pytest.raises(ClusterLost, match="does not answer"):
            pool.apply(tasks.square, (3,))


def test_a_stopped_worker_delays_only_the_opening(fragile, monkeypatch, caplog):
    """It is used once it continues, however often it was tried before."""
    from pool_party._cluster import dask

    tries = []

    async def connect(self, address, once=dask.DaskTransport._connect_in_time):
        tries.append(address)
        await once(self, address)

    monkeypatch.setattr(dask, "CONNECT_S", 4.0)
    fragile.workers[0].send_signal(signal.SIGSTOP)
    with ComposablePool(kind="dask", address=fragile.address) as pool:
        assert pool.map(tasks.square, range(20), 1) == [x * x for x in range(20)]
        assert pool.statistics().n_workers == 1
        with monkeypatch.context() as impatient:
            impatient.setattr(dask, "CONNECT_S", 0.05)
            impatient.setattr(dask.DaskTransport, "_connect_in_time", connect)
            gates.wait_until(lambda: len(tries) > dask.N_TRIES + 1, "it was tried", TIMEOUT_S)
        fragile.workers[0].send_signal(signal.SIGCONT)
        gates.wait_until(lambda: pool.statistics().n_workers == 2, "it has joined", TIMEOUT_S)
    assert [record.getMessage().split(" is ")[1] for record in caplog.records] == ["not used until it answers"]


def test_tls(tmp_path):
    import distributed

    made = clusters.make_certificate(tmp_path)
    if made is None:
        pytest.skip("there is no openssl")
    certificate, key = made
    options = ["--tls-ca-file", certificate, "--tls-cert", certificate, "--tls-key", key]
    security = distributed.Security(
        tls_ca_file=str(certificate),
        tls_client_cert=str(certificate),
        tls_client_key=str(key),
        require_encryption=True,
    )
    with clusters.Cluster(tmp_path, 1, [*map(str, options), "--protocol", "tls"]) as cluster:
        assert cluster.address.startswith("tls://")
        with distributed.Client(cluster.address, security=security, set_as_default=False) as client:
            cluster.wait_for_workers(client)
            with ComposablePool(kind="dask", client=client) as pool:
                assert pool.map(tasks.square, range(50), 1) == [x * x for x in range(50)]
