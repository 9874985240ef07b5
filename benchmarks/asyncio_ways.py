"""The measurements of asyncio_calls.py, each made in a separate process.

    python -c 'from asyncio_ways import main; main()' calls|server|stalls WAY N_WORKERS N_CALLS

prints the figures as JSON.
"""

import asyncio
import concurrent.futures
import json
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter
from typing import Any

from fresh import Figures
from workloads.web import N_PRIMES, answer, primes_below, short

from pool_party import ComposableExecutor, ComposablePool

type Submit = Callable[..., Awaitable[Any]]

OURS, EXECUTOR, IN_LOOP, NOTHING = "pool_party ", ", executor", "in the loop itself", "nothing is opened"
ANYIO = {"anyio threads": "to_thread", "anyio processes": "to_process", "anyio interpreters": "to_interpreter"}
N_CLIENTS = 100
_IDLE_S = 0.05


# ---- ways ----


async def _run_here(function: Callable[..., Any], *values: Any) -> Any:
    return function(*values)


@asynccontextmanager
async def _submitter(way: str, n_workers: int) -> AsyncIterator[Submit]:
    """Give a function that returns an awaitable of the result of a call."""
    if way == IN_LOOP:
        yield _run_here
    elif way in ANYIO:
        import anyio

        module = __import__(f"anyio.{ANYIO[way]}", fromlist=["run_sync"])
        yield partial(module.run_sync, limiter=anyio.CapacityLimiter(n_workers))
    elif way.startswith(OURS) and way.endswith(EXECUTOR):
        kind = way.removeprefix(OURS).removesuffix(EXECUTOR)
        async with ComposableExecutor.aopen(n_workers, kind=kind) as executor:
            yield executor.submit
    elif way.startswith(OURS):
        async with ComposablePool.aopen(n_workers, kind=way.removeprefix(OURS)) as pool:
            yield lambda function, *values: pool.apply_async(function, values)
    else:
        with getattr(concurrent.futures, way)(n_workers) as peer:
            yield partial(asyncio.get_running_loop().run_in_executor, peer)


# ---- calls, one after the other from each of many clients ----


async def _client(call: Callable[[], Awaitable[Any]], expected: Any, n_calls: int, latencies_s: list[float]) -> None:
    for _ in range(n_calls):
        started_s = perf_counter()
        found = await call()
        latencies_s.append(perf_counter() - started_s)
        if found != expected:
            raise AssertionError(f"a call returned {found!r} instead of {expected!r}")


async def _measure_clients(call: Callable[[], Awaitable[Any]], expected: Any, n_calls: int) -> Figures:
    await asyncio.gather(*(call() for _ in range(N_CLIENTS)))  # so that workers and connections are there
    latencies_s: list[float] = []
    started_s = perf_counter()
    await asyncio.gather(*(_client(call, expected, n_calls, latencies_s) for _ in range(N_CLIENTS)))
    return {
        "calls_per_s": N_CLIENTS * n_calls / (perf_counter() - started_s),
        "median_ms": 1000 * statistics.median(latencies_s),
        "p99_ms": 1000 * statistics.quantiles(latencies_s, n=100)[98],
    }


async def measure_calls(way: str, n_workers: int, n_calls: int) -> Figures:
    """Measure clients of this process that await short calls."""
    async with _submitter(way, n_workers) as submit:
        return await _measure_clients(partial(submit, short, 100), short(100), n_calls)


# ---- a web server ----


async def measure_server(way: str, n_workers: int, n_calls: int) -> Figures:
    """Measure an aiohttp server whose handler awaits a call that computes. Its clients are in another process."""
    from aiohttp import web

    async with _submitter(way, n_workers) as submit:

        async def handle(_: web.Request) -> web.Response:
            return web.Response(text=str(await submit(primes_below, N_PRIMES)))

        server = web.Application()
        server.router.add_get("/", handle)
        runner = web.AppRunner(server, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        program = "from asyncio_ways import clients; clients()"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, f"http://{host}:{port}/", str(n_calls)), stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await process.communicate()
        await runner.cleanup()
        if process.returncode != 0:
            raise RuntimeError(f"the clients ended with exit status {process.returncode}")
        figures: Figures = json.loads(printed)
        return figures


def clients() -> None:
    """Be the clients of the server: print their figures."""
    import aiohttp

    url, n_calls = sys.argv[1], int(sys.argv[2])

    async def measure() -> Figures:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=N_CLIENTS)) as session:

            async def get() -> str:
                async with session.get(url) as response:
                    return await response.text() if response.status == 200 else f"status {response.status}"

            return await _measure_clients(get, answer(), n_calls)

    print(json.dumps(asyncio.run(measure())))


# ---- stalls ----


async def _longest_turn_s(block: Callable[[], Awaitable[Any]]) -> float:
    """Await a block, and return the longest time between two turns of the loop meanwhile."""
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
        await block()
    finally:
        is_over = True
        await watching
    return longest_s


async def measure_stalls(way: str, n_workers: int, n_calls: int) -> Figures:
    """Measure for how long opening and ending `n_calls` pools stop the loop, which nothing else keeps busy."""

    async def open_and_end() -> None:
        async with ComposablePool.aopen(n_workers, kind=way.removeprefix(OURS)) as pool:
            await pool.apply_async(short, (100,))
        await pool.ajoin()

    block = partial(asyncio.sleep, _IDLE_S) if way == NOTHING else open_and_end
    stalls_s = [await _longest_turn_s(block) for _ in range(n_calls)]
    return {"median_stall_ms": 1000 * statistics.median(stalls_s), "longest_stall_ms": 1000 * max(stalls_s)}


def main() -> None:
    """Measure as the command line says, and print the figures."""
    section, way, n_workers, n_calls = sys.argv[1:]
    measure = {"calls": measure_calls, "server": measure_server, "stalls": measure_stalls}[section]
    print(json.dumps(asyncio.run(measure(way, int(n_workers), int(n_calls)))), flush=True)
