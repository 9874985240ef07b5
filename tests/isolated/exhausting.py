"""Limits of the system that are reached while pools open, work and end.

The result is right, or one error names the limit. When the limit is lifted, pools work again.

descriptors KIND     few descriptors are left, in steps
threads KIND         no more threads are allowed
terminate            the same, while a task of an interpreter is to be interrupted
mappings FOLDER      few memory mappings are left when an interpreter imports `counting`
static_tls FOLDER    interpreters import `hungry` until the C library has no static TLS left
"""

import contextlib
import ctypes
import errno
import importlib
import mmap
import os
import resource
import sys
import tempfile
from multiprocessing.pool import RemoteTraceback

import foreign
from probe import TIMEOUT_S, ComposablePool, gates, main, open_fds, tasks

from pool_party import PoolPartyError, RemoteError, _native


def use(kind, expected=""):
    """Use a pool. Return whether that succeeded; otherwise the error must name the expected limit.

    A task whose own imports find no descriptor left raises what `open` raises there.
    """
    try:
        with ComposablePool(2, kind=kind, context="fork" if kind == "process" else None) as pool:
            assert pool.map(tasks.square, range(4), 1) == [0, 1, 4, 9]
        pool.join(timeout=TIMEOUT_S)
    except (OSError, RuntimeError, PoolPartyError) as error:
        is_task_s = isinstance(error, RemoteError) or isinstance(error.__cause__, RemoteTraceback)
        limits = (expected, os.strerror(errno.EMFILE)) if is_task_s else (expected,)
        assert expected and any(limit in str(error) for limit in limits), repr(error)
        return False
    return True


@contextlib.contextmanager
def limited(what, n):
    before = resource.getrlimit(what)
    resource.setrlimit(what, (n, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


def descriptors(kind):
    assert use(kind)
    n_before = len(open_fds())
    outcomes = set()
    for n_left in range(0, 14, 2):
        with limited(resource.RLIMIT_NOFILE, len(open_fds()) + n_left):
            outcomes.add(use(kind, "RLIMIT_NOFILE"))
    assert use(kind)
    n_lost = 2 * 7 if kind == "process" else 0  # multiprocessing loses a pipe if there is no room for the second one
    gates.wait_until(lambda: len(open_fds()) <= n_before + n_lost, "descriptors are closed")
    assert kind != "process" or False in outcomes
    print("ok")


def become_limited():
    """Become a user without other processes, who may read all files. The limit of threads does not hold for root."""
    if os.getuid() == 0:
        libc, keep_capabilities, read_all = ctypes.CDLL(None), 8, 1 << 1 | 1 << 2
        assert libc.prctl(keep_capabilities, 1, 0, 0, 0) == 0
        os.setresuid(54321, 54321, 54321)
        version_3 = (ctypes.c_uint32 * 2)(0x20080522, 0)
        assert libc.capset(version_3, (ctypes.c_uint32 * 6)(read_all, read_all)) == 0


def threads(kind):
    become_limited()
    assert use(kind)
    with limited(resource.RLIMIT_NPROC, 1):
        assert not use(kind, "RLIMIT_NPROC")
    assert use(kind)
    print("ok")


def terminate():
    become_limited()
    pool = ComposablePool(1, kind="interp")
    with tempfile.TemporaryDirectory() as folder:
        gate = gates.Gate(os.path.join(folder, "gate"))
        pool.apply_async(tasks.spin_forever, (gate.path,))
        gate.wait_arrived()
    with limited(resource.RLIMIT_NPROC, 1):
        pool.terminate()
        pool.join(timeout=TIMEOUT_S)
    print("ok")


class Mappings:
    """Uses up mappings until so many are left. Neighbours differ in protection, so the kernel does not join them."""

    def __init__(self, n_left):
        n, most = _native.count_mappings()
        self._memory = mmap.mmap(-1, (most - n - n_left) * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        libc = ctypes.CDLL(None)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for at in range(0, len(self._memory), 2 * mmap.PAGESIZE):
            libc.mprotect(start + at, mmap.PAGESIZE, mmap.PROT_READ)

    def give_back(self):
        import gc

        gc.collect()  # of the pointer's object
        self._memory.close()


def mappings(folder):
    sys.path.insert(0, folder)
    with ComposablePool(1, kind="interp", extensions=["counting"]) as pool:
        used = Mappings(300)
        try:
            pool.apply(importlib.import_module, ("counting",))
        except ImportError as error:
            assert "counting" in str(error) and "vm.max_map_count" in str(error), error
            assert "65,5" in str(error) or _native.count_mappings()[1] != 65530
        else:
            raise AssertionError("there was no room for a copy")
        used.give_back()
        assert pool.apply(foreign.count, ("counting",)) == (1, 1)
    print("ok")


def static_tls(folder):
    sys.path.insert(0, folder)
    outcomes = []
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            pool = stack.enter_context(ComposablePool(1, kind="interp", extensions=["hungry"]))
            try:
                outcomes.append(pool.apply(foreign.use, ("hungry",)))
            except ImportError as error:
                outcomes.append(str(error))
    assert outcomes[0] == 49, outcomes
    for part in ("hungry", "static TLS", "1500 bytes", "GLIBC_TUNABLES=glibc.rtld.optional_static_tls="):
        assert part in str(outcomes[-1]), outcomes
    with ComposablePool(1, kind="interp", extensions=["hungry"]) as pool:
        assert pool.apply(foreign.use, ("hungry",)) == 49
    print("ok")


if __name__ == "__main__":
    scenarios = (descriptors, threads, terminate, mappings, static_tls)
    main({scenario.__name__: scenario for scenario in scenarios}, hang_s=100)
