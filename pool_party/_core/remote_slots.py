"""The worker set of a pool whose workers are on other machines: to the engine what `workers.WorkerSet` is.

Its workers are the slots of a broker, which live as long as the pool. A node that is lost fails its tasks, and no slot.
"""

from __future__ import annotations

from pool_party._workers.base import WorkerHandle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pool_party._cluster.broker import Broker
    from pool_party._observe.trace import Tracing

END_S = 12.0  # how long the pool's end waits for the sessions on nodes


class RemoteSlots:
    """The slots of a pool. Methods are for the background thread alone, unless a heading says otherwise."""

    enforcer: Any = None
    relay: Any = None
    memory_limit = 0
    n_starting = 0  # nodes join with workers that may still start

    def __init__(self, broker: Broker) -> None:
        self.slots: list[WorkerHandle | None] = [None] * broker.n_slots
        self.is_stopping = False
        self.tracing: Tracing | None = None
        self._broker = broker

    # ---- starting ----

    def prepare(self) -> None:
        """Connect to the cluster. Raises whatever prevents it."""
        self._broker.open()

    def start(self) -> None:
        """Begin to run tasks."""
        self._broker.start()

    def follow(self) -> None:
        """Do nothing: `start` has begun all."""

    # ---- looking after them ----

    def note_ready(self) -> None:
        """Do nothing: all slots are ready from their start."""

    def take_ended(self) -> list[WorkerHandle]:
        """Return nothing: no slot ends before the pool."""
        return []

    def remove(self, worker: WorkerHandle, was_lost: bool) -> None:
        """Never called, since no slot ends."""
        raise NotImplementedError

    def put_away(self, worker: WorkerHandle, n_done: int) -> str | None:
        """Never called, since no slot ends."""
        raise NotImplementedError

    def fill_slots(self) -> Exception | None:
        """Do nothing: the broker finds new nodes."""
        return None

    def look_at_memory(self) -> None:
        """Do nothing: nodes look after the memory of their workers."""

    def retry_in_s(self) -> float | None:
        """Nothing must be called again."""
        return None

    # ---- ending them; any thread ----

    def stop(self) -> None:
        """Note that the pool ends, once the channel is stopped or has nothing to do."""
        self.is_stopping = True

    def interrupt(self) -> None:
        """Do nothing: `terminate` ends the tasks."""

    def terminate(self, spares_idle: bool = False) -> bool:
        """Stop what runs. Does not block."""
        self._broker.end()
        return True

    kill = terminate

    def kill_if(self, n: int, holds: object, number: int = 9, patience_s: float | None = None) -> bool:
        """Do nothing: no process of another machine is killed for one task."""
        return True

    def interrupt_task(self, n: int, begun_ns: int) -> bool:
        """Have the node of a slot's task end it, if it can."""
        self._broker.give_up(n)
        return True

    def wait_ended(self) -> None:
        """After `terminate`: wait for the end of all sessions, within limits."""
        self._broker.join(END_S)

    def give_up(self) -> None:
        """After a failed start: end what was started."""
        self.terminate()
        self.wait_ended()

    def is_over(self) -> bool:
        """Whether all sessions have ended. If the pool ends, that begins here, at the latest."""
        if self.is_stopping:
            self._broker.end()
        return self.is_stopping and self._broker.is_over

    def end_threads(self) -> None:
        """Wait for the broker's own threads."""
        self._broker.join(END_S)

    # ---- looking; any thread ----

    @property
    def n_workers(self) -> int:
        """The number of workers on all nodes now, but at least 1."""
        return max(1, self._broker.n_workers)

    @property
    def n_started(self) -> int:
        """The number of workers on all nodes that have ever joined."""
        return self._broker.n_started

    @property
    def n_lost(self) -> int:
        """The number of workers on nodes that were lost."""
        return self._broker.n_lost

    def budget(self) -> tuple[str | None, tuple[int, ...], int, int, int, float]:
        """Return what a pool without a policy returns: each node has its own budgets."""
        return None, (), 0, 0, 0, 0.0
