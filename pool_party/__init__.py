"""Worker pools of threads, processes and own-GIL interpreters behind the interface of `multiprocessing.Pool`.

    with ComposablePool(kind="interp") as pool:      # or "thread", "process", "dask", "mpi"
        pool.map(f, xs)

Names are resolved when first used: a worker that imports pool_party for its own needs loads only those.
"""

import os
import sys

_machine = os.uname().machine if hasattr(os, "uname") else "another machine"
if sys.platform != "linux" or _machine not in ("x86_64", "aarch64"):
    raise ImportError(f"pool_party supports Linux on x86-64 and arm64; this is {sys.platform} on {_machine}")

TYPE_CHECKING = False  # importing typing would cost a fresh interpreter as much again as this package
if TYPE_CHECKING:
    from pool_party._budget.policies import Policy as Policy
    from pool_party._budget.split import WorkerBudget as WorkerBudget
    from pool_party._budget.topology import cpu_count as cpu_count
    from pool_party._core.futures import PoolFuture as PoolFuture
    from pool_party._core.results import AsyncResult as AsyncResult
    from pool_party._core.results import MapResult as MapResult
    from pool_party._core.statistics import Statistics as Statistics
    from pool_party._core.streams import IMapIterator as IMapIterator
    from pool_party._default import DefaultExecutor as DefaultExecutor
    from pool_party._default import configure as configure
    from pool_party._default import default_executor as default_executor
    from pool_party._default import map as map
    from pool_party._executor import ComposableExecutor as ComposableExecutor
    from pool_party._ground.broken import ClusterLost as ClusterLost
    from pool_party._ground.broken import InitializerFailed as InitializerFailed
    from pool_party._ground.broken import TaskTimeout as TaskTimeout
    from pool_party._ground.broken import WorkerLost as WorkerLost
    from pool_party._ground.errors import CannotWait as CannotWait
    from pool_party._ground.errors import PoolClosed as PoolClosed
    from pool_party._ground.errors import PoolPartyError as PoolPartyError
    from pool_party._ground.errors import PoolTerminated as PoolTerminated
    from pool_party._ground.errors import RemoteError as RemoteError
    from pool_party._integrations.registration import register_joblib_backend as register_joblib_backend
    from pool_party._observe.progress import Progress as Progress
    from pool_party._patching.public import patch as patch
    from pool_party._patching.public import patched as patched
    from pool_party._patching.public import unpatch as unpatch
    from pool_party._pool import ComposablePool as ComposablePool
    from pool_party._pool import InterpreterPool as InterpreterPool
    from pool_party._pool import ProcessPool as ProcessPool
    from pool_party._pool import ThreadPool as ThreadPool
    from pool_party._wire.shared import share as share

__version__ = "0.1.0"

_HOMES = {
    "AsyncResult": "_core.results",
    "CannotWait": "_ground.errors",
    "ClusterLost": "_ground.broken",
    "ComposableExecutor": "_executor",
    "ComposablePool": "_pool",
    "DefaultExecutor": "_default",
    "IMapIterator": "_core.streams",
    "InitializerFailed": "_ground.broken",
    "InterpreterPool": "_pool",
    "MapResult": "_core.results",
    "Policy": "_budget.policies",
    "PoolClosed": "_ground.errors",
    "PoolFuture": "_core.futures",
    "PoolPartyError": "_ground.errors",
    "PoolTerminated": "_ground.errors",
    "ProcessPool": "_pool",
    "Progress": "_observe.progress",
    "RemoteError": "_ground.errors",
    "Statistics": "_core.statistics",
    "TaskTimeout": "_ground.broken",
    "ThreadPool": "_pool",
    "WorkerBudget": "_budget.split",
    "WorkerLost": "_ground.broken",
    "configure": "_default",
    "cpu_count": "_budget.topology",
    "default_executor": "_default",
    "map": "_default",
    "patch": "_patching.public",
    "patched": "_patching.public",
    "register_joblib_backend": "_integrations.registration",
    "share": "_wire.shared",
    "unpatch": "_patching.public",
}

_ELSEWHERE = {"Pool": "ComposablePool"} | dict.fromkeys(
    ("Executor", "ThreadPoolExecutor", "ProcessPoolExecutor", "InterpreterPoolExecutor"), "ComposableExecutor"
)

# `import *` keeps the built-in `map`, and needs no alias for annotations.
__all__ = [*(name for name in _HOMES if name not in ("map", "Progress")), "__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        meant = f": did you mean {_ELSEWHERE[name]!r}?" if name in _ELSEWHERE else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{meant}")
    home = __import__(f"{__name__}.{_HOMES[name]}", fromlist=[name])  # importing importlib would cost more
    value = getattr(home, name)
    if name != "Progress":  # an alias, whose module cannot be set
        value.__module__ = __name__
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
