"""A process pool that opens while almost no descriptors are left, `python few_descriptors.py fork|forkserver|spawn`."""

import resource
import sys
from multiprocessing import forkserver

from probe import TIMEOUT_S, ComposablePool, gates, open_fds, resources, tasks


def use(context):
    pool = ComposablePool(2, kind="process", context=context)
    try:
        assert pool.map_async(tasks.square, range(3)).get(TIMEOUT_S) == [0, 1, 4]
    finally:
        pool.terminate()
        pool.join(timeout=TIMEOUT_S)


def held():
    """CPython itself leaves pipes open when it can't start a process for want of descriptors."""
    return {what: n for what, n in resources().items() if what not in ("fds", "children")}


def stop_fork_server():
    """Stop it, if it runs. It ends if a client breaks off a connection, and refuses all others while it does so."""
    forkserver._forkserver._stop()


def main(context):
    """Each opening must succeed or raise, and leave nothing behind."""
    use(context)
    before = held()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    n_failed = 0
    for n_left in range(2, 20):
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(open_fds()) + n_left, limits[1]))
        try:
            use(context)
        except (OSError, EOFError):  # EOFError comes from a fork server without descriptors
            n_failed += 1
            stop_fork_server()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        gates.wait_until(lambda: all(held()[what] <= n for what, n in before.items()), f"nothing is left; {n_left}")
    assert 0 < n_failed < 18, f"{n_failed} openings failed"
    use(context)


if __name__ == "__main__":
    main(*sys.argv[1:])
