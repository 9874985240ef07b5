"""What users may write. Type checkers find no error here, and for each result the type that is stated."""

import asyncio
import itertools
import math
import operator
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed, wait
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, assert_type

import numpy
from numpy.typing import NDArray

import pool_party
from pool_party import (
    AsyncResult,
    ComposableExecutor,
    ComposablePool,
    IMapIterator,
    InterpreterPool,
    MapResult,
    Policy,
    PoolFuture,
    ProcessPool,
    Progress,
    Statistics,
    ThreadPool,
    WorkerBudget,
)


def size(path: Path) -> int:
    return path.stat().st_size


def add(a: int, b: float, *, c: int = 0) -> float:
    return a + b + c


def name(number: int, digits: int = 3) -> str:
    return f"{number:0{digits}}"


def join(a: str, b: str, c: str) -> str:
    return a + b + c


def use_pool(pool: ComposablePool, paths: list[Path], pairs: list[tuple[int, float]]) -> None:
    assert_type(pool.map(size, paths), list[int])
    assert_type(pool.map(size, iter(paths), chunksize=2, progress=True, timeout_s=5), list[int])
    assert_type(pool.map(name, range(3)), list[str])
    assert_type(pool.map(partial(add, 1), [2.0]), list[float])
    assert_type(pool.map(lambda path: path.name, paths), list[str])
    assert_type(pool.map(Path, ["a", "b"]), list[Path])
    assert_type(pool.starmap(add, pairs), list[float])
    assert_type(pool.starmap(add, zip([1, 2], [0.5, 1.5], strict=True)), list[float])
    assert_type(pool.starmap(add, enumerate([0.5, 1.5])), list[float])
    assert_type(pool.starmap(add, itertools.product([1, 2], [0.5])), list[float])
    assert_type(pool.starmap(join, [["a", "b", "c"]]), list[str])
    pool.starmap(add, [[1, 2], [3, 4]])  # error for mypy: it takes parameters with keywords only for others
    assert_type(pool.apply(add, (1, 2.0), {"c": 3}), float)
    assert_type(pool.apply_async(add, [1, 2.0]), AsyncResult[float])
    assert_type(pool.apply_async(size, (paths[0],)).get(timeout=5), int)
    assert_type(pool.map_async(size, paths), MapResult[int])
    assert_type(pool.map_async(size, paths).get(), list[int])
    assert_type(pool.starmap_async(add, pairs).get(), list[float])
    assert_type(pool.imap(size, paths), IMapIterator[int])
    assert_type(pool.imap_unordered(size, paths, buffersize=8).next(timeout=5), int)
    assert_type(list(pool.imap(size, paths)), list[int])
    assert_type(pool.submit(add, 1, 2.0, c=3), PoolFuture[float])
    assert_type(pool.options(timeout_s=5, retries=1).map(size, paths), list[int])
    assert_type(pool.statistics(), Statistics)
    again = ComposablePool(2, kind=pool.kind)
    again.terminate()


class Pair(NamedTuple):
    number: int
    weight: float


class Doubler:
    def __call__(self, number: int) -> int:
        return 2 * number

    def shifted(self, number: int, shift: float = 0.5) -> float:
        return 2 * number + shift


def sum_up(numbers: Sequence[int]) -> int:
    return sum(numbers)


def use_other_callables(pool: ComposablePool, numbers: list[int], lists: list[list[int]], pairs: list[Pair]) -> None:
    assert_type(pool.map(Doubler(), numbers), list[int])
    assert_type(pool.map(Doubler().shifted, numbers), list[float])
    assert_type(pool.map(sum_up, lists), list[int])
    assert_type(pool.map(math.sqrt, numbers), list[float])
    assert_type(pool.map(str.upper, ["a"]), list[str])
    assert_type(pool.map(len, lists), list[int])
    pool.map(print, numbers)
    pool.map(min, lists)
    assert_type(pool.starmap(Doubler().shifted, [(1, 0.5)]), list[float])
    assert_type(pool.starmap(Pair, [(1, 0.5)]), list[Pair])
    assert_type(pool.starmap(math.pow, [(1, 2)]), list[float])
    assert_type(pool.starmap(add, pairs), list[float])
    assert_type(pool.starmap(add, {1: 0.5}.items()), list[float])
    assert_type(pool.starmap(add, zip(numbers, itertools.repeat(0.5))), list[float])
    assert_type(pool.starmap(add, itertools.combinations(numbers, 2)), list[float])
    assert_type(pool.starmap(name, map(list, itertools.product(numbers, repeat=2))), list[str])


def use_callbacks(pool: ComposablePool, paths: list[Path]) -> None:
    def note(total: int) -> None:
        print(total)

    def note_all(totals: list[int]) -> None:
        print(totals)

    def fail(error: BaseException) -> None:
        print(error)

    pool.apply_async(size, (paths[0],), callback=note, error_callback=fail)
    pool.map_async(size, paths, callback=note_all, error_callback=fail)
    pool.apply_async(size, (paths[0],), callback=print)


