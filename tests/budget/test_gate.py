"""The gate, and OpenBLAS's regions through it.

Tests that need fresh processes are in isolated/gating.py and regions.py.
"""

import os
import pathlib
import stat
import threading
import uuid

import fresh
import gates
import pytest

from pool_party import _native
from pool_party._budget.gate import Gated, can_be_gated, open_gate
from pool_party._budget.libraries import Library
from pool_party._native import Gate

ISOLATED = fresh.TESTS / "isolated"


def check(program, *args, **options):
    return fresh.check(fresh.run([ISOLATED / program, *args], **options))


@pytest.fixture
def name():
    """The name of a machine-wide gate for this test only."""
    name = f"test-{uuid.uuid4().hex}"
    yield name
    pathlib.Path(Gate.machine_path(name)).unlink(missing_ok=True)


class Holder:
    """A thread that acquires tokens at once, and releases them on demand."""

    def __init__(self, gate, n, log=None):
        self._let_go = threading.Event()
        self._call = gates.call_in_thread(self._hold, gate, n, log)

    def _hold(self, gate, n, log):
        granted = gate.acquire(n)
        if log is not None:
            log.append(n)
        self._let_go.wait(30)
        gate.release()
        return granted

    def release(self):
        self._let_go.set()
        return self._call.result(30)


@pytest.mark.parametrize("n_cpus", [32, 33])
def test_opening_says_whether_this_machine_has_too_many_cpus_for_regions(n_cpus, monkeypatch, caplog):
    monkeypatch.setattr(os, "cpu_count", lambda: n_cpus)
    open_gate("pool", 2)
    assert ("parallel regions pass no gate" in caplog.text) == (n_cpus > 32)


def wait_until_free(gate, n):
    gates.wait_until(lambda: gate.n_free == n, f"{n} tokens free")


def wait_until_waiting(gate, n):
    gates.wait_until(lambda: gate.n_waiting == n, f"{n} waiting")


# ---- one process -----------------------------------------------------------


def test_tokens_are_taken_and_given_back():
    gate = Gate(3)
    assert (gate.n_tokens, gate.n_free, gate.held) == (3, 3, 0)
    assert gate.acquire(2) == 2
    assert (gate.n_free, gate.held) == (1, 2)
    gate.release()
    assert (gate.n_free, gate.held) == (3, 0)
    assert (gate.n_acquired, gate.n_waits, gate.waited_s, gate.n_recovered) == (1, 0, 0.0, 0)


def test_a_request_for_more_than_all_is_one_for_all():
    gate = Gate(3)
    assert gate.acquire(100) == 3
    gate.release()
    assert gate.n_free == 3


def test_who_holds_tokens_takes_no_more():
    gate, other = Gate(3), Gate(1)
    assert [gate.acquire(2), gate.acquire(3), other.acquire(1)] == [2, 2, 2]
    assert (gate.n_free, other.n_free) == (1, 1)
    for _ in range(2):
        gate.release()
        assert gate.held == 2
    gate.release()
    assert (gate.held, gate.n_free, gate.n_acquired) == (0, 3, 1)


def test_only_the_holder_can_release():
    gate = Gate(1)
    gate.acquire()
    with pytest.raises(RuntimeError, match="holds no tokens"):
        gates.call_in_thread(gate.release).result(30)
    gate.release()
    with pytest.raises(RuntimeError, match="holds no tokens"):
        gate.release()


def test_a_gate_lives_as_long_as_its_tokens_are_held():
    gate = Gate(2)
    gate.acquire(2)
    del gate
    other = Gate(2)
    assert other.held == 2
    other.release()
    assert other.held == 0


def test_all_or_nothing():
    gate = Gate(3)
    first, second = Holder(gate, 2), None
    wait_until_free(gate, 1)
    second = Holder(gate, 2)
    wait_until_waiting(gate, 1)
    assert gate.n_free == 1  # it does not take part of the request meanwhile
    assert first.release() == 2
    wait_until_free(gate, 1)
    assert second.release() == 2
    assert gate.n_free == 3


