"""How does the cost of a pool on other machines grow with their number?

    python benchmarks/cluster_size.py [--quick] [--nodes N...] [--workers N...] [--task-ms N...] [--json FILE]

The pool and its broker are the real ones, and the nodes are simulated: a thread answers in their place at the right
times, over a network of 0.2 ms each way. So one machine can show what a thousand cost the program that uses them. What
is left out is the transport: Dask's connections, and pickling messages for them.

Of the three bounds the lowest holds: the workers, the tasks that a pool has under way at most (--slots), and the
ceiling, which is the rate of one node whose tasks take no time. CPU time is that of this process without the thread of
the simulation.
"""

import argparse
from math import inf

from cluster_size_ways import LATENCY_S
from fresh import begin, end
from program import Record, Result, Runs, add_repeats, add_workers, finish, gather, make_parser, medians
from tables import ms, number, ratio, table, us

from pool_party import _config

_TIMEOUT_S = 300.0
_QUICK_SCALE = 0.1
_CEILING = 1, 0.0  # nodes, and ms of a task
_COLUMNS = {
    "tasks_per_s": ("tasks per second", number),
    "share": ("of ideal", ratio),
    "share_of_bound": ("of the bound", ratio),
    "us_per_task": ("CPU time of a task", us),
    "dispatcher_us": ("dispatcher", us),
    "receiver_us": ("receiver", us),
    "caller_us": ("caller", us),
    "nodes_us": ("simulation", us),
    "call_ms": ("one call", ms),
    "call_beside_ms": ("beside a full load", ms),
    "open_ms": ("open", ms),
    "join_ms": ("join later", ms),
    "close_ms": ("close", ms),
}

type _Case = tuple[int, float]  # nodes, and ms of a task


def _name(case: _Case) -> str:
    n_nodes, task_ms = case
    return f"{n_nodes} node{'s' * (n_nodes != 1)}, {task_ms:g} ms"


def _measure(n_workers: int, cases: list[_Case], options: argparse.Namespace) -> Runs:
    by_name = {_name(case): case for case in cases}
    scale = _QUICK_SCALE if options.quick else 1.0

    def measure(name: str) -> Result:
        n_nodes, task_ms = by_name[name]
        return end(begin("cluster_size_ways", [n_nodes, n_workers, task_ms, scale, options.slots]), _TIMEOUT_S)

    return gather(_section(n_workers), list(by_name), 1 if options.quick else options.repeats, measure)


def _section(n_workers: int) -> str:
    return f"{n_workers} worker{'s' * (n_workers != 1)} a node"


def sum_up(n_workers: int, cases: list[_Case], runs: Runs, n_slots: int) -> dict[str, dict[str, float]]:
    """Return the medians of each case, with the bounds and the shares of them that were reached."""
    sums = {}
    ceiling = medians(runs.figures[_name(_CEILING)])["tasks_per_s"] if _name(_CEILING) in runs.figures else inf
    for case in cases:
        if _name(case) not in runs.figures:
            continue
        n_nodes, task_ms = case
        found = medians(runs.figures[_name(case)])
        ideal = min(ceiling, n_nodes * n_workers * 1e3 / task_ms if task_ms else inf)
        bound = min(ideal, n_slots / (task_ms / 1e3 + 2 * LATENCY_S))
        shares = {"share": found["tasks_per_s"] / ideal, "share_of_bound": found["tasks_per_s"] / bound}
        about = {"n_nodes": n_nodes, "task_ms": task_ms, "ideal_per_s": ideal, "bound_per_s": bound}
        sums[_name(case)] = about | found | shares
    return sums


def _format(sums: dict[str, dict[str, float]]) -> str:
    rows = [[name, *(write(found[key]) for key, (_, write) in _COLUMNS.items())] for name, found in sums.items()]
    headings = ["", *(heading for heading, _ in _COLUMNS.values())]
    return table(headings, rows)


def main() -> int:
    """Measure as the command line says, and print a table for each number of workers."""
    parser = make_parser(__doc__)
    add_workers(parser, several=True, default="1 and 16, on each node")
    add_repeats(parser, 3)
    parser.add_argument("--nodes", nargs="+", type=int, default=[1, 10, 100, 1000], metavar="N")
    parser.add_argument("--task-ms", nargs="+", type=float, default=[1.0, 10.0, 100.0], metavar="N")
    parser.add_argument(
        "--slots", type=int, default=_config.N_REMOTE_SLOTS, metavar="N", help="tasks under way at most: %(default)s"
    )
    options = parser.parse_args()
    cases = [_CEILING, *((n_nodes, task_ms) for task_ms in options.task_ms for n_nodes in options.nodes)]
    numbers = options.workers or [1, 16]
    record = Record(__doc__, max(numbers), options)
    record.put("n_slots", options.slots)
    has_failed = False
    for n_workers in numbers:
        runs = _measure(n_workers, cases, options)
        sums = sum_up(n_workers, cases, runs, options.slots)
        record.show(f"{_section(n_workers)}:", _format(sums), runs.failure_text())
        record.put_section(_section(n_workers), runs.as_json(sums))
        has_failed |= bool(runs.failures)
    return int(has_failed)


if __name__ == "__main__":
    finish(main)
