"""The measurements of cluster_size.py, each made in a separate process, and the simulated nodes that they need.

    python -c 'from cluster_size_ways import main; main()' N_NODES N_WORKERS TASK_MS SCALE N_SLOTS

prints the figures as JSON. The pool and its broker are the real ones. Only the transport is replaced: `Nodes` answers
as the sessions of real nodes do (pool_party/_cluster/node/session.py), but runs no tasks.
"""

import json
import random
import statistics
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import cycle
from math import inf
from queue import Empty, SimpleQueue
from time import clock_gettime, perf_counter, process_time, pthread_getcpuclockid, sleep
from typing import Any

from fresh import Figures

from pool_party import ComposablePool, _config, _native
from pool_party._cluster import distant

LATENCY_S = 0.0002  # of the simulated network, one way
SPREAD = 0.1  # tasks take up to this share more or less than they should, so that they do not all end at once
CEILING_PER_S = 150_000  # more tasks per second than any pool reaches
WINDOW_S, WARM_S, CALLS_S = 2.0, 1.0, 1.0
N_CALLS = 200

_OUTCOME = _native.STATUS_OK, distant.encode(None)

type Message = tuple[Any, ...]


def nothing(x: object = None) -> object:
    """Return the argument. No node calls this: it stands for work that takes as long as the simulation says."""
    return x


class Node:
    """A node that only knows which tasks it has, and how many of them its workers run."""

    __slots__ = ("n_running", "n_workers", "name", "waiting")

    def __init__(self, name: str, n_workers: int) -> None:
        self.name = name
        self.n_workers = n_workers
        self.n_running = 0
        self.waiting: OrderedDict[int, None] = OrderedDict()  # numbers of tasks that no worker has begun