def test_first_come_first_served():
    gate, log = Gate(3), []
    holders = [Holder(gate, 2)]
    wait_until_free(gate, 1)
    for i, n in enumerate((3, 1, 2, 3), 1):  # the 1 would fit at once
        holders.append(Holder(gate, n, log))
        wait_until_waiting(gate, i)
    assert log == []
    for holder, expected in zip(holders, ([3], [3, 1, 2], [3, 1, 2], [3, 1, 2, 3]), strict=False):
        holder.release()
        gates.wait_until(lambda expected=expected: sorted(log) == sorted(expected), f"granted: {expected}")
    holders[-1].release()
    assert log[0] == log[3] == 3
    assert gate.n_waits == 4 and gate.waited_s > 0


@pytest.mark.parametrize("n", [0, -1, 1 << 40])
def test_impossible_numbers(n):
    with pytest.raises(ValueError, match="at least 1"):
        Gate(n)
    with pytest.raises(ValueError, match="at least 1"):
        Gate(1).acquire(n)


def test_attached_by_file_descriptor():
    gate = Gate(2)
    other = Gate.attach(os.dup(gate.fd))
    gate.acquire(2)
    assert (other.n_tokens, other.n_free, other.held) == (2, 0, 2)
    gate.release()
    assert other.n_free == 2


def test_what_is_no_gate_is_refused(tmp_path):
    gate, path = Gate(1), tmp_path / "file"
    path.write_bytes(bytes(os.fstat(gate.fd).st_size))
    fd = os.open(path, os.O_RDWR)
    with pytest.raises(OSError, match="Invalid"):
        Gate.attach(fd)
    os.close(fd)  # attach did not take ownership


# ---- the machine-wide gate -------------------------------------------------


def test_machine_gate_is_a_private_file(name):
    gate = Gate.machine(2, name)
    status = os.stat(Gate.machine_path(name))
    assert stat.S_IMODE(status.st_mode) == 0o600 and status.st_uid == os.geteuid()
    assert str(os.geteuid()) in Gate.machine_path(name)
    assert os.path.samestat(status, os.fstat(gate.fd))


def test_machine_gate_has_its_memory_from_the_start(name):
    """So that it can be refused if /dev/shm is full: a write to a page that is missing then is a SIGBUS."""
    Gate.machine(2, name)
    status = os.stat(Gate.machine_path(name))
    assert status.st_blocks * 512 >= status.st_size


def test_machine_gate_keeps_its_tokens_while_in_use(name):
    gate = Gate.machine(2, name)
    holder = Holder(gate, 1)
    wait_until_free(gate, 1)
    assert Gate.machine(5, name).n_tokens == 2
    holder.release()
    assert Gate.machine(5, name).n_free == gate.n_tokens == 5


def test_machine_gate_refuses_what_others_could_change(name):
    Gate.machine(2, name)
    os.chmod(Gate.machine_path(name), 0o666)
    with pytest.raises(PermissionError):
        Gate.machine(2, name)


@pytest.mark.parametrize("content", [b"", b"something else"])
def test_machine_gate_refuses_another_file(name, content):
    path = pathlib.Path(Gate.machine_path(name))
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(OSError, match="Invalid"):
        Gate.machine(2, name)
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic"):
        Gate.machine(2, name)


def test_machine_gate_name_is_no_path():
    with pytest.raises(OSError, match="Invalid"):
        Gate.machine(2, "../other")


# ---- processes -------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 100])
def test_never_more_tokens_out_than_there_are(seed):
    check("gating.py", "forked", seed)


def test_unrelated_programs_share_the_machines_gate(name, tmp_path):
    programs = [
        fresh.start([ISOLATED / "gating.py", "unrelated", name, tmp_path / "sum", seed]) for seed in range(4)
    ]  # they create the file at the same time
    for program in programs:
        fresh.check(fresh.finish(program), "")
    assert Gate.machine(3, name).n_acquired == 4 * 150


