"""`memory_per_worker=` bounds the number of workers, and `worker_memory_limit=` what each of them may have."""

import os
import random
import re
import sysconfig

import machines
import pytest
import talking
import tasks

from pool_party import ComposableExecutor, ComposablePool, ProcessPool, WorkerLost
from pool_party._budget import memory
from pool_party._workers import memory_limits

TIMEOUT_S = 60
MiB, GiB = 1 << 20, 1 << 30


# ---- amounts ----


@pytest.mark.parametrize(
    ("amount", "n_bytes"),
    [
        (1, 1),
        (3 * GiB, 3 * GiB),
        ("7 B", 7),
        ("2 GiB", 2 * GiB),
        ("1.5GiB", 3 * GiB // 2),
        (" 500 MB ", 500_000_000),
        ("64 kib", 65536),
        ("1 TB", 10**12),
    ],
)
def test_amounts(amount, n_bytes):
    assert memory.parse_bytes("option", amount) == n_bytes


@pytest.mark.parametrize("amount", ["", "2", "GiB", "-1 GiB", "2 PiB", "2 iB", "0 MB", 0, -1])
def test_amounts_that_are_none(amount):
    with pytest.raises(ValueError, match=r'^option must be a number of bytes, or a text such as "2 GiB"'):
        memory.parse_bytes("option", amount)


@pytest.mark.parametrize("amount", [1.5, True, b"2 GiB", [1]])
def test_amounts_of_wrong_types(amount):
    with pytest.raises(TypeError, match=r"^option must be a number of bytes"):
        memory.parse_bytes("option", amount)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(5, "5 B"), (2 * GiB, "2 GiB"), (1536, "1.5 KiB"), (300 * MiB, "300 MiB"), (5000 * GiB, "5000 GiB")],
)
def test_amounts_as_text(n_bytes, text):
    assert memory.format_bytes(n_bytes) == text


# ---- the memory of machine and control groups ----

V2 = "0::/jobs/mine\n"
V1 = "4:memory:/jobs/mine\n3:cpu,cpuacct:/elsewhere\n"
UNLIMITED = "9223372036854771712"


def total(tmp_path, groups, mounts="", **files):
    """The memory of a machine with 64 GiB."""
    described = {"proc/meminfo": "MemFree: 1 kB\nMemTotal:       67108864 kB\n", "proc/self/cgroup": groups}
    described |= {"proc/self/mountinfo": mounts} if mounts else {}
    return memory.total_bytes(machines.write(tmp_path, described | files)) / GiB


def test_a_machine_without_groups(tmp_path):
    assert total(tmp_path, "") == 64


@pytest.mark.parametrize(
    ("own", "above", "expected"), [("max", "max", 64), ("8", "max", 8), ("max", "4", 4), ("8", "4", 4)]
)
@pytest.mark.parametrize("name", ["memory.max", "memory.high"])
def test_groups_of_version_2(tmp_path, own, above, expected, name):
    own, above = (text if text == "max" else str(int(text) * GiB) for text in (own, above))
    folder = "sys/fs/cgroup/jobs"
    files = {f"{folder}/mine/{name}": own, f"{folder}/{name}": above}
    assert total(tmp_path, V2, machines.mountinfo(("cgroup2", "/", "/sys/fs/cgroup", "rw")), **files) == expected


@pytest.mark.parametrize(("own", "expected"), [(UNLIMITED, 64), (str(2 * GiB), 2)])
@pytest.mark.parametrize("mounts", ["", machines.mountinfo(("cgroup", "/", "/sys/fs/cgroup/memory", "rw,memory"))])
def test_groups_of_version_1(tmp_path, own, expected, mounts):
    files = {"sys/fs/cgroup/memory/jobs/mine/memory.limit_in_bytes": own}
    files["sys/fs/cgroup/memory/memory.limit_in_bytes"] = UNLIMITED
    assert total(tmp_path, V1, mounts, **files) == expected


def test_this_machine():
    psutil = pytest.importorskip("psutil")
    assert 0 < memory.total_bytes() <= psutil.virtual_memory().total


# ---- the number of workers ----


@pytest.fixture
def ten_gib(monkeypatch):
    monkeypatch.setattr(memory, "total_bytes", lambda: 10 * GiB)


@pytest.mark.parametrize(("amount", "n"), [("1 GiB", 4), ("3 GiB", 3), (5 * GiB, 2), ("20 GiB", 1)])
def test_memory_bounds_the_number_of_workers(ten_gib, make_pool, amount, n):
    pool = make_pool(4, kind="process", memory_per_worker=amount)
    assert pool.statistics().n_workers == pool._processes == n


def test_executors_and_pools_of_processes(ten_gib):
    with ComposableExecutor(4, memory_per_worker="4 GiB") as executor:
        assert executor._max_workers == 2
    with ProcessPool(4, memory_per_worker="4 GiB") as pool:
        assert len(pool._pool) == 2


@pytest.mark.parametrize("option", ["memory_per_worker", "worker_memory_limit"])
@pytest.mark.parametrize("other_kind", ["thread", "interp"])
def test_these_options_are_for_processes(option, other_kind):
    with pytest.raises(ValueError, match=f"{option} is for kind='process', not '{other_kind}'"):
        ComposablePool(1, kind=other_kind, **{option: "1 GiB"})
    with pytest.raises(ValueError, match=f"{option} must be a number of bytes"):
        ComposablePool(1, kind="process", **{option: "many"})


