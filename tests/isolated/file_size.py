"""Pools under RLIMIT_FSIZE (`ulimit -f`), which limits shared memory as well: `python file_size.py scenario kind`."""

import errno
import resource
import signal

from probe import ComposablePool, expect, main, tasks

from pool_party import share

MiB = 1 << 20


def limit(n_bytes):
    """Limit this process and its children. Exceeding the limit kills, as in a program that does not run Python."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def check_too_large(error):
    assert error.errno == errno.EFBIG and "RLIMIT_FSIZE" in str(error) and "ulimit -f" in str(error), error


def use(pool):
    """Send far more than fits at once, in all sizes, there and back."""
    assert pool.map(tasks.square, range(1000)) == [x * x for x in range(1000)]
    for n_bytes in (10, 100_000, 1 * MiB, 3 * MiB, 5 * MiB + 1, 9 * MiB, 50_000):
        blobs = [tasks.make_blob(n_bytes + i, i) for i in range(6)]
        assert pool.map(tasks.identity, blobs, 1) == blobs
        assert list(pool.imap_unordered(tasks.make_blob, [n_bytes] * 9, 2)) == [tasks.make_blob(n_bytes)] * 9


def works(kind):
    limit(64 * MiB)
    with ComposablePool(2, kind=kind, maxtasksperchild=50) as pool:
        use(pool)


def too_large_values(kind):
    limit(64 * MiB)
    with ComposablePool(2, kind=kind) as pool:
        for call in (
            lambda: pool.apply(tasks.blob_checksum, (tasks.make_blob(40 * MiB),)),
            lambda: pool.map(tasks.blob_checksum, [tasks.make_blob(40 * MiB)] * 3),
        ):
            check_too_large(expect(OSError, call))
        for n_bytes in (40 * MiB, 30 * MiB):
            error = expect(Exception, pool.apply, tasks.make_blob, (n_bytes,))
            assert "RLIMIT_FSIZE" in str(error), error
        use(pool)
    check_too_large(expect(OSError, share, bytes(65 * MiB)))
    assert len(share(bytes(10 * MiB))) == 10 * MiB


def too_small_for_a_pool(kind):
    limit(1 * MiB)
    check_too_large(expect(OSError, ComposablePool, 2, kind=kind))
    check_too_large(expect(OSError, share, bytes(2 * MiB)))


if __name__ == "__main__":
    main(globals())
