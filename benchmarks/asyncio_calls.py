"""What does it cost to await tasks in asyncio, and for how long do opening and ending a pool stop the loop?

    python benchmarks/asyncio_calls.py [--clients 100] [--calls 100] [--workers 2] [--json FILE]

Clients await short tasks one after the other, all at the same time: calls per second, and how long a call takes. Peers
of the same kind of worker do it through `run_in_executor`. A stall is the longest time between two turns of the loop,
which nothing else keeps busy, while pools are opened and ended; beside it the longest one while nothing happens at all,
which is the machine's own.
"""

import argparse
import asyncio
import concurrent.futures
import json
import multiprocessing
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

from metadata import collect_metadata

from pool_party import ComposableExecutor, ComposablePool

type Submit = Callable[..., Awaitable[Any]]
N_OPENINGS = 5


def short(n: int) -> int:
    return sum(range(n))


async def client(submit: Submit, n_calls: int, latencies_s: list[float]) -> None:
    for _ in range(n_calls):
        started_s = perf_counter()
        assert await submit(short, 100) == 4950
        latencies_s.append(perf_counter() - started_s)


async def measure_calls(submit: Submit, n_clients: int, n_calls: int) -> dict[str, float]:
    await asyncio.gather(*(submit(short, 100) for _ in range(n_clients)))  # workers have started
    latencies_s: list[float] = []
    started_s = perf_counter()
    await asyncio.gather(*(client(submit, n_calls, latencies_s) for _ in range(n_clients)))
    seconds = perf_counter() - started_s
    return {
        "calls_per_s": n_clients * n_calls / seconds,
        "median_ms": 1000 * statistics.median(latencies_s),
        "p99_ms": 1000 * statistics.quantiles(latencies_s, n=100)[98],
    }


@asynccontextmanager
async def watched(stalls_s: list[float]) -> AsyncIterator[None]:
    """Notes the longest time between two turns of the loop."""
    longest_s, is_over = 0.0, False

    async def turn() -> None:
        nonlocal longest_s
        last_s = perf_counter()
        while not is_over:
            await asyncio.sleep(0)
            now_s = perf_counter()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s

    watching = asyncio.ensure_future(turn())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        is_over = True
        await watching
        stalls_s.append(longest_s)


async def measure_stalls(kind: str, n_workers: int) -> dict[str, float]:
    idle_s: list[float] = []
    for _ in range(N_OPENINGS):
        async with watched(idle_s):
            await asyncio.sleep(0.05)
    stalls_s: list[float] = []
    for _ in range(N_OPENINGS):
        async with watched(stalls_s):
            async with ComposablePool.aopen(n_workers, kind=kind) as pool:
                await pool.apply_async(short, (100,))
            await pool.ajoin()
    return {"stall_ms": 1000 * max(stalls_s), "idle_stall_ms": 1000 * max(idle_s)}


def peers(kind: str, n_workers: int) -> dict[str, concurrent.futures.Executor]:
    if kind == "thread":
        return {"ThreadPoolExecutor": concurrent.futures.ThreadPoolExecutor(n_workers)}
    if kind == "process":
        context = multiprocessing.get_context()
        return {"ProcessPoolExecutor": concurrent.futures.ProcessPoolExecutor(n_workers, context)}
    if sys.version_info < (3, 14):
        return {}
    return {"InterpreterPoolExecutor": concurrent.futures.InterpreterPoolExecutor(n_workers)}


async def measure(kind: str, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    found = {}
    async with ComposablePool.aopen(args.workers, kind=kind) as pool:
        submit: Submit = lambda fn, *values: pool.apply_async(fn, values)  # noqa: E731
        found["await apply_async"] = await measure_calls(submit, args.clients, args.calls)
    async with ComposableExecutor.aopen(args.workers, kind=kind) as executor:
        found["await submit"] = await measure_calls(executor.submit, args.clients, args.calls)
    loop = asyncio.get_running_loop()
    for name, peer in peers(kind, args.workers).items():
        submit = lambda fn, *values, peer=peer: loop.run_in_executor(peer, fn, *values)  # noqa: E731
        found[name] = await measure_calls(submit, args.clients, args.calls)
        peer.shutdown()
    found["aopen, ajoin"] = await measure_stalls(kind, args.workers)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=100, help="that await at the same time")
    parser.add_argument("--calls", type=int, default=100, help="of each client")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", help="a file for the figures")
    args = parser.parse_args()
    figures = {}
    for kind in ("thread", "process", "interp"):
        figures[kind] = asyncio.run(measure(kind, args))
        for name, values in figures[kind].items():
            print(f"{kind:8} {name:24}", *(f"{key} {value:,.2f}" for key, value in values.items()), sep="  ")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"figures": figures, "metadata": collect_metadata(args.workers)}, file, indent=1)


if __name__ == "__main__":
    main()
