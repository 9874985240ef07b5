"""A user who may have few processes and threads: pools that do not open leave no process and no descriptor.

KIND       how workers start: fork, forkserver, spawn, thread or interp
LIMIT      the number of processes and threads
"""

import ctypes
import gc
import importlib
import os
import resource
import sys

from probe import TIMEOUT_S, ComposablePool, gates, open_fds, tasks

USER = 54_321
PR_CAPBSET_DROP, CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 24, 21, 24
CAPSET, VERSION_3 = {"x86_64": 126, "aarch64": 91}.get(os.uname().machine), 0x20080522


def become_limited(limit):
    """Become a user for whom the limit holds, and who may still read all files."""
    libc = ctypes.CDLL(None, use_errno=True)
    keep = 0xFFFFFFFF & ~(1 << CAP_SYS_ADMIN | 1 << CAP_SYS_RESOURCE)
    for capability in (CAP_SYS_ADMIN, CAP_SYS_RESOURCE):
        assert libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0
    os.setresuid(USER, 0, 0)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    header, found = (ctypes.c_uint32 * 2)(VERSION_3, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, found) == 0
    data = (ctypes.c_uint32 * 6)(found[0] & keep, found[1] & keep, 0, found[3], found[4], 0)
    assert libc.capset(header, data) == 0, ctypes.get_errno()


def children():
    """The children of this process but for the helpers of `multiprocessing`, zombies as well."""
    with open(f"/proc/self/task/{os.getpid()}/children") as listing:
        pids = listing.read().split()
    names = {}
    for pid in pids:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            names[pid] = file.read()
    return [pid for pid, name in names.items() if b"tracker" not in name and b"forkserver" not in name]


def n_open():
    gc.collect()  # errors refer to what has failed, and so do threads that are about to end
    return len(os.listdir("/proc/self/fd"))


def main(kind, limit):
    options = {"kind": kind} if kind in ("thread", "interp") else {"kind": "process", "context": kind}
    with ComposablePool(2, **options) as pool:  # imports what is needed, and starts the helpers
        assert pool.map(tasks.square, range(3)) == [0, 1, 4]
    pool.join(timeout=TIMEOUT_S)
    del pool
    importlib.import_module("pool_party._ground.broken")
    become_limited(int(limit))
    n_descriptors = n_open()
    n_failed = 0
    for _ in range(8):
        try:
            with ComposablePool(4, **options) as pool:
                pool.map_async(tasks.square, range(3)).wait(TIMEOUT_S)
        except Exception:
            n_failed += 1
    gates.wait_until(lambda: not children(), "no child is left")
    gates.wait_until(lambda: n_open() <= n_descriptors + 1, f"no descriptor is left of {open_fds()}")
    assert n_failed or int(limit) > 1 or kind in ("forkserver", "interp"), "the limit has no effect"


if __name__ == "__main__":
    main(*sys.argv[1:])
