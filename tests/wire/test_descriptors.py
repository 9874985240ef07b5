"""Connections, sockets and classes registered with ForkingPickler are sent as by multiprocessing.Pool."""

import functools
import multiprocessing
import os
import socket
import sys
import types

import descriptors
import fresh
import gates
import pytest

from pool_party._ground.descriptors import Owned
from pool_party._wire import fd_handle


def test_a_connection_is_an_argument(remote_pool):
    mine, theirs = multiprocessing.Pipe()
    with mine, theirs:
        remote_pool.apply(descriptors.send, (theirs, "hello"))
        assert mine.poll(30) and mine.recv() == "hello"
    assert remote_pool.map(abs, range(-4, 0)) == [4, 3, 2, 1]


def test_a_connection_that_the_caller_closes_at_once(remote_pool):
    mine, theirs = multiprocessing.Pipe()
    with mine:
        sent = remote_pool.apply_async(descriptors.send, (theirs, "hello"))
        theirs.close()
        sent.get(30)
        assert mine.poll(30) and mine.recv() == "hello"


def test_a_socket_is_an_argument(remote_pool):
    mine, theirs = socket.socketpair()
    with mine, theirs:
        mine.settimeout(30)
        remote_pool.apply(descriptors.send_bytes, (theirs, b"hello"))
        assert mine.recv(100) == b"hello"


def test_a_connection_is_a_result(remote_pool):
    with remote_pool.apply(descriptors.open_pair, ("hello",)) as conn:
        assert conn.poll(30) and conn.recv() == "hello"


def test_a_socket_is_a_result(remote_pool):
    with remote_pool.apply(descriptors.open_socket, (b"hello",)) as sock:
        sock.settimeout(30)
        assert sock.recv(100) == b"hello"


def test_beside_what_only_cloudpickle_can(remote_pool):
    mine, theirs = multiprocessing.Pipe()
    with mine, theirs:
        remote_pool.apply(lambda conn, message: conn.send(message), (theirs, "hello"))
        remote_pool.apply(descriptors.send, (theirs, [lambda: 1, "hello"][1:]))
        remote_pool.apply(functools.partial(descriptors.pass_on, theirs).func, ((lambda: 1, theirs),))[1].close()
        assert mine.recv() == "hello" and mine.recv() == ["hello"]


@pytest.mark.parametrize("is_alone", [True, False])
def test_registered_reducers_are_used(remote_pool, is_alone):
    value = descriptors.Registered(1) if is_alone else (descriptors.Registered(1), lambda: 1)
    registered = remote_pool.apply(descriptors.pass_on, (value,))
    assert (registered[0] if isinstance(registered, tuple) else registered).number == 3


@pytest.mark.parametrize("name", ["socket", "multiprocessing.connection"])
def test_another_thread_imports_their_modules(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert len(fd_handle.local_reducers()[0]) == len(fd_handle.lasting_reducers(True)) == 1


def test_locks_are_refused_as_by_multiprocessing(remote_pool):
    with pytest.raises(RuntimeError, match="Lock objects should only be shared between processes through inheritance"):
        remote_pool.apply(descriptors.pass_on, (multiprocessing.get_context("spawn").Lock(),))


def test_descriptors_are_closed(make_pool, remote_kind):
    pool = make_pool(2, kind=remote_kind)

    def n_open():
        return len(os.listdir("/proc/self/fd"))

    def use():
        mine, theirs = multiprocessing.Pipe()
        with mine, theirs:
            pool.apply(descriptors.send, (theirs, "hello"))
            pool.apply(descriptors.open_pair, ("hello",)).close()

    for _ in range(3):
        use()
    before = n_open()
    for _ in range(5):
        use()
    gates.wait_until(lambda: n_open() <= before + 1, "the thread that sent them closes its own, too")


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_each_start_method(make_pool, context, start_method):
    pool = make_pool(1, kind="process", context=context)
    mine, theirs = multiprocessing.Pipe()
    with mine, theirs:
        pool.apply(descriptors.send, (theirs, "hello"))
        assert mine.poll(30) and mine.recv() == "hello"
    with pool.apply(descriptors.open_pair, ("back",)) as conn:
        assert conn.recv() == "back"


def test_a_stray_write_hurts_nobody(make_pool, remote_kind):
    pool = make_pool(2, kind=remote_kind)
    for fd in _segments():
        for write in (os.write, lambda fd, data: os.pwrite(fd, data, 0)):
            try:
                write(fd, b"\xff" * 4096)
            except PermissionError:
                pass
    assert pool.map(abs, range(-4, 0)) == [4, 3, 2, 1]


def _segments():
    fds = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if name.startswith("/memfd:pool_party "):
            fds.append(fd)
    return fds


@pytest.mark.parametrize("who", ["by_a_task", "by_the_caller"])
def test_a_damaged_header_is_an_error_and_no_hang(kind, who):
    completed = fresh.run([fresh.TESTS / "isolated/damaging.py", who, kind], timeout=60)
    assert completed.returncode == 0, completed


@pytest.mark.parametrize("what", ["proxies", "shared_memory_is_the_makers"])
@pytest.mark.parametrize("kind", ["thread", "process", "interp"])
def test_managers_and_shared_memory_of_multiprocessing(kind, what):
    fresh.check(fresh.run([fresh.TESTS / "isolated/managing.py", what, kind], timeout=60))


def test_an_old_owner_of_a_number_does_not_close_the_same_file_of_a_new_one():
    """Somebody closes a pidfd of ours, and another pidfd of that process gets its number."""
    old = Owned(os.pidfd_open(os.getpid()))
    number = old.fd
    os.close(number)
    opened = os.pidfd_open(os.getpid())
    if opened != number:
        os.dup2(opened, number, inheritable=False)
        os.close(opened)
    new = Owned(number)
    assert old.fd == -1
    old.close()
    assert new.fd == number
    new.close()
    assert new.fd == -1


def test_closed_standard_streams_are_occupied():
    program = (
        "import os, pool_party._native as native; os.closerange(0, 3); native.occupy_standard(); os._exit(os.dup(0))"
    )
    completed = fresh.run(["-c", program])
    assert completed.returncode == 3, completed