class Nodes:
    """A transport to simulated nodes. One thread moves their time on, which is the real time.

    An event that the thread is late for happens at its own time nevertheless, since real nodes would not wait for this
    process. So lateness delays the answers and not the nodes.
    """

    def __init__(self, n_nodes: int, n_workers: int, task_s: float, n_joined: int | None = None) -> None:
        """n_joined: the number of nodes that are there from the beginning; None: all."""
        self.nodes = [Node(f"node {n}", n_workers) for n in range(n_nodes)]
        self.n_done = 0
        self._n_joined = n_nodes if n_joined is None else n_joined
        chosen = random.Random(1)
        self._durations_s = cycle([task_s * chosen.uniform(1 - SPREAD, 1 + SPREAD) for _ in range(1000)])
        self._sent: SimpleQueue[tuple[float, Node, Message] | None] = SimpleQueue()
        self._there: deque[tuple[float, Node, Message]] = deque()  # on their way to nodes: when they arrive
        self._back: deque[tuple[float, Node, Message]] = deque()  # on their way to the pool
        self._ends: list[tuple[float, int, Node]] = []  # a heap of tasks that run: when they end
        self._is_closing = False
        self.thread = threading.Thread(target=self._run, name="nodes", daemon=True)

    # ---- for the broker ----

    def open(self, inbox: SimpleQueue[Any]) -> None:
        """Let the first nodes join."""
        self._inbox = inbox
        self.thread.start()
        self._join(self.nodes[: self._n_joined])

    def close(self, drains: bool) -> None:
        """End the simulation."""
        self._is_closing = True
        self._sent.put(None)
        self.thread.join()

    def join_others(self) -> None:
        """Let the others join."""
        self._join(self.nodes[self._n_joined :])

    def _join(self, nodes: list[Node]) -> None:
        for node in nodes:
            self._inbox.put(("joined", node.name, node.n_workers, self._sender(node)))

    def _sender(self, node: Node) -> Callable[[Message], None]:
        put = self._sent.put
        return lambda message: put((perf_counter() + LATENCY_S, node, message))

    # ---- the simulation ----

    def _run(self) -> None:
        while not self._is_closing:
            while not self._sent.empty():
                self._note_sent(self._sent.get())
            now_s = perf_counter()
            self._move_to(now_s)
            self._deliver(now_s)
            self._wait(min(queue[0][0] if queue else inf for queue in (self._there, self._back, self._ends)))

    def _note_sent(self, sent: tuple[float, Node, Message] | None) -> None:
        if sent is not None:
            self._there.append(sent)

    def _wait(self, until_s: float) -> None:
        left_s = until_s - perf_counter()
        if LATENCY_S < left_s:
            try:
                self._note_sent(self._sent.get(timeout=None if until_s == inf else left_s))
            except Empty:
                pass
        elif left_s > 0:  # what is sent meanwhile arrives later than that
            sleep(left_s)

    def _move_to(self, now_s: float) -> None:
        """Do what happens on nodes until now, in the order of time."""
        there, ends = self._there, self._ends
        while True:
            is_message = bool(there) and not (ends and ends[0][0] < there[0][0])
            if not (there or ends) or (there if is_message else ends)[0][0] > now_s:
                return
            if is_message:
                at_s, node, message = there.popleft()
                self._handle(node, message, at_s)
            else:
                at_s, number, node = heappop(ends)
                node.n_running -= 1
                self._end(node, number, *_OUTCOME, at_s)
            self._begin(node, at_s)

    def _begin(self, node: Node, at_s: float) -> None:
        while node.waiting and node.n_running < node.n_workers:
            number, _ = node.waiting.popitem(last=False)
            node.n_running += 1
            heappush(self._ends, (at_s + next(self._durations_s), number, node))

    def _end(self, node: Node, number: int, status: int, value: Any, at_s: float) -> None:
        self.n_done += 1
        n_spare = len(node.waiting) + node.n_running - node.n_workers
        self._back.append((at_s + LATENCY_S, node, ("outcome", number, status, value, n_spare)))

    def _handle(self, node: Node, message: Message, at_s: float) -> None:
        match message:
            case ("run", _, _, batch):
                node.waiting.update((number, None) for number, *_ in batch)
            case ("give_back", n):
                numbers = [node.waiting.popitem()[0] for _ in range(min(n, len(node.waiting)))]
                self._back.append((at_s + LATENCY_S, node, ("given_back", numbers)))
            case ("withdraw", numbers, is_asked):
                withdrawn = [number for number in numbers if node.waiting.pop(number, self) is None]
                refused = [number for number in numbers if number not in withdrawn]
                self._back.append((at_s + LATENCY_S, node, ("withdrawn", withdrawn, refused, is_asked)))
            case ("stop", number):
                if node.waiting.pop(number, self) is None:
                    self._end(node, number, _native.STATUS_CANCELLED, None, at_s)

    def _deliver(self, now_s: float) -> None:
        """Tell the pool what has arrived. What a node has sent meanwhile arrives together, as in a connection."""
        arrived: dict[str, list[Message]] = {}
        while self._back and self._back[0][0] <= now_s:
            _, node, message = self._back.popleft()
            arrived.setdefault(node.name, []).append(message)
        for name, messages in arrived.items():
            self._inbox.put(("messages", name, messages))


# ---- the measurements ----


def _open(nodes: Nodes) -> ComposablePool:
    _config._transport_to = lambda *args: nodes
    return ComposablePool(1, kind="dask")


def _cpu_s() -> dict[str, float]:
    """Return the CPU time of the broker's threads, of the simulation, and of the whole process."""
    clocks = {thread.name: pthread_getcpuclockid(thread.ident) for thread in threading.enumerate() if thread.ident}
    times_s = {name.removeprefix("pool_party-"): clock_gettime(clock) for name, clock in clocks.items()}
    return {name: times_s[name] for name in ("dispatcher", "receiver", "nodes")} | {"all": process_time()}