def use_executor(executor: ComposableExecutor, paths: list[Path]) -> Iterator[int]:
    future = executor.submit(add, 1, 2.0, c=1)
    assert_type(future, PoolFuture[float])
    assert_type(future.result(timeout=5), float)
    assert_type(executor.submit(size, path=paths[0]).result(), int)
    assert_type(list(executor.map(size, paths)), list[int])
    assert_type(list(executor.map(name, range(3), [1, 2, 3], chunksize=2, timeout=5)), list[str])
    assert_type(list(executor.map(join, "ab", "cd", "ef", retries=1)), list[str])
    totals: Future[float] = future
    for done in as_completed([future]):
        assert_type(done.result(), float)
    print(totals.done())
    return executor.map(size, paths)


def use_other_arguments(executor: ComposableExecutor, numbers: list[int], paths: list[Path]) -> None:
    executor.map(operator.add, numbers, numbers)
    executor.map(print, numbers, numbers)
    executor.map(add, *[numbers, numbers])
    executor.map(lambda number, weight: number + weight, numbers, numbers)
    assert_type(list(executor.map(partial(add, b=0.5), numbers)), list[float])
    assert_type(executor.submit(len, "abc").result(), int)
    executor.submit(print, 1, sep="").add_done_callback(lambda future: print(future.result()))
    paths_of: dict[Future[int], Path] = {executor.submit(size, path): path for path in paths}
    for future in as_completed(paths_of):
        assert_type(future.result(), int)
        print(paths_of[future])
    done, _ = wait([executor.submit(size, path) for path in paths])
    assert_type([future.result() for future in done], list[int])


def use_any_executor(executor: Executor, paths: list[Path]) -> list[int]:
    return list(executor.map(size, paths))


def use_default(paths: list[Path]) -> None:
    assert_type(pool_party.map(size, paths), list[int])
    assert_type(pool_party.map(name, range(3), [1, 2, 3], kind="thread", chunksize=2), list[str])
    executor = pool_party.default_executor("interp")
    assert_type(executor.submit(size, paths[0]).result(), int)
    assert_type(list(executor.map(size, paths)), list[int])
    use_any_executor(executor, paths)


async def read(paths: list[Path]) -> AsyncIterator[Path]:
    for path in paths:
        yield path
        await asyncio.sleep(0)


async def use_in_asyncio(paths: list[Path]) -> None:
    async with ComposablePool.aopen(2, kind="thread") as pool:
        assert_type(pool, ComposablePool)
        result = pool.apply_async(add, (1, 2.0))
        assert_type(await result, float)
        assert_type(await result.outcome(on_cancel="wait"), float)
        assert_type(await asyncio.wait_for(result.outcome(), 5), float)
        assert_type(await pool.map_async(size, paths), list[int])
        assert_type([total async for total in pool.amap(size, paths)], list[int])
        assert_type([total async for total in pool.amap(size, read(paths), limit=4)], list[int])
    async with ComposableExecutor.aopen(2) as executor:
        future = executor.submit(size, paths[0])
        assert_type(await future, int)
        assert_type(await future.outcome(), int)
        other = executor.submit(name, 3)
        both = await asyncio.gather(future, other)
        assert_type(both, tuple[int, str])
        outcomes = await asyncio.gather(future.outcome(), other.outcome())
        assert_type(outcomes, tuple[int, str])
        async with asyncio.TaskGroup() as group:
            assert_type(group.create_task(future.outcome()), asyncio.Task[int])


class Halves:
    name = "halves"

    def shares(self, state: object) -> Sequence[WorkerBudget]:
        return [WorkerBudget(1, (0,)), WorkerBudget(1, (1,))]


def open_pools(kind: Literal["thread", "process"], policy: Policy, progress: Progress) -> None:
    with ComposablePool(2, kind=kind, policy="static", scope="machine", output="relay") as pool:
        assert_type(pool, ComposablePool)
        pool.map(name, [1], progress=progress, on_cancel="wait", errors="raise")
    with ThreadPool(2, policy=None) as threads, ProcessPool(policy=policy), InterpreterPool(policy=Halves()):
        assert_type(threads, ThreadPool)
        assert_type(threads.options(timeout_s=5), ThreadPool)
    with ComposableExecutor(2, kind="interp", policy="dynamic") as executor:
        assert_type(executor.options(deadline_s=5).submit(name, 3).result(), str)
    with pool_party.patched(kind="auto"):
        pool_party.patch(kind="thread", policy="static")


def use_shared(array: NDArray[numpy.float64], text: bytes) -> None:
    assert_type(pool_party.share(array, readonly=True), NDArray[numpy.float64])
    assert_type(pool_party.share(text), memoryview)


def keep_failures(pool: ComposablePool, paths: list[Path]) -> int:
    """With `errors="return"` the type of the variable says that there may be exceptions."""
    totals: list[int | BaseException] = pool.map(size, paths, errors="return")
    return sum(total for total in totals if not isinstance(total, BaseException))


def keep(result: AsyncResult[int], future: PoolFuture[str], results: IMapIterator[int]) -> AsyncResult[float]:
    """Results may be kept where results of a wider type are."""
    print(future.result().upper(), next(results) + 1)
    return result


def show(progress: Progress) -> None:
    def count(done: int, total: int | None) -> None:
        print(done, total)

    pool_party.map(name, [1], progress=count)
    pool_party.map(name, [1], progress="lines")
    pool_party.map(name, [1], progress=progress)
