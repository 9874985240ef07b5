"""What an extension module gets that locks a file in interpreters.

check FOLDER NAME HOW     the module is in the folder (tests/native/locking.c), and HOW is the function that locks
"""

import errno
import fcntl
import importlib
import os
import sys

from probe import ComposablePool, main

from pool_party import _native
from pool_party._workers.interp.known import PACKAGES


def lock(name, path, how):
    """Return the error, or 0, and the file's flags, which fcntl tells, too. The file stays open."""
    module = importlib.import_module(name)
    fd = os.open(path, os.O_RDWR)
    return module.lock(fd, how), module.flags(fd) == fcntl.fcntl(fd, fcntl.F_GETFL)


def check(folder, name, how):
    sys.path.insert(0, folder)
    path = os.path.join(folder, "file")
    open(path, "w").close()
    pools = [ComposablePool(1, kind="interp", extensions=None if name in PACKAGES else [name]) for _ in range(2)]
    first, second = (pool.apply(lock, (name, path, how)) for pool in pools)
    assert first[1] and second[1]
    n_process, n_file, n_refused = _native.copies_locks()
    if how == "flock":
        assert (first[0], second[0]) == (0, errno.EWOULDBLOCK)  # it works between copies
        assert (n_process, n_file, n_refused) == (0, 2, 0)
    elif name in PACKAGES:
        assert first[0] == second[0] == errno.ENOLCK
        assert (n_process, n_file, n_refused) == (2, 0, 2)
    else:
        assert first[0] == second[0] == 0  # both have it: that is the risk
        assert (n_process, n_file, n_refused) == (2, 0, 0)
    for pool in pools:
        pool.close()
        pool.join(timeout=60)
    print("ok")


if __name__ == "__main__":
    main({"check": check})
