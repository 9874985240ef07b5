"""Functions that C threads call in interpreters, which end nevertheless.

check FOLDER HOW     `nested` is in the folder (tests/native/nested.c). HOW: "ctypes", or "keeps": as cffi does
"""

import ctypes
import sys

from probe import TIMEOUT_S, ComposablePool, main

from pool_party import _native


def by_ctypes(n):
    """Return which interpreters 20 threads have entered, and this one."""
    import _interpreters

    libc, thread, seen = ctypes.CDLL(None), ctypes.c_ulong(), []
    called = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    function = called(lambda _: seen.append((n, _interpreters.get_current()[0])))
    for _ in range(20):
        assert libc.pthread_create(ctypes.byref(thread), None, function, None) == 0
        libc.pthread_join(thread, None)
    return {*seen} == {(n, _interpreters.get_current()[0])} and len(seen) == 20


def keeping(n):
    from alone import nested

    return {nested.kept() for _ in range(20)} == {nested.here()}


def check(folder, how):
    sys.path.insert(0, folder)
    task = by_ctypes if how == "ctypes" else keeping
    for _ in range(2):
        with ComposablePool(2, kind="interp", extensions=["alone"]) as pool:
            assert all(pool.map(task, range(50), chunksize=1))
        pool.join(timeout=TIMEOUT_S)
        assert _native.n_interpreters() == 0 and _native.staying() == []
    print("ok")


if __name__ == "__main__":
    main({"check": check})
