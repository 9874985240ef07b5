"""Libraries that are loaded while we look for them: what is found, and what must not hang. argv: scenario, an OpenMP
library.
"""

import _ctypes
import ctypes
import os
import shutil
import signal
import sys
import threading
import warnings

import tasks
from probe import TIMEOUT_S, main

from pool_party import _native
from pool_party._budget import libraries


def in_thread(function, *args):
    """Return what the function returns in a new thread."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*args)))
    thread.start()
    thread.join()
    return results[0]


def only(name):
    (library,) = (library for library in libraries.find() if library.name == name)
    return library


def openmp_counts_are_per_thread(path):
    dll = ctypes.CDLL(path)
    openmp = only("libgomp")
    assert (openmp.scope, openmp.threading_layer, openmp.callback) == ("thread", "openmp", None), openmp
    default = _native.call_getter(openmp.getter)
    assert default == dll.n_threads_max()
    n = default + 1

    def set_and_use():
        tasks.set_threads(openmp, n)
        return _native.call_getter(openmp.getter), dll.n_threads_max(), dll.n_threads_of_a_region()

    assert in_thread(set_and_use) == (n, n, n)
    assert _native.call_getter(openmp.getter) == dll.n_threads_max() == default
    assert in_thread(_native.call_getter, openmp.getter) == default


def refresh_sees_what_is_loaded(path):
    loaded = libraries.Loaded()
    assert not loaded.refresh() and loaded.libraries == ()
    assert not _native.n_thread_libraries()
    before = _native.n_loads()
    assert _native.n_loads() == before and not loaded.refresh()
    ctypes.CDLL(path)
    assert _native.n_thread_libraries()
    assert _native.n_loads() != before
    assert loaded.refresh() and [library.name for library in loaded.libraries] == ["libgomp"]
    assert not loaded.refresh()


def refresh_sees_what_a_thread_has_loaded(path):
    loaded = libraries.Loaded()
    assert not loaded.refresh()
    in_thread(ctypes.CDLL, path)
    assert loaded.refresh()


def refresh_in_many_threads(path):
    loaded = libraries.Loaded()
    ctypes.CDLL(path)
    results, start = [], threading.Barrier(8)

    def look():
        start.wait(TIMEOUT_S)
        has_changed = loaded.refresh()
        results.append((has_changed, len(loaded.libraries)))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [(False, 1)] * 7 + [(True, 1)], results


def unloading(path):
    """Libraries are loaded and unloaded. What we read must stay valid."""
    seen = {_native.n_loads()}
    for n in range(20):
        copy = shutil.copy(path, f"{path}.{n}.so")
        handle = _ctypes.dlopen(copy, 0)
        if n % 3:
            assert _native.n_loads() not in seen
            seen.add(_native.n_loads())
        _ctypes.dlclose(handle)
        seen.add(_native.n_loads())


def environment_is_left_alone(path):
    ctypes.CDLL(path)
    before = dict(os.environ)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert libraries.find()
    assert "threadpoolctl" in sys.modules and dict(os.environ) == before


def loader_is_held(_):
    """We must not wait for a thread that holds the loader's lock while it waits for the GIL."""
    inside, answered = threading.Event(), threading.Event()
    seen = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    def callback(info, size, data):
        inside.set()
        seen.append(answered.wait(TIMEOUT_S))
        return 1

    before = _native.n_loads()
    thread = threading.Thread(target=ctypes.CDLL(None).dl_iterate_phdr, args=(callback, None))
    thread.start()
    assert inside.wait(TIMEOUT_S)
    assert _native.n_loads() == before
    answered.set()
    thread.join()
    assert seen == [True]


def forking(_):
    """Children that are forked while another thread looks must be able to load libraries."""
    is_over = threading.Event()

    def look():
        while not is_over.is_set():
            _native.n_loads()

    _native.n_loads()
    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            signal.alarm(TIMEOUT_S)
            _native.n_thread_libraries()
            libraries.Loaded().refresh()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    is_over.set()
    thread.join()


if __name__ == "__main__":
    main(
        {
            scenario.__name__: scenario
            for scenario in (
                openmp_counts_are_per_thread,
                refresh_sees_what_is_loaded,
                refresh_sees_what_a_thread_has_loaded,
                refresh_in_many_threads,
                unloading,
                environment_is_left_alone,
                loader_is_held,
                forking,
            )
        }
    )
