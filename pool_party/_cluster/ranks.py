"""Messages between the ranks of an MPI program: between rank 0 of a communicator of ours, and the others.

Both sides use it. A batch of messages is one pickle, whose large buffers travel beside it as messages of MPI, without a
copy. MPI has no call that waits for a message of another process and for one of this process, and most of its libraries
wait by spinning. So a thread looks for messages again and again, at longer intervals the longer none has come.
"""

from __future__ import annotations

import functools
import os
import pickle
import threading
from queue import Empty, SimpleQueue
from typing import Any

from mpi4py import MPI

from pool_party._ground.errors import PoolPartyError

HEAD, BODY = 1, 2  # tags: the pickle of a batch, with the sizes of its buffers; one of these
BESIDE_MIN = 1 << 16  # bytes; smaller buffers are copied into the pickle; guess
PIECE = 1 << 30  # bytes of a buffer in one message of MPI; many of its libraries count them in 32 bits
PAUSE_S, PAUSE_MAX_S = 100e-6, 1e-3  # between looks for messages; the long one is that of mpi4py.futures
N_SHORT = 100  # looks with the short pause after the last message; guess: fewer delay calls, and more take CPU time
END_S = 10.0  # how long a rank waits for the end of its session, which kills tasks after 3 s but cannot kill threads


def check_threads() -> None:
    """Raise PoolPartyError if MPI may be called by one thread only."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise PoolPartyError("kind='mpi' needs an MPI library that several threads may call (MPI_THREAD_MULTIPLE)")


def join(members: list[int], tag: int) -> Any:
    """Return a communicator of these ranks of the program. All of them must call it, and it waits for them.

    tag: distinguishes what several threads do at a time.
    """
    world = MPI.COMM_WORLD
    group = world.Get_group().Incl(members)
    try:
        return world.Create_group(group, tag)
    finally:
        group.Free()


def n_cpus_each(comm: Any) -> int:
    """Return this rank's part of the CPUs of its machine, which the other ranks there have parts of as well.

    Rank 0 is left out, since it runs no tasks. All ranks must call it.
    """
    own = (_own_cpu_count(), os.sched_getaffinity(0), comm.rank > 0)
    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    every: list[tuple[int, set[int], bool]] = here.allgather(own)
    here.Free()
    n_cpus, cpus, _ = own
    n_sharing = sum(works and not cpus.isdisjoint(others) for _, others, works in every)
    return max(1, n_cpus // max(1, n_sharing))


@functools.cache
def _own_cpu_count() -> int:
    """Return the number of CPUs of this rank as it was before any session has reduced it."""
    from pool_party._budget import topology

    return topology.cpu_count()


class Mail:
    """Messages from and to the ranks of a communicator. Any thread may call `put`, and one thread the others.

    "end" and "ended" are the last messages to a rank. MPI gives the number of a communicator that was freed to a later
    one, which would receive what comes behind them.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._waiting: SimpleQueue[tuple[int, tuple[Any, ...]]] = SimpleQueue()
        self._putting = threading.Lock()  # guards the next
        self._ended: set[int] = set()  # ranks that were sent their last message
        self._sending: list[tuple[Any, Any]] = []  # requests, and what they need until they are done
        self._status = MPI.Status()
        self._n_looks = 0  # since the last message

    def put(self, rank: int, message: tuple[Any, ...]) -> None:
        """Have a message sent soon, behind those that were put for this rank before. Does not block.

        It is dropped if that rank was sent its last message.
        """
        with self._putting:
            if rank in self._ended:
                return
            if message[0] in ("end", "ended"):
                self._ended.add(rank)
            self._waiting.put((rank, message))

    def take(self) -> list[tuple[int, list[Any]]]:
        """Send what was put. Return batches of messages that have come, with their senders; they may be none.

        Blocks until there is something to do, but for a short time only.
        """
        is_sent = self._send_all(self._next_put(self._pause()))
        batches = self._receive_all()
        self._n_looks = 0 if batches or is_sent else self._n_looks + 1
        return batches

    def _pause(self) -> float:
        if self._sending:  # MPI sends large messages only while it is called
            return 0
        return PAUSE_S if self._n_looks < N_SHORT else PAUSE_MAX_S

    def flush(self) -> None:
        """Send what was put, and wait until all has gone."""
        self._send_all(self._next_put(0))
        MPI.Request.Waitall([request for request, _ in self._sending])
        self._sending.clear()

    def free(self) -> None:
        """Free the communicator. All ranks must call it."""
        self._comm.Free()

    # ---- sending ----

    def _next_put(self, timeout: float) -> tuple[int, tuple[Any, ...]] | None:
        try:
            return self._waiting.get(timeout > 0, timeout)
        except Empty:
            return None

    def _send_all(self, first: tuple[int, tuple[Any, ...]] | None) -> bool:
        """Begin to send all that was put. Return whether there was something."""
        self._sending = [(request, sent) for request, sent in self._sending if not request.Test()]
        batches: dict[int, list[Any]] = {}
        while first is not None:
            rank, message = first
            batches.setdefault(rank, []).append(message)
            first = self._next_put(0)
        for rank, messages in batches.items():
            self._send(rank, messages)
        return bool(batches)

    def _send(self, rank: int, messages: list[Any]) -> None:
        beside: list[memoryview] = []

        def keep(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            is_small = raw.nbytes < BESIDE_MIN
            if not is_small:
                beside.append(raw)
            return is_small

        encoded = pickle.dumps(messages, 5, buffer_callback=keep)
        head = pickle.dumps((encoded, [(part.nbytes, part.readonly) for part in beside]), 5)
        self._begin(rank, HEAD, head)
        for part in beside:
            for at in range(0, part.nbytes, PIECE):
                self._begin(rank, BODY, part[at : at + PIECE])

    def _begin(self, rank: int, tag: int, data: Any) -> None:
        self._sending.append((self._comm.Isend([data, MPI.BYTE], rank, tag), data))

    # ---- receiving ----

    def _receive_all(self) -> list[tuple[int, list[Any]]]:
        batches = []
        while self._comm.Iprobe(MPI.ANY_SOURCE, HEAD, self._status):
            rank = self._status.source
            head = bytearray(self._status.Get_count(MPI.BYTE))
            self._comm.Recv([head, MPI.BYTE], rank, HEAD)
            encoded, sizes = pickle.loads(head)
            batches.append((rank, pickle.loads(encoded, buffers=[self._receive(rank, *size) for size in sizes])))
        return batches

    def _receive(self, rank: int, size: int, is_readonly: bool) -> Any:
        part = bytearray(size)
        with memoryview(part) as view:
            for at in range(0, size, PIECE):
                self._comm.Recv([view[at : at + PIECE], MPI.BYTE], rank, BODY)
        return memoryview(part).toreadonly() if is_readonly else part
