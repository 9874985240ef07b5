"""The limits of this process: its libraries are told through native code; here they are found.

One for all pools, threads and interpreters of the process. `native/budget/limits.c` decides how many threads there may
be, from who is awake; this module tells it which libraries there are, each time that the list of them has changed.
"""

import os
import sys
import threading
from collections.abc import Collection

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pool_party.budget.gate import Gate, Gated

_lock = threading.RLock()
_loaded: object = None  # libraries.Loaded, once needed
_pinned: set[int] = set()  # thread ids of workers that are kept on CPUs of their own
_gated: "Gated | None" = None  # the process's gate, while a pool of it wants one
_n_gated = 0  # pools that want it


def _forget() -> None:
    """In a forked child."""
    global _lock
    _lock = threading.RLock()
    _pinned.clear()


os.register_at_fork(after_in_child=_forget)


def refresh(cpus: Collection[int] = ()) -> None:
    """Finds libraries that are new and limits them. Cheap if no library was loaded since the last time.

    cpus: all that libraries' threads may use: the caller may be kept on fewer, and what it makes would inherit that.
    """
    if not _native.has_thread_library():
        return
    own_grant = _native.own_grant()
    if "numba" in sys.modules and own_grant:  # it is told per thread, and this one is a worker's
        from pool_party.budget.libraries import set_numba

        set_numba(own_grant)
    with _lock:
        own = os.sched_getaffinity(0)
        is_narrow = own < set(cpus)
        if is_narrow:
            os.sched_setaffinity(0, cpus)
        try:
            _limit_new()
        finally:
            if is_narrow:
                os.sched_setaffinity(0, own)
                _widen(own, cpus)


def _limit_new() -> None:
    global _loaded
    from pool_party.budget import libraries

    if not isinstance(_loaded, libraries.Loaded):
        _loaded = libraries.Loaded()
    if _loaded.refresh():
        _native.limit_libraries([(found.setter, found.getter, found.scope == "thread") for found in _loaded.libraries])
    if _gated is not None:
        _gated.install(_loaded.libraries)


def open_gate(gate: "Gate", exclusive: bool) -> "Gate":
    """From now on libraries' parallel regions in this process pass a gate: the one that is there, else this one."""
    global _gated, _n_gated
    from pool_party.budget.gate import Gated

    with _lock:
        if _gated is None:
            _gated = Gated(gate, exclusive=exclusive)
        _n_gated += 1
        opened = _gated.gate
    refresh()
    assert opened is not None
    return opened


def close_gate() -> None:
    """A pool that wanted the gate has ended."""
    global _gated, _n_gated
    with _lock:
        _n_gated -= 1
        if _n_gated == 0 and _gated is not None:
            _gated.close()
            _gated = None


def leave_gate() -> None:
    """In a forked worker: the gate of its parent's threads is not its own."""
    global _gated, _n_gated
    with _lock:
        if _gated is not None:
            _gated.close()
        _gated, _n_gated = None, 0


def is_all_gated() -> bool:
    """Whether each library that is loaded can have its regions gated. If not, tasks must be."""
    from pool_party.budget.gate import can_be_gated
    from pool_party.budget.libraries import Loaded

    return not isinstance(_loaded, Loaded) or all(map(can_be_gated, _loaded.libraries))


def _widen(own: set[int], cpus: Collection[int]) -> None:
    """Lets the threads of a library that the calling worker has loaded run on all CPUs."""
    for name in os.listdir("/proc/self/task"):
        thread = int(name)
        if thread in _pinned or thread == threading.get_native_id():
            continue
        try:
            if os.sched_getaffinity(thread) == own and not _is_ours(thread):
                os.sched_setaffinity(thread, cpus)
        except (ProcessLookupError, FileNotFoundError):
            pass  # it has ended


def _is_ours(thread: int) -> bool:
    """Whether it is an interpreter's: native code has given it its name."""
    with open(f"/proc/self/task/{thread}/comm") as name:
        return name.read().startswith("pp-")


def pin(cpus: Collection[int]) -> None:
    """Keeps the calling thread, a worker, on its CPUs."""
    if cpus:
        _pinned.add(threading.get_native_id())
        os.sched_setaffinity(0, cpus)


def unpin() -> None:
    """The calling thread ends."""
    _pinned.discard(threading.get_native_id())