# ---- limits of workers ----

keeps_freed_memory = pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="the allocator of free-threaded builds keeps what a task has given back",
)


@pytest.fixture
def parent_does_not_look(monkeypatch):
    """Leave it to workers to look, after their tasks."""
    monkeypatch.setattr(memory_limits, "end_if_above", lambda *args: None)


def test_what_counts_is_what_the_process_has(make_pool):
    psutil = pytest.importorskip("psutil")
    pool = make_pool(1, kind="process", context="spawn")
    pid = pool.apply(talking.hold, (50,))
    assert 50 * MiB <= memory_limits.private_bytes(pid) <= psutil.Process(pid).memory_full_info().uss + MiB
    assert memory_limits.private_bytes(pool.apply(os.getpid)) >= 50 * MiB
    assert memory_limits.private_bytes(2**22 + 1) == 0  # there is no such process


def test_a_worker_above_its_limit_is_replaced_after_its_task(make_pool, context, parent_does_not_look):
    pool = make_pool(1, kind="process", context=context, worker_memory_limit="96 MiB")
    first = pool.apply(talking.hold, (10,))
    assert pool.apply(talking.hold, (10,)) == first
    assert pool.apply(talking.hold, (120,)) == first
    assert pool.apply(talking.hold, (10,)) != first
    assert pool.statistics().n_workers_lost == 0


@keeps_freed_memory
def test_memory_that_a_task_gives_back_does_not_count(make_pool, parent_does_not_look):
    pool = make_pool(1, kind="process", worker_memory_limit="96 MiB")
    assert len({pool.apply(talking.use_for_a_moment, (120,)) for _ in range(3)}) == 1


def test_a_task_that_bursts_the_limit_fails_alone(make_pool, context, gate):
    pool = make_pool(2, kind="process", context=context, worker_memory_limit="96 MiB")
    others = pool.map_async(tasks.square, range(100), 1)
    burst = pool.apply_async(talking.hold_at_gate, (gate.path, 120))
    later = pool.map_async(tasks.square, range(100), 1)
    with pytest.raises(WorkerLost, match="more than worker_memory_limit=96 MiB, while it ran this task") as caught:
        burst.get(TIMEOUT_S)
    assert 96 < float(re.search(r"had ([\d.]+) MiB", str(caught.value))[1]) < 200
    assert others.get(TIMEOUT_S) == later.get(TIMEOUT_S) == [n * n for n in range(100)]
    assert pool.statistics().n_workers_lost == pool.statistics().n_failed == 1


@pytest.mark.parametrize("start_method", ["fork"])
def test_memory_inherited_by_fork_does_not_count(make_pool, context, gate):
    ballast = b"x" * (150 * MiB)
    pool = make_pool(1, kind="process", context=context, worker_memory_limit="96 MiB")
    held = pool.apply_async(talking.hold_at_gate, (gate.path, 10))
    gate.wait_arrived()
    for _ in range(3):  # looks of the parent
        pool._engine._workers._look_at = 0.0
        pool._engine._workers.look_at_memory()
    gate.release()
    held.get(TIMEOUT_S)
    assert pool.statistics().n_workers_lost == 0
    assert len(ballast) == 150 * MiB


def test_another_death_is_told_as_ever(make_pool):
    pool = make_pool(1, kind="process", worker_memory_limit="1 GiB")
    with pytest.raises(WorkerLost, match="exited with code 3 while it ran this task"):
        pool.apply_async(os._exit, (3,)).get(TIMEOUT_S)


def test_a_worker_far_below_its_limit_seldom_looks(monkeypatch):
    monkeypatch.setattr(memory_limits, "private_bytes", lambda: 100)
    assert memory_limits.watch_own(100 + 7 * memory_limits.GROWTH, 0)() == 7
    assert memory_limits.watch_own(99, 0)() == -1
    assert memory_limits.watch_own(99, 50)() >= 0


@keeps_freed_memory
@pytest.mark.parametrize("seed", range(2))
def test_a_random_program_as_a_model_predicts(make_pool, parent_does_not_look, seed):
    """The model: a worker has what its tasks held, and ends after the task with which that passes the limit.

    Amounts are far enough apart that what Python itself takes does not matter. What a task gives back is more than the
    32 MiB up to which malloc may keep it.
    """
    rng = random.Random(seed)
    pool = make_pool(1, kind="process", context="spawn", worker_memory_limit=(pool_base(make_pool) + 110) * MiB)
    seen, current, held = set(), None, 0
    for _ in range(10):
        keeps = rng.random() < 0.7
        n_mib = rng.choice([0, 20, 40]) if keeps else 60
        pid = pool.apply(talking.hold if keeps else talking.use_for_a_moment, (n_mib,))
        assert pid not in seen if current is None else pid == current
        seen.add(pid)
        held += n_mib * keeps
        current, held = (pid, held) if held < 110 else (None, 0)
    assert pool.statistics().n_workers_lost == 0


def pool_base(make_pool):
    """The private memory of a spawned worker that holds nothing, in MiB."""
    return make_pool(1, kind="process", context="spawn").apply(talking.private_mib)
