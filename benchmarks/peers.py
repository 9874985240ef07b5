"""A common interface of the pools that the benchmarks compare: ours, and those of others.

A peer's module is imported only when the peer is measured; one that is not installed, or does not
exist on this Python, is left out.
"""

import importlib
import importlib.util
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

OURS = "pool_party"

type _Task = Callable[[Any], Any]


class Handle(Protocol):
    """An open pool."""

    def map(self, task: _Task, values: Sequence[Any], chunk: int = 1) -> list[Any]:
        """Return the results in order; `chunk` values are sent together, by default each alone."""

    def call(self, task: _Task, value: Any) -> Any:
        """Run one task and wait for it."""

    def as_done(self, task: _Task, values: Sequence[Any]) -> Iterator[Any]:
        """Yield the results as the tasks finish."""

    def close(self) -> None:
        """Stop the workers, and wait until they have ended."""


class PoolHandle:
    """Anything with the methods of multiprocessing.Pool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def map(self, task: _Task, values: Sequence[Any], chunk: int = 1) -> list[Any]:
        """Return the results in order; `chunk` values are sent together, by default each alone."""
        results: list[Any] = self._pool.map(task, values, chunksize=chunk)
        return results

    def call(self, task: _Task, value: Any) -> Any:
        """Run one task and wait for it."""
        return self._pool.apply(task, (value,))

    def as_done(self, task: _Task, values: Sequence[Any]) -> Iterator[Any]:
        """Yield the results as the tasks finish."""
        yield from self._pool.imap_unordered(task, values, chunksize=1)

    def close(self) -> None:
        """Stop the workers, and wait until they have ended."""
        self._pool.close()
        self._pool.join()


class ExecutorHandle:
    """Anything with the methods of concurrent.futures.Executor."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor

    def map(self, task: _Task, values: Sequence[Any], chunk: int = 1) -> list[Any]:
        """Return the results in order; `chunk` values are sent together, by default each alone."""
        return list(self._executor.map(task, values, chunksize=chunk))

    def call(self, task: _Task, value: Any) -> Any:
        """Run one task and wait for it."""
        return self._executor.submit(task, value).result()

    def as_done(self, task: _Task, values: Sequence[Any]) -> Iterator[Any]:
        """Yield the results as the tasks finish."""
        from concurrent.futures import as_completed

        futures = [self._executor.submit(task, value) for value in values]
        yield from (future.result() for future in as_completed(futures))

    def close(self) -> None:
        """Stop the workers, and wait until they have ended."""
        self._executor.shutdown(wait=True)


class JoblibHandle:
    """joblib.Parallel, configured to make every task its own batch, as the others do."""

    def __init__(self, joblib: Any, n_workers: int, backend: str = "loky") -> None:
        self._delayed = joblib.delayed
        self._options = {"n_jobs": n_workers, "batch_size": 1, "backend": backend}
        self._new = joblib.Parallel
        self._parallel = joblib.Parallel(**self._options).__enter__()

    def map(self, task: _Task, values: Sequence[Any], chunk: int = 1) -> list[Any]:
        """Return the results in order; `chunk` values are sent together, by default each alone."""
        parallel = self._parallel if chunk == 1 else self._new(**self._options | {"batch_size": chunk})
        return list(parallel(self._calls(task, values)))

    def call(self, task: _Task, value: Any) -> Any:
        """Run one task and wait for it."""
        return self.map(task, [value])[0]

    def as_done(self, task: _Task, values: Sequence[Any]) -> Iterator[Any]:
        """Yield the results as the tasks finish."""
        unordered = self._new(**self._options, return_as="generator_unordered")
        yield from unordered(self._calls(task, values))

    def close(self) -> None:
        """Stop the workers, and wait until they have ended."""
        self._parallel.__exit__(None, None, None)
        if self._options["backend"] == "loky":
            importlib.import_module("joblib.externals.loky").get_reusable_executor().shutdown()

    def _calls(self, task: _Task, values: Iterable[Any]) -> Iterator[Any]:
        call = self._delayed(task)
        return (call(value) for value in values)


