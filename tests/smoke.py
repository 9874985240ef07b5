"""A smoke test of an installed pool_party: every kind of worker, with only the package's own dependencies.

    python tests/smoke.py [KIND...]

It runs where pytest is missing: for a wheel in an empty environment, in cibuildwheel's containers, under an emulator.
If NumPy is there, arrays are sent and shared as well, and interpreters load NumPy where they can.
"""

import faulthandler
import importlib.util
import multiprocessing
import os
import platform
import signal
import subprocess
import sys

import pool_party
from pool_party import ComposableExecutor, ComposablePool, WorkerLost
from pool_party._workers.interp.extensions import IS_SUPPORTED

HANG_S = float(os.environ.get("POOL_PARTY_TEST_HANG_S", "120"))
WAYS = ("thread", "process/fork", "process/forkserver", "process/spawn", "interp")  # fork before interpreters live
HAS_NUMPY = importlib.util.find_spec("numpy") is not None


class Refused(Exception):
    """A task's own exception, of a class defined in `__main__`."""


def square(x):
    return x * x


def refuse(x):
    raise Refused(x)


def end_abruptly():
    os.kill(os.getpid(), signal.SIGKILL)


def double(array):
    array *= 2
    return float(array.sum())


def raises(error, function, *args):
    try:
        function(*args)
    except error:
        return True
    return False


def check_calls(pool):
    assert pool.map(square, range(1000)) == [x * x for x in range(1000)]
    assert pool.map(lambda x: x + 1, range(10), chunksize=1) == list(range(1, 11))
    assert sorted(pool.imap_unordered(square, range(100))) == [x * x for x in range(100)]
    assert pool.apply(bytes, (1 << 20,)) == bytes(1 << 20)
    assert raises(Refused, pool.apply, refuse, (1,))


def check_arrays(pool, kind):
    import numpy

    if kind == "interp" and not IS_SUPPORTED:
        assert raises(ImportError, pool.apply, __import__, ("numpy",))
        return "NumPy is refused"
    shared = pool_party.share(numpy.ones(100_000))
    assert pool.apply(double, (shared,)) == 200_000.0
    assert shared[0] == 2.0
    array = numpy.arange(300_000.0).reshape(300, 1000)
    assert (pool.apply(numpy.transpose, (array,)) == array.T).all()
    return "arrays"


def check(way):
    """Try one kind of worker. Return what was tried."""
    kind, _, method = way.partition("/")
    context = multiprocessing.get_context(method) if method else None
    done = ["calls"]
    with ComposablePool(2, kind=kind, context=context) as pool:
        check_calls(pool)
        if kind == "process":
            assert raises(WorkerLost, pool.apply, end_abruptly)
            assert pool.apply(square, (3,)) == 9
            done.append("a lost worker")
        if HAS_NUMPY:
            done.append(check_arrays(pool, kind))
        pool.close()
        pool.join()
    with ComposableExecutor(2, kind=kind, context=context) as executor:
        assert executor.submit(square, 5).result() == 25
    return ", ".join([*done, "an executor"])


def check_command():
    command = os.path.join(os.path.dirname(sys.executable), "pool-party")
    if not os.path.exists(command):  # not installed as a distribution
        return
    told = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    assert told == f"pool-party {pool_party.__version__}\n"


def main():
    python = f"{platform.python_version()}{sys.abiflags}"
    print(f"pool_party {pool_party.__version__} on Python {python}, {platform.machine()}: {pool_party.__file__}")
    for way in sys.argv[1:] or WAYS:
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        print(f"{way}: {check(way)}", flush=True)
    check_command()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
