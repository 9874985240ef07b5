"""Nodes that are ranks of an MPI program: having each open a session, and the messages to and from them.

The ranks are the workers of an executor of mpi4py.futures, which is used only to begin the sessions there. No process
is spawned. If a rank is lost, MPI ends the whole program.
"""

from __future__ import annotations

import itertools
import threading
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from mpi4py import MPI, futures
from mpi4py.futures import _core

from pool_party._cluster import ranks
from pool_party._cluster.distant import Terms
from pool_party._ground.broken import ClusterLost
from pool_party._ground.errors import PoolPartyError
from pool_party._ground.log import log_exception
from pool_party._ground.threads import PoolThread, start_thread

OPEN_S = 30.0  # how long opening waits for the ranks
TAG_MAX = 32767  # which every MPI library allows

_tags = itertools.count(1)
_beginning = threading.Lock()  # held until all ranks have begun a session: those of two pools could wait for each other


def has_ranks() -> bool:
    """Return whether this program has other ranks, which wait for tasks.

    Raises:
        ValueError: The other ranks run the program as well, and do not wait for tasks.
    """
    if MPI.COMM_WORLD.size == 1:
        return False
    if _core.SharedPool is None:  # then an executor would spawn processes
        raise ValueError(
            "kind='mpi' needs ranks that wait for tasks: start the program by "
            "`mpiexec -n N python -m mpi4py.futures PROGRAM`, or pass the executor of MPICommExecutor as client"
        )
    return True


def _look() -> list[int]:
    """Run in any rank that waits for tasks: return which ranks of the program do."""
    if MPI.Comm.Get_parent() != MPI.COMM_NULL:
        raise PoolPartyError("kind='mpi' does not use spawned processes: pass the executor of MPICommExecutor")
    group, world = futures.get_comm_workers().Get_group(), MPI.COMM_WORLD.Get_group()
    found: list[int] = MPI.Group.Translate_ranks(group, list(range(group.size)), world)
    return found


def _serve(members: list[int], tag: int) -> None:
    from pool_party._cluster.node.mpi import serve

    serve(members, tag)


class MpiTransport:
    """Carries the messages of a pool to and from the ranks of an MPI program.

    Args:
        executor: The program's own, of mpi4py.futures, whose workers are the ranks. None: one is made for opening.
        terms: What sessions open their pools with; see `distant.Terms`.

    Raises:
        TypeError: It is no such executor.
    """

    def __init__(self, executor: Any, terms: Terms) -> None:
        if executor is not None and not isinstance(executor, futures.MPIPoolExecutor):
            raise TypeError(f"client must be an executor of mpi4py.futures, not {executor!r}")
        self._owns_executor = executor is None
        self._executor = executor or futures.MPIPoolExecutor()
        self._terms = terms
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._told: SimpleQueue[tuple[int, Any]] = SimpleQueue()  # how opening goes on: a rank, and its answer
        self._n_ranks = 0
        self._ending = threading.Lock()  # guards the next two
        self._mail: ranks.Mail | None = None
        self._drains: bool | None = None  # what the end was asked for with; None: it was not
        self._thread = PoolThread(self._run, "pool_party-mail", None)

    def open(self, inbox: SimpleQueue[Any]) -> None:
        self._inbox = inbox
        deadline = monotonic() + OPEN_S
        ranks.check_threads()
        try:
            members = self._executor.submit(_look).result(OPEN_S)
            self._n_ranks = len(members)
            self._members = [MPI.COMM_WORLD.rank, *members]
            self._tag = next(_tags) % TAG_MAX
            if not _beginning.acquire(timeout=max(0.0, deadline - monotonic())):
                raise TimeoutError
            self._begin()
            for _ in members:
                self._join(*self._told.get(timeout=max(0.0, deadline - monotonic())))
        except (TimeoutError, Empty):
            self.close(drains=False)
            raise TimeoutError(f"not all ranks have answered for {OPEN_S:g} s: they may run other tasks") from None
        except BaseException:
            self.close(drains=False)
            raise

    def _begin(self) -> None:
        """Have all ranks begin. Called with the lock, which the thread releases."""
        try:
            self._begun = [self._executor.submit(_serve, self._members, self._tag) for _ in self._members[1:]]
            start_thread(self._thread)
        except BaseException:
            _beginning.release()
            raise

    def _join(self, rank: int, answer: Any) -> None:
        if isinstance(answer, BaseException):
            raise answer
        what, value = answer
        if what == "refused":
            raise PoolPartyError(f"rank {self._members[rank]} cannot open a pool: {value}")
        mail = self._mail
        assert mail is not None
        self._inbox.put(("joined", self._name_of(rank), value, partial(mail.put, rank)))

    def _name_of(self, rank: int) -> str:
        return f"rank {self._members[rank]}"

    def close(self, drains: bool) -> None:
        with self._ending:
            is_first, self._drains = self._drains is None, drains
            if is_first and self._mail is not None:
                self._ask_to_end(self._mail)
        if self._owns_executor and self._thread.ident is None:  # which would do that
            self._executor.shutdown(wait=False)
        if self._mail is not None:  # otherwise a rank is busy with other tasks, and the thread waits for it
            self._thread.join(ranks.END_S + 1)

    def _ask_to_end(self, mail: ranks.Mail) -> None:
        for rank in range(1, self._n_ranks + 1):
            mail.put(rank, ("end", self._drains))

    # ---- the thread that talks to the ranks ----

    def _run(self) -> None:
        try:
            try:
                comm = ranks.join(self._members, self._tag)
            finally:
                _beginning.release()
                if self._owns_executor:
                    self._executor.shutdown(wait=False)
            ranks.n_cpus_each(comm)
            mail = ranks.Mail(comm)
            for rank in range(1, self._n_ranks + 1):
                mail.put(rank, ("open", self._terms))
            with self._ending:
                self._mail = mail
                if self._drains is not None:  # opening was given up meanwhile
                    self._ask_to_end(mail)
            self._talk(mail)
            mail.flush()
            mail.free()
        except BaseException as error:
            log_exception("the ranks of a pool cannot be reached any more")
            self._told.put((0, error))
            self._inbox.put(("failed", ClusterLost(f"the ranks cannot be reached any more: {error!r}")))

    def _talk(self, mail: ranks.Mail) -> None:
        """Pass on messages until all sessions have ended."""
        n_open = self._n_ranks
        while n_open:
            for rank, batch in mail.take():
                messages = []
                for message in batch:
                    if message[0] in ("opened", "refused"):
                        self._told.put((rank, message))
                    elif message[0] == "ended":
                        n_open -= 1
                    else:
                        messages.append(message)
                if messages:
                    self._inbox.put(("messages", self._name_of(rank), messages))