def measure_map(pool: ComposablePool, nodes: Nodes, scale: float, task_s: float) -> Figures:
    """Tasks per second of a map that lasts, once every worker has worked, and CPU time for each."""
    warm_s, window_s = scale * WARM_S + 3 * task_s, scale * WINDOW_S
    n_workers = sum(node.n_workers for node in nodes.nodes)
    most_per_s = min(CEILING_PER_S, n_workers / task_s) if task_s else CEILING_PER_S
    result = pool.map_async(nothing, range(int(1.5 * most_per_s * (warm_s + window_s)) + 3 * n_workers), 1)
    result.wait(warm_s)
    begin_s, begin_n, before_s = perf_counter(), nodes.n_done, _cpu_s()
    result.wait(window_s)
    taken_s, n, after_s = perf_counter() - begin_s, nodes.n_done - begin_n, _cpu_s()
    if result.ready():
        raise RuntimeError("the map ended too early")
    used_us = {name: 1e6 * (after_s[name] - before_s[name]) / n for name in after_s}
    ours_us = used_us["all"] - used_us["nodes"]
    figures = {"tasks_per_s": n / taken_s, "us_per_task": ours_us}
    figures |= {f"{name}_us": used_us[name] for name in ("dispatcher", "receiver", "nodes")}
    return figures | {"caller_us": ours_us - used_us["dispatcher"] - used_us["receiver"]}


def _calls_ms(pool: ComposablePool, for_s: float) -> list[float]:
    """Return the times of calls, one after the other."""
    taken_ms: list[float] = []
    end_s = perf_counter() + for_s
    while len(taken_ms) < 3 or (perf_counter() < end_s and len(taken_ms) < N_CALLS):
        begin_s = perf_counter()
        pool.apply(nothing)
        taken_ms.append(1e3 * (perf_counter() - begin_s))
    return taken_ms


def measure_calls(pool: ComposablePool, n_ahead: int, scale: float, task_s: float) -> Figures:
    """The time of a call while nothing else runs, and while a stream of other tasks keeps the workers busy."""
    figures = {"call_ms": statistics.median(_calls_ms(pool, scale * CALLS_S))}
    is_over = False

    def load() -> None:
        values = iter(lambda: is_over, True)
        for _ in pool.imap_unordered(nothing, values, buffersize=n_ahead):
            pass

    thread = threading.Thread(target=load)
    thread.start()
    sleep(scale * WARM_S + 3 * task_s)
    figures["call_beside_ms"] = statistics.median(_calls_ms(pool, scale * CALLS_S))
    is_over = True
    thread.join()
    return figures


def measure_join(pool: ComposablePool, nodes: Nodes) -> Figures:
    """The time in which all other nodes join a pool that has one."""
    n_workers = sum(node.n_workers for node in nodes.nodes)
    begin_s = perf_counter()
    nodes.join_others()
    while pool.statistics().n_workers < n_workers:
        sleep(0.0005)
    return {"join_ms": 1e3 * (perf_counter() - begin_s)}


def measure(n_nodes: int, n_workers: int, task_s: float, scale: float) -> Figures:
    """All figures, with two pools: one finds all nodes, and one begins with a single node."""
    nodes = Nodes(n_nodes, n_workers, task_s)
    begin_s = perf_counter()
    pool = _open(nodes)
    figures: Figures = {"open_ms": 1e3 * (perf_counter() - begin_s)}
    figures |= measure_map(pool, nodes, scale, task_s)
    pool.terminate()
    pool.join()

    nodes = Nodes(n_nodes, n_workers, task_s, n_joined=1)
    pool = _open(nodes)
    figures |= measure_join(pool, nodes)
    figures |= measure_calls(pool, min(2 * n_nodes * n_workers, _config.N_REMOTE_SLOTS), scale, task_s)
    begin_s = perf_counter()
    pool.close()
    pool.join()
    return figures | {"close_ms": 1e3 * (perf_counter() - begin_s)}


def main() -> None:
    """Measure as the command line says, and print the figures."""
    n_nodes, n_workers, task_ms, scale, n_slots = sys.argv[1:]
    _config.N_REMOTE_SLOTS = int(n_slots)
    print(json.dumps(measure(int(n_nodes), int(n_workers), float(task_ms) / 1e3, float(scale))), flush=True)
