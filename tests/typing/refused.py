"""What users get wrong. Each line that is marked has an error, and no other line has one."""

from pathlib import Path

import pool_party
from pool_party import ComposableExecutor, ComposablePool, PoolFuture, ThreadPool


def size(path: Path) -> int:
    return path.stat().st_size


def add(a: int, b: float, *, c: int = 0) -> float:
    return a + b + c


def use_pool(pool: ComposablePool, paths: list[Path]) -> None:
    pool.map(size, [1, 2])  # error
    pool.map(size, paths[0])  # error
    pool.map(add, [1, 2])  # error
    pool.starmap(add, [("x", 2.0)])  # error
    pool.starmap(add, [(1, 2.0, 3)])  # error
    pool.starmap(size, paths)  # error
    pool.imap(size, ["a"])  # error
    pool.imap_unordered(size, ["a"])  # error
    pool.map_async(size, ["a"])  # error
    pool.amap(size, ["a"])  # error
    pool.submit(add, "x", 2.0)  # error
    pool.submit(add, 1, 2.0, d=1)  # error
    pool.apply(3)  # error
    names: list[str] = pool.map(size, paths)  # error
    name: str = pool.apply_async(size, (paths[0],)).get()  # error
    print(names, name)
    for total in pool.imap(size, paths):
        total.upper()  # error


def use_callbacks(pool: ComposablePool, paths: list[Path]) -> None:
    def note(text: str) -> None:
        print(text)

    pool.apply_async(size, (paths[0],), callback=note)  # error
    pool.map_async(size, paths, callback=note)  # error


def use_options(pool: ComposablePool, executor: ComposableExecutor, paths: list[Path]) -> None:
    pool.map(size, paths, time_s=5)  # error, but not for ty: it takes any keyword for `**options`
    pool.map(size, paths, timeout_s="5")  # error
    pool.map(size, paths, errors="returns")  # error
    pool.map(size, paths, progress="line")  # error
    pool.options(on_cancel="stop")  # error
    pool.apply_async(size, (paths[0],)).cancel(on_cancel="stop")  # error
    executor.map(size, paths, errors="returns")  # error
    executor.map(size, paths, chunks=3)  # error, but not for ty: as above
    executor.submit(size, paths[0]).cancel(on_cancel="stop")  # error


def use_executor(executor: ComposableExecutor, paths: list[Path]) -> None:
    executor.submit(add, "x", 2.0)  # error
    executor.submit(add, 1, 2.0, d=1)  # error
    executor.map(size, [1, 2])  # error
    executor.map(add, [1], ["x"])  # error
    future: PoolFuture[str] = executor.submit(size, paths[0])  # error
    print(future)


def use_default(paths: list[Path]) -> None:
    pool_party.map(size, [1, 2])  # error
    pool_party.map(size, paths, kind="proces")  # error
    pool_party.default_executor("proces")  # error
    pool_party.configure(kind="proces")  # error


async def use_in_asyncio(pool: ComposablePool, executor: ComposableExecutor, paths: list[Path]) -> None:
    name: str = await pool.apply_async(size, (paths[0],))  # error
    name = await executor.submit(size, paths[0])  # error
    name = await executor.submit(size, paths[0]).outcome()  # error
    print(name)


def use_shared() -> None:
    pool_party.share([1, 2])  # error
    pool_party.share(b"abc", read_only=True)  # error


class NoPolicy:
    def share(self) -> None: ...


def open_pools() -> None:
    ComposablePool(2, kind="proces")  # error
    ComposablePool(2, policy="dynamics")  # error
    ComposablePool(2, policy=NoPolicy())  # error
    ComposablePool(2, scope="host")  # error
    ComposablePool(2, output="relays")  # error
    ComposableExecutor(2, kind="proces")  # error
    ComposableExecutor(2, policy="dynamics")  # error
    ThreadPool(2, policy="dynamics")  # error
    pool_party.patch(kind="dask")  # error
    pool_party.patched(kind="dask")  # error
