"""Shared code of the programs in this folder: a hard time-out, and functions that inspect processes."""

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading

import gates
import tasks

from pool_party import ComposablePool, _native

__all__ = ["ComposablePool", "gates", "main", "signal", "tasks"]

TIMEOUT_S = 30

_native.pretend_running(0)  # policies that lend then assume that all CPUs are idle, whatever else runs here


def is_gone(pid):
    """Whether a process has ended: it does not exist, or is a zombie that its parent has not reaped."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def open_fds():
    """The targets of this process's file descriptors, without the one used for listing."""
    targets = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(target for target in targets if not target.startswith("/proc/"))


def are_others_asleep():
    """Whether every other thread of this process is waiting."""
    states = []
    for thread in thread_ids():
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/task/{thread}/stat") as stat:
            if thread != threading.get_native_id():
                states.append(stat.read().rpartition(")")[2].split()[0])
    return set(states) == {"S"}


def thread_ids():
    return sorted(map(int, os.listdir("/proc/self/task")))


def children():
    """The pids of this process's live children, whichever thread started them."""
    pids = []
    for thread in os.listdir("/proc/self/task"):
        with (
            contextlib.suppress(FileNotFoundError),
            open(f"/proc/self/task/{thread}/children") as listing,
        ):
            pids += map(int, listing.read().split())
    return sorted(pid for pid in pids if not is_gone(pid))


def descendants(pid):
    """The pids of all live processes below `pid`."""
    below, parents = [], [pid]
    by_parent = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as stat:
            state, parent = stat.read().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                by_parent.setdefault(int(parent), []).append(int(name))
    while parents:
        found = by_parent.get(parents.pop(), [])
        below += found
        parents += found
    return sorted(below)


def shared_memory():
    """How many memfds this process has open or mapped, and the library's names in /dev/shm.

    What programs of a machine have in common is left out: gates stay, and others make both at any time.
    """
    n_open = sum("memfd:" in target for target in open_fds())
    with open("/proc/self/maps") as maps:
        n_mapped = sum("memfd:" in line for line in maps)
    common = ("pool_party-gate", "pool_party-programs")
    names = [name for name in os.listdir("/dev/shm") if "pool_party" in name and not name.startswith(common)]
    return n_open, n_mapped, sorted(names)


class _Library(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))  # the beginning of dl_phdr_info


def count_copies():
    """Count the private copies of extension modules that are loaded in this process."""
    names = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p)
    def note(library, size, ignored):
        names.append(library.contents.name or b"")
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(note, None)
    return sum(name.startswith(b"/proc/self/fd") for name in names)


def resources():
    """Everything that a closed pool must have released."""
    n_open, n_mapped, names = shared_memory()
    return {
        "fds": len(open_fds()),
        "threads": len(thread_ids()),
        "children": len(children()),
        "memfds open": n_open,
        "memfds mapped": n_mapped,
        "copies loaded": count_copies(),
        "/dev/shm": len(names),
    }


def worker_pids(pool):
    return [worker.pid for worker in pool._pool]


def expect(error_type, call, *args, **kwargs):
    """Return the error of this type that the call raises."""
    try:
        value = call(*args, **kwargs)
    except error_type as error:
        return error
    raise AssertionError(f"{call!r} returned {value!r}, no {error_type!r}")


def main(scenarios, hang_s=50):
    """Run `python program.py scenario args...` with a time-out that dumps the stacks."""
    faulthandler.dump_traceback_later(hang_s, exit=True)
    name, *args = sys.argv[1:]
    scenarios[name](*args)
    faulthandler.cancel_dump_traceback_later()