def test_five_hundred_killed_holders():
    check("gating.py", "kills", 500)


def test_killed_holders_that_nobody_buries(name):
    """Only a waiter notices the deaths: the killer reports nothing, and the dead processes stay zombies."""
    gate, dead = Gate.machine(2, name), []
    for i in range(5):
        dead.append(fresh.start([ISOLATED / "gating.py", "hold", name, 1 + i % 2]))
        assert dead[-1].stdout.readline() == f"{1 + i % 2}\n"
        dead[-1].kill()
        assert gate.acquire(2) == 2
        gate.release()
    assert (gate.n_free, gate.n_recovered) == (2, 5)
    for process in dead:
        fresh.end(process)


@pytest.mark.parametrize(
    "scenario",
    [
        *("killed_while_it_waits", "killed_with_the_mutex", "forked_while_holding", "thread_that_ends", "interrupted"),
        *("covered_threads", "covered_while_it_waits", "covered_descendants", "stopped", "damaged"),
    ],
)
def test_gate(scenario):
    check("gating.py", scenario)


@pytest.mark.parametrize("scenario", ["stopped_with_the_mutex", "random_damage"])
def test_machine_gate(scenario, name):
    check("gating.py", scenario, name)


# ---- OpenBLAS --------------------------------------------------------------


def test_open_gate(name):
    assert open_gate("pool", 3).n_tokens == 3
    assert open_gate("machine", 2, name=name).n_tokens == 2
    with pytest.raises(ValueError, match='"pool" or "machine", not \'host\''):
        open_gate("host", 2)


def library(**changes):
    usual = {"callback": 1, "threading_layer": "pthreads", "n_threads_max": 64}
    return Library("openblas", "x.so", "0.3.34", scope="process", setter=1, getter=1, **usual | changes)


@pytest.mark.parametrize("changes", [{"callback": None}, {"threading_layer": "openmp"}, {"n_threads_max": 8}])
def test_libraries_that_cannot_be_gated_are_left_alone(changes):
    assert can_be_gated(library()) and not can_be_gated(library(**changes))
    with Gated(Gate(1)) as gated:
        gated.install([library(**changes)])
        assert gated.setters == ()


def test_uninstalling_what_is_not_installed():
    assert _native.uninstall_regions(1) is False
    with pytest.raises(TypeError, match="a Gate or None"):
        _native.install_regions(1, object())
    with pytest.raises(TypeError, match="an address"):
        _native.install_regions(0)


def has_openblas():
    pytest.importorskip("numpy")
    from pool_party._budget import libraries

    return any(map(can_be_gated, libraries.find()))


@pytest.fixture
def openblas():
    if not has_openblas():
        pytest.skip("no OpenBLAS with a callback here")


@pytest.mark.parametrize(
    ("n_threads", "n_python_threads", "n_tokens", "how", "n_rounds"),
    [
        (2, 1, 2, "counting", 5),
        (2, 4, 2, "counting", 6),
        (2, 3, 4, "exclusive", 6),
        pytest.param(2, 1, 2, "counting", 20, marks=pytest.mark.slow),
        pytest.param(4, 1, 2, "counting", 2, marks=pytest.mark.slow),
        pytest.param(4, 3, 4, "counting", 1, marks=pytest.mark.slow),
        pytest.param(2, 3, 0, "without a gate", 6, marks=pytest.mark.slow),
    ],
)
def test_results_are_those_of_one_thread(openblas, n_threads, n_python_threads, n_tokens, how, n_rounds):
    check("regions.py", "results", n_threads, n_python_threads, n_tokens, how, n_rounds, timeout=110)


@pytest.mark.parametrize("scenario", ["inside_a_hold", "forks", "forks_meanwhile", "undone", "threads_deaf_and_wide"])
def test_regions(openblas, scenario):
    check("regions.py", scenario, timeout=110)
