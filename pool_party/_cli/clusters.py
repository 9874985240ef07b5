"""`pool-party doctor --cluster`: what the workers of a Dask cluster have, what differs, and how far away they are."""

import statistics
from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any

from pool_party._cluster.node import checks
from pool_party._measuring.table import format_table

N_ECHOES = 20
N_BYTES = 8 << 20
PATIENCE_S = 30.0
_COMPARED = {
    "pool_party": "pool_party",
    "python": "Python",
    "machine": "machine",
}  # what must be the same, and its name


def check(address: str) -> tuple[list[str], list[str]]:
    """Return lines about the workers of a cluster, and lines about what is wrong.

    address: of the scheduler, or the path of a scheduler file. Raises: ImportError without distributed; OSError, if the
    scheduler does not answer.
    """
    import distributed

    where = {"address": address} if ":" in address else {"scheduler_file": address}
    with distributed.Client(**where, set_as_default=False, timeout=PATIENCE_S) as client:
        n_threads: Mapping[str, int] = client.nthreads()
        found = client.run(checks.look, on_error="return") if n_threads else {}
        distances = {name: client.sync(_measure, client, name) for name in n_threads}
    return [_table(n_threads, found, distances)], [*_problems(n_threads, found)]


async def _measure(client: Any, address: str) -> tuple[float, float]:
    """Return the time of a message to a worker and back in seconds, and the bytes per second of a large one."""
    from distributed.protocol.serialize import to_serialize

    worker, taken_s = client.rpc(address), []
    for _ in range(N_ECHOES):
        begin_s = perf_counter()
        await worker.echo(data=None)
        taken_s.append(perf_counter() - begin_s)
    begin_s = perf_counter()
    await worker.echo(data=to_serialize(bytes(N_BYTES)))
    return statistics.median(taken_s), 2 * N_BYTES / (perf_counter() - begin_s)


def _table(n_threads: Mapping[str, int], found: Mapping[str, Any], distances: Mapping[str, tuple[float, float]]) -> str:
    headings = ("worker", "host", "pool_party", "Python", "CPUs", "threads", "kinds", "there and back", "bandwidth")
    rows = []
    for address, n in n_threads.items():
        latency_s, bytes_per_s = distances[address]
        distance = f"{1000 * latency_s:.2f} ms", f"{bytes_per_s / 1e6:,.0f} MB/s"
        node = found[address]
        if isinstance(node, dict):
            what = node["host"], node["pool_party"], node["python"], str(node["n_cpus"]), str(n), node["kinds"]
        else:
            what = "?", "?", "?", "?", str(n), "?"
        rows.append((address, *what, *distance))
    return format_table(headings, rows) if rows else "there is no worker"


def _problems(n_threads: Mapping[str, int], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what keeps a pool from working there, or may surprise its tasks."""
    if not n_threads:
        yield "the cluster has no worker: tasks would wait until one joins"
    here, hosts = checks.look(), [node["host"] for node in found.values() if isinstance(node, dict)]
    for address, node in found.items():
        if isinstance(node, ImportError):
            yield f"{address} has no pool_party: install composable-pool {here['pool_party']} there ({node})"
        elif not isinstance(node, dict):
            yield f"{address} does not answer: {node!r}"
        else:
            for key, name in _COMPARED.items():
                if node[key] != here[key]:
                    yield f"{name} is {node[key]} at {address}, and {here[key]} here"
            for name, version in node["packages"].items():
                if version != (ours := here["packages"][name]):
                    yield f"{name} is {version or 'missing'} at {address}, and {ours or 'missing'} here"
            if n_threads[address] > node["n_cpus"]:
                yield f"{address} has {n_threads[address]} threads for {node['n_cpus']} CPUs"
    for host in sorted({host for host in hosts if hosts.count(host) > 1}):
        yield f"{host} has {hosts.count(host)} Dask workers: one with all threads is better, for budgets and for memory"
