"""The nodes of a broker: what each has, and which of them can take tasks or give some back."""

from __future__ import annotations

from collections import OrderedDict
from heapq import nlargest

from pool_party._cluster import distant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator
    from typing import Any

    from pool_party._cluster.slots import Task

AHEAD = 2  # tasks of a node for each of its workers, at least and at first


class Node:
    """The session of a node, with the tasks, the functions and the parts of shared memory that were sent there."""

    def __init__(self, name: str, n_workers: int, send: Callable[[tuple[Any, ...]], None]) -> None:
        self.name = name
        self.n_workers = n_workers
        self.send = send
        self.tasks: dict[int, Task] = {}
        self.limit = AHEAD * n_workers  # tasks that it may have
        self.functions: set[int] = set()
        self.parts: set[int] = set()
        self.is_asked = False  # to give back tasks; until it has, or after it had none until its next outcome
        self.noted = 0, 0  # its idle workers and its room, as `Nodes` has counted them

    @property
    def n_idle(self) -> int:
        """The number of workers without a task."""
        return max(0, self.n_workers - len(self.tasks))

    @property
    def n_spare(self) -> int:
        """The number of tasks without a worker."""
        return max(0, len(self.tasks) - self.n_workers)

    @property
    def room(self) -> int:
        """The number of tasks that it may have besides those that it has."""
        return max(0, self.limit - len(self.tasks))

    def send_tasks(self, batch: list[Task]) -> None:
        """Send tasks that it was given, with the functions and the parts of shared memory that it does not have."""
        functions = {task.function.number: task.function.encoded for task in batch if task.function is not None}
        parts = {part.number: distant.Shared(part.content) for task in batch for part in task.parts}
        for fresh, known in ((functions, self.functions), (parts, self.parts)):
            for number in known.intersection(fresh):
                del fresh[number]
            known.update(fresh)
        self.send(("run", functions, parts, [task.message for task in batch]))

    def keep_only(self, functions: set[int], parts: set[int]) -> None:
        """Have the node forget all others."""
        forgotten = [*(self.functions - functions), *(self.parts - parts)]
        if forgotten:
            self.functions &= functions
            self.parts &= parts
            self.send(("forget", forgotten))


class Nodes:
    """All nodes, and groups of them that are kept up to date, so that no message costs more if there are more nodes.

    `note` is called after each change of a node's tasks, of its limit, or of `is_asked`. Everything is guarded by the
    broker's lock.
    """

    def __init__(self) -> None:
        self.n_idle = 0  # workers without a task
        self.n_room = 0  # tasks that all nodes would take
        self._by_name: dict[str, Node] = {}
        self._idle: OrderedDict[Node, None] = OrderedDict()  # nodes with idle workers
        self._open: OrderedDict[Node, None] = OrderedDict()  # nodes with room
        self._spare: OrderedDict[Node, None] = OrderedDict()  # nodes that can be asked to give back tasks

    def __iter__(self) -> Iterator[Node]:
        return iter(self._by_name.values())

    def add(self, node: Node) -> None:
        """Add a node, which has no tasks yet."""
        self._by_name[node.name] = node
        self.note(node)

    def get(self, name: str) -> Node | None:
        """Return the node of this name, if it is there."""
        return self._by_name.get(name)

    def remove(self, name: str) -> Node | None:
        """Remove a node, and return it if it was there."""
        node = self._by_name.pop(name, None)
        if node is not None:
            self._count(node, 0, 0, is_spare=False)
        return node

    def note(self, node: Node) -> None:
        """Count a node anew."""
        self._count(node, node.n_idle, node.room, is_spare=bool(node.n_spare) and not node.is_asked)

    def _count(self, node: Node, n_idle: int, n_room: int, is_spare: bool) -> None:
        was_idle, had_room = node.noted
        node.noted = n_idle, n_room
        self.n_idle += n_idle - was_idle
        self.n_room += n_room - had_room
        for group, belongs in ((self._idle, n_idle), (self._open, n_room), (self._spare, is_spare)):
            if belongs:
                group.setdefault(node)
            else:
                group.pop(node, None)

    def share_out(self, waiting: deque[Task]) -> None:
        """Send waiting tasks to nodes that take them: first one for each idle worker, then evenly."""
        batches: dict[Node, list[Task]] = {}

        def give(node: Node, n: int) -> None:
            batch = [waiting.popleft() for _ in range(min(n, node.room, len(waiting)))]
            for task in batch:
                node.tasks[task.number] = task
                task.slot.node = node
            batches.setdefault(node, []).extend(batch)
            self.note(node)

        while waiting and self._idle:
            node = next(iter(self._idle))
            give(node, node.n_idle)
        share = -(-len(waiting) // max(1, len(self._open)))
        while waiting and self._open:
            node = next(iter(self._open))
            self._open.move_to_end(node)  # so that tasks that come one by one are shared out evenly, too
            give(node, share)
        for node, batch in batches.items():
            node.send_tasks(batch)

    def ask_back(self) -> None:
        """Call tasks back from the nodes that have most tasks without workers, as many as there are idle workers."""
        n_left = self.n_idle
        asked = nlargest(n_left, self._spare, key=lambda node: node.n_spare) if n_left else ()
        for node in asked:
            n = min(n_left, node.n_spare)
            if not n:
                return
            node.is_asked = True
            self.note(node)
            node.send(("give_back", n))
            n_left -= n
