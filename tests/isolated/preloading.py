"""Preloading in a fresh process: NumPy's OpenBLAS is limited before the first task, for every kind."""

import sys

from probe import TIMEOUT_S, ComposablePool, gates, main, tasks

from pool_party._budget.enforcer import Enforcer


def limited(kind):
    """A BLAS that workers preload has the worker's count in each worker's first task, although the parent does not
    look.
    """
    assert "numpy" not in sys.modules
    Enforcer.look = lambda self: None
    with ComposablePool(2, kind=kind, threads_per_worker=1, preload=["numpy"]) as pool:
        counts = pool.map(tasks.count_if_imported, ["numpy"] * 2, 1)
    assert all(counts) and {count for each in counts for count in each} == {1}, counts
    print("ok")


def limited_openmp(kind, folder, path, extension=None):
    """The same for OpenMP, whose counts are per thread. In interpreters an extension module loads it."""
    sys.path.insert(0, folder)
    Enforcer.look = lambda self: None
    with open(f"{folder}/openmp_module.py", "w") as module:
        module.write(f"import ctypes\ncount = ctypes.CDLL({path!r}).n_threads_max\n")
    options = {"extensions": [extension.partition(".")[0]]} if extension else {}
    modules = [*filter(None, [extension]), "openmp_module"]
    with ComposablePool(2, kind=kind, threads_per_worker=3, preload=modules, **options) as pool:
        counts = pool.map(tasks.call_of_module, ["openmp_module"] * 2, 1)
    assert counts == [3, 3], counts
    print("ok")


def ended_while_importing(kind, folder):
    """A pool can be left while its workers import."""
    sys.path.insert(0, folder)
    with gates.Gate(f"{folder}/gate") as gate:
        with open(f"{folder}/standing.py", "w") as module:
            module.write(f"import tasks\ntasks.pass_gate({gate.path!r})\n")
        pool = ComposablePool(1, kind=kind, preload=["standing", "no_such_module"])
        pending = pool.apply_async(tasks.square, (2,))
        gate.wait_arrived()
        ending = gates.call_in_thread(pool.terminate)
        try:
            pending.get(TIMEOUT_S)
        except ValueError as error:
            assert type(error).__name__ == "PoolTerminated"
        gate.release()
        ending.result()
        pool.join(timeout=TIMEOUT_S)
    print("ok")


if __name__ == "__main__":
    main({"limited": limited, "limited_openmp": limited_openmp, "ended": ended_while_importing})
