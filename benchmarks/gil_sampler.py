"""How long is the GIL of this interpreter held? Reads its flag repeatedly, from a worker that does not need that GIL.

CPython 3.13 and later tell debuggers the address of the flag (`_Py_DebugOffsets`, at the start of `_PyRuntime`). The
worker runs in an interpreter with its own GIL, and reads this process's memory through /proc. It does not affect what
it measures, except for the CPU time of one short read per millisecond.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Any

INTERVAL_S = 0.001
SOURCE = "own sampler: the GIL's flag, read each millisecond"

_COOKIE = b"xdebugpy"
_INTERPRETER = 5  # index of the first offset of an interpreter's state
_LOCKED = {(3, 13): 11, (3, 14): 12, (3, 15): 12}  # index of the flag's offset among these, by version


def is_available() -> bool:
    """Return whether this Python tells the address of the flag."""
    return sys.version_info[:2] in _LOCKED and bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def flag_address() -> int:
    """Return the address of the GIL's flag of the calling interpreter: an int, 1 while a thread holds the GIL.

    Raises:
        RuntimeError: if this Python does not tell, or something else than we expect.
    """
    start = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    if not is_available() or ctypes.string_at(start, len(_COOKIE)) != _COOKIE:
        raise RuntimeError("this Python does not tell where the flag of its GIL is")
    offsets = (ctypes.c_uint64 * 24).from_address(start + len(_COOKIE))
    if offsets[0] != sys.hexversion:
        raise RuntimeError(f"the offsets are those of version {offsets[0]:#x}, and this is {sys.hexversion:#x}")
    get_state = ctypes.pythonapi.PyInterpreterState_Get
    get_state.restype = ctypes.c_void_p
    address = int(get_state()) + offsets[_INTERPRETER + _LOCKED[sys.version_info[:2]]]
    if ctypes.c_int.from_address(address).value != 1:  # this thread holds it now
        raise RuntimeError("what should be the flag of the GIL is something else")
    return address


def look(address: int, stop: int, interval_s: float) -> tuple[int, int]:
    """In the worker: read the flag until `stop` becomes readable; return how often it was held, and all reads."""
    import select

    memory = os.open("/proc/self/mem", os.O_RDONLY)
    n_held = n_looks = 0
    try:
        while True:
            n_held += os.pread(memory, 4, address) != b"\0\0\0\0"
            n_looks += 1
            if select.select([stop], [], [], interval_s)[0]:
                return n_held, n_looks
    finally:
        os.close(memory)


def is_released_at_last(address: int, limit_s: float = 30.0) -> bool:
    """In a worker: return whether the flag is seen cleared within a time limit."""
    deadline_s = time.monotonic() + limit_s
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        while os.pread(memory.fileno(), 4, address) != b"\0\0\0\0":
            if time.monotonic() > deadline_s:
                return False
    return True


def held_share(run: Callable[[], Any]) -> float:
    """Call `run`; return the share of that time for which any thread held this interpreter's GIL.

    No process may be forked meanwhile: CPython crashes in a forked child while there are other interpreters.
    """
    from pool_party import ComposablePool

    address = flag_address()
    readable, writable = os.pipe()
    with ComposablePool(1, kind="interp", policy=None) as pool, open(os.devnull) as nothing:
        pool.apply(look, (address, nothing.fileno(), 0.0))  # from now on it has imported everything
        looks = pool.apply_async(look, (address, readable, INTERVAL_S))
        try:
            run()
        finally:
            os.write(writable, b"x")
            n_held, n_looks = looks.get()
    os.close(readable)
    os.close(writable)
    return n_held / n_looks
