"""Answer web requests that compute for long, without keeping other requests waiting.

    python examples/web_server.py [--kind KIND] [--context METHOD] [--quick]

A handler that computes stops an asyncio server, which has one thread. What `submit` returns is awaited instead.

The program is server and client at once: it asks for several long computations at a time (how many primes are below a
number), and for /ping meanwhile. It prints the answers, whether they are right, and how long the slowest ping took.
"""

import argparse
import asyncio
import functools
import sys
import time
from asyncio import StreamReader, StreamWriter

from pool_party import ComposableExecutor


def count_primes(limit: int) -> int:
    """Return the number of primes below `limit`, found by trial division."""
    return sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, limit))


async def handle(executor: ComposableExecutor | None, reader: StreamReader, writer: StreamWriter) -> None:
    """Answer one request; without an executor the server's own thread computes."""
    path = (await reader.readuntil(b"\r\n\r\n")).decode().split()[1]
    if path == "/ping":
        body = "pong"
    elif executor is None:
        body = count_primes(int(path[1:]))
    else:
        body = await executor.submit(count_primes, int(path[1:]))
    writer.write(f"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{body}".encode())
    writer.close()


async def get(port: int, path: str) -> str:
    """Return the body of a web page."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    response = await reader.read()
    writer.close()
    return response.partition(b"\r\n\r\n")[2].decode()


async def visit(executor: ComposableExecutor | None, limits: list[int]) -> tuple[list[str], float]:
    """Ask a new server for all computations at once and ping it meanwhile; return the answers and the slowest ping."""
    async with await asyncio.start_server(functools.partial(handle, executor), "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        pages = [asyncio.create_task(get(port, f"/{limit}")) for limit in limits]
        slowest_s = 0.0
        while not all(page.done() for page in pages):
            started_s = time.perf_counter()
            await get(port, "/ping")
            slowest_s = max(slowest_s, time.perf_counter() - started_s)
            await asyncio.sleep(0.005)
        return [page.result() for page in pages], slowest_s


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=("thread", "process", "interp"), default="interp")
    parser.add_argument("--context", choices=("fork", "forkserver", "spawn"), help="how processes start")
    parser.add_argument("--quick", action="store_true", help="short computations")
    args = parser.parse_args()
    limits = [2_000 + 10 * n if args.quick else 150_000 + 1_000 * n for n in range(8)]
    answers, alone_s = asyncio.run(visit(None, limits))
    with ComposableExecutor(kind=args.kind, context=args.context) as executor:
        pool_answers, pool_s = asyncio.run(visit(executor, limits))
    is_right = answers == pool_answers == [str(count_primes(limit)) for limit in limits]
    print(f"primes: {' '.join(pool_answers)}; all right: {'yes' if is_right else 'NO'}")
    print(f"slowest ping: {1000 * alone_s:.0f} ms if the handler computes, {1000 * pool_s:.0f} ms if workers do")
    return is_right


if __name__ == "__main__":
    sys.exit(not main())