@dataclass(frozen=True, slots=True)
class Peer:
    """A pool to measure.

    `module` contains what `open` uses. `reference` names the peer with the same `kind` of workers by which this peer's
    figures are divided.
    """

    name: str
    kind: str
    reference: str
    module: str
    open_in: Callable[[Any, int], Handle]
    since: tuple[int, int] = (3, 12)

    @property
    def is_ours(self) -> bool:
        """Whether this is a pool of this library."""
        return self.module == OURS

    def is_available(self) -> bool:
        """Whether it can be measured here; does not import it."""
        top_level = self.module.partition(".")[0]
        return sys.version_info >= self.since and importlib.util.find_spec(top_level) is not None

    def load(self) -> Any:
        """Import what is needed to open it, in the way of `from module import name`, since names may be lazy."""
        module = importlib.import_module(self.module)
        getattr(module, "ComposablePool" if self.is_ours else self.name, None)
        return module

    def open(self, n_workers: int) -> Handle:
        """Start a pool of `n_workers`."""
        return self.open_in(self.load(), n_workers)


def _ours(kind: str, start_method: str | None = None) -> Callable[[Any, int], Handle]:
    def open_in(module: Any, n_workers: int) -> Handle:
        context = multiprocessing.get_context(start_method) if start_method else None
        return PoolHandle(module.ComposablePool(n_workers, context=context, kind=kind))

    return open_in


def _executor(name: str) -> Callable[[Any, int], Handle]:
    return lambda module, n_workers: ExecutorHandle(getattr(module, name)(n_workers))


def _pool(start_method: str | None = None) -> Callable[[Any, int], Handle]:
    context = multiprocessing.get_context(start_method) if start_method else multiprocessing
    return lambda _, n_workers: PoolHandle(context.Pool(n_workers))


_FUTURES, _MP = "concurrent.futures", "multiprocessing.pool"

_PEERS = (
    Peer("pool_party thread", "thread", "ThreadPool", OURS, _ours("thread")),
    Peer("ThreadPool", "thread", "ThreadPool", _MP, lambda m, n: PoolHandle(m.ThreadPool(n))),
    Peer(
        "ThreadPoolExecutor",
        "thread",
        "ThreadPool",
        f"{_FUTURES}.thread",
        _executor("ThreadPoolExecutor"),
    ),
    Peer("pool_party interp", "interp", "InterpreterPoolExecutor", OURS, _ours("interp")),
    Peer(
        "InterpreterPoolExecutor",
        "interp",
        "InterpreterPoolExecutor",
        f"{_FUTURES}.interpreter",
        _executor("InterpreterPoolExecutor"),
        since=(3, 14),
    ),
    Peer("pool_party process", "process", "Pool", OURS, _ours("process")),
    Peer("Pool", "process", "Pool", _MP, _pool()),
    Peer("pool_party process, fork", "process", "Pool, fork", OURS, _ours("process", "fork")),
    Peer("Pool, fork", "process", "Pool, fork", _MP, _pool("fork")),
    Peer(
        "ProcessPoolExecutor",
        "process",
        "Pool",
        f"{_FUTURES}.process",
        _executor("ProcessPoolExecutor"),
    ),
    Peer(
        "loky",
        "process",
        "Pool",
        "loky",
        lambda m, n: ExecutorHandle(m.get_reusable_executor(max_workers=n)),
    ),
    Peer("joblib", "process", "Pool", "joblib", JoblibHandle),
)


def pool_accepts(keyword: str) -> bool:
    """Whether ComposablePool has this argument."""
    import inspect

    return keyword in inspect.signature(importlib.import_module(OURS).ComposablePool).parameters


def default_start_method() -> str:
    """Return how multiprocessing starts processes here by default; does not fix that choice."""
    return multiprocessing.get_all_start_methods()[0]


def available_peers() -> list[Peer]:
    """Return the peers that can be measured here, without a second "fork" where that is the default."""
    is_fork_default = default_start_method() == "fork"
    return [peer for peer in _PEERS if peer.is_available() and not (is_fork_default and peer.name.endswith(", fork"))]


def peer_named(name: str) -> Peer:
    """Return the peer of that name."""
    return next(peer for peer in _PEERS if peer.name == name)


def missing_peers() -> list[str]:
    """Return the peers that are left out here, as they are not installed or this Python lacks them."""
    return [peer.name for peer in _PEERS if not peer.is_available()]
