"""A fork server that the program's own processes and a pool's workers share.

WHEN       whether the program has started the server before its first pool, or the pool has: before or after
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading

from probe import TIMEOUT_S, ComposablePool, tasks


def describe(sender):
    """Say how the program's own child treats Ctrl-C."""
    handles = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    sender.send((handles, signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()))
    with contextlib.suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(TIMEOUT_S)
        os._exit(3)
    sender.send("interrupted")


def check_own_child(context):
    receiver, sender = context.Pipe(False)
    child = context.Process(target=describe, args=(sender,))
    child.start()
    assert receiver.recv() == (True, True)
    assert receiver.recv() == "interrupted"
    child.join(TIMEOUT_S)
    assert child.exitcode == 0, child.exitcode


def check_pool():
    pool = ComposablePool(4, context="forkserver")
    for _ in range(12):
        os.killpg(0, signal.SIGINT)
        signal.sigtimedwait([], 0.002)
    with pool:
        assert pool.map_async(tasks.square, range(50)).get(TIMEOUT_S) == [x * x for x in range(50)]


if __name__ == "__main__":
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, lambda *_: None)
    context = multiprocessing.get_context("forkserver")
    if sys.argv[1] == "before":
        check_own_child(context)
    check_pool()
    check_own_child(context)
