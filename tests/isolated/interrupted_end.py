"""Ctrl-C, twice, while the program's end waits for pools that were left open: all of them end, and so does the program.

The first pool's interpreter ends slowly, since a task has registered a function that sends the signals.
"""

import os
import sys

from probe import ComposablePool, tasks


def register():
    import atexit

    atexit.register(interrupt_twice)


def interrupt_twice():
    import os
    import signal
    import time

    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)  # the main thread handles it
    os.write(1, b"interpreter ")


class Engines(set):
    """The open pools in an order that is chosen here."""

    def __iter__(self):
        return iter(sorted(super().__iter__(), key=lambda engine: engine.kind))


if __name__ == "__main__":
    from pool_party._core import exit

    exit._open = Engines()
    pool = ComposablePool(1, kind="interp")
    pool.apply(register)
    other = ComposablePool(1, kind=sys.argv[1])
    other.apply(tasks.square, (2,))
    os.write(1, b"end ")
