"""The standard library cannot be read any more, as after a change of the user: no interpreter can be made.

The pool says so. It does not wait for interpreters that failed before they had their places in the pool.
"""

import os
import sys
import tempfile

from probe import TIMEOUT_S, ComposablePool, tasks

from pool_party import PoolPartyError

if __name__ == "__main__":
    from pool_party._core import main_guard  # noqa: F401  # what the error needs

    with ComposablePool(2, kind="interp") as pool:
        assert pool.map(tasks.square, range(4)) == [0, 1, 4, 9]
        try:
            pool.apply(abs, ("x",))
        except TypeError:
            pass
    pool.join(timeout=TIMEOUT_S)
    os.chroot(tempfile.mkdtemp())
    for _ in range(3):
        try:
            with ComposablePool(2, kind="interp") as pool:
                pool.map_async(tasks.square, range(4)).get(TIMEOUT_S)
        except PoolPartyError as error:
            print(error)
    sys.stdout.flush()
    os._exit(0)
