"""How the demonstration opens its pools."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pool_party import ComposablePool

ALONE = "sequential"  # no pool: the plain loop with which the kinds are compared


class KindUnavailable(Exception):
    """This kind of worker does not exist on this Python. The message says why."""


@contextmanager
def open_pool(kind: Any, n_workers: int, **options: Any) -> Iterator[ComposablePool]:
    """Open a pool for the block. At its end, wait until all workers are gone.

    Raises:
        KindUnavailable: the pool cannot be made here.
    """
    try:
        pool = ComposablePool(n_workers, kind=kind, **options)
    except (ImportError, NotImplementedError) as error:
        raise KindUnavailable(str(error)) from error
    with pool:
        yield pool
        pool.close()
        pool.join()
