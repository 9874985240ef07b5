"""A pytest plugin that puts our pools and executors in the place of those that Dask's schedulers and tests use."""

import concurrent.futures
import multiprocessing
import multiprocessing.pool
import os

from pool_party import ComposableExecutor, ComposablePool

KIND = os.environ["POOL_PARTY_KIND"]


class Executor(ComposableExecutor):
    """Stands for the executor of the standard library with the same kind of workers. Interpreters have no contexts."""

    def __init__(self, max_workers=None, mp_context=None, **options):
        super().__init__(max_workers, context=mp_context if KIND == "process" else None, kind=KIND, **options)


class Pool(ComposablePool):
    def __init__(self, processes=None):
        super().__init__(processes, kind=KIND)


if KIND == "thread":
    concurrent.futures.ThreadPoolExecutor = Executor
    multiprocessing.pool.ThreadPool = Pool
else:
    concurrent.futures.ProcessPoolExecutor = Executor
    multiprocessing.Pool = Pool
