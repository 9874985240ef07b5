"""A process pool opens while hardly any descriptors are left: `python few_descriptors.py fork|forkserver|spawn`."""

import resource
import sys

from probe import TIMEOUT_S, ComposablePool, gates, open_fds, resources, tasks


def use(context):
    pool = ComposablePool(2, kind="process", context=context)
    try:
        assert pool.map_async(tasks.square, range(3)).get(TIMEOUT_S) == [0, 1, 4]
    finally:
        pool.terminate()
        pool.join(timeout=TIMEOUT_S)


def held():
    """Count held resources, without pipes and children, which CPython itself leaves behind without descriptors."""
    return {what: n for what, n in resources().items() if what not in ("fds", "children")}


def opens(context, n_left):
    """Whether a pool can be opened and used while so many descriptors are left."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(open_fds()) + n_left, limits[1]))
    try:
        use(context)
    except (OSError, EOFError):  # EOFError comes from a fork server without descriptors
        return False
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    return True


def main(context):
    """Each opening must succeed or raise, and leave nothing behind."""
    use(context)
    before = held()
    n_failed = 0
    for n_left in range(2, 20):
        n_failed += not opens(context, n_left)
        gates.wait_until(lambda: all(held()[what] <= n for what, n in before.items()), f"nothing is left; {n_left}")
    assert n_failed > 0
    # A fork server that has failed refuses connections until it is dead, and only then is another one started.
    gates.wait_until(lambda: opens(context, 20), "20 descriptors are enough")
    use(context)


if __name__ == "__main__":
    main(*sys.argv[1:])
