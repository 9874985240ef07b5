"""Nodes that are workers of Dask (`dask.distributed`): finding them, and the connections to their sessions.

Dask's own tasks are not used. The scheduler is asked which workers there are, and has each new one install our handler
(`node/dask.py`). The program then connects to it directly, and tasks and outcomes pass without the scheduler. So
nothing is run again that may have run, and no keyword of a task is taken for one of Dask's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import socket
import sys
import threading
from collections.abc import Coroutine
from queue import SimpleQueue
from time import monotonic, sleep
from typing import Any

import distributed
from distributed.comm import connect
from distributed.protocol.serialize import ToPickle

from pool_party._cluster.distant import Envelope, Terms
from pool_party._cluster.outbox import Outbox
from pool_party._ground.broken import ClusterLost
from pool_party._ground.errors import PoolPartyError
from pool_party._ground.log import log_exception

LOOK_S = 0.5  # between questions to the scheduler which workers it has
PATIENCE_S = 5.0  # how long the scheduler may not answer before the cluster is lost
SCHEDULER_S = 8.0  # how long opening waits until the scheduler answers
RETRY_S = 0.1  # between two attempts to reach it
OPEN_S = 30.0  # how long it waits for the sessions
CONNECT_S = 15.0  # how long it waits for the workers that are there, which may import much first
END_S = 10.0  # how long the end waits for sessions; they kill tasks after 3 s
VERSION: str = sys.modules["pool_party"].__version__
N_TRIES = 3  # to use a worker that joins later, before it is left alone; one that does not answer is tried on and on


def _install(dask_worker: Any) -> dict[str, Any]:
    """Run in each Dask worker, which has this module if it has pool_party."""
    from pool_party._cluster.node.dask import install

    return install(dask_worker)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_protected(address: str) -> bool:
    """Whether nobody on the way can read or change what a connection carries: it is encrypted, or does not leave us."""
    scheme, _, rest = address.partition("://")
    return scheme in ("tls", "wss", "inproc", "ucxx+tls") or _is_loopback(rest.rpartition(":")[0].strip("[]"))


class _Connection:
    """The connection to one Dask worker."""

    def __init__(self, comm: Any, outbox: Outbox) -> None:
        self.comm = comm
        self.outbox = outbox
        self.ended = asyncio.Event()


def _await_greeting(address: str) -> None:
    """Wait until a scheduler says something, which it does first. Raises: OSError if none does.

    `distributed.Client` waits for ever for a server of another protocol, such as that of the scheduler's dashboard.
    """
    scheme, _, place = address.rpartition("://")
    host, _, port = place.rpartition(":")
    if scheme not in ("", "tcp") or not port.isdigit():
        return
    until_s = monotonic() + SCHEDULER_S
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), SCHEDULER_S) as connected:
                connected.settimeout(SCHEDULER_S)
                if not connected.recv(1):
                    raise ConnectionError("it has closed the connection")
                return
        except ConnectionRefusedError:  # the scheduler may be starting
            if monotonic() > until_s:
                raise
            sleep(RETRY_S)


class DaskTransport:
    """Carries the messages of a pool to and from the workers of a Dask cluster.

    Args:
        address: Of the scheduler, or a path of a scheduler file, or a cluster object; None: that of `client`.
        client: The program's own `distributed.Client`, which is left open.
        terms: What sessions open their pools with; see `distant.Terms`.
        insecure: Whether connections that others may read and change are used.

    Raises:
        ValueError: The loop of the client would wait for itself.
    """

    def __init__(self, address: Any, client: Any, terms: Terms, insecure: bool) -> None:
        if client is not None and client.asynchronous:  # which it is only in the thread of its loop
            raise ValueError("client must not be asynchronous: the loop that it runs in would wait for itself")
        self._address = address
        self._client = client
        self._terms = terms
        self._insecure = insecure
        self._owns_client = client is None
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._connections: dict[str, _Connection] = {}
        self._numbers = itertools.count()  # of sessions, which make the names of nodes: one may have several in turn
        self._tasks: set[asyncio.Task[None]] = set()  # of the loop, which would forget them
        self._connecting: set[str] = set()  # addresses that `_watch` has found
        self._silent: set[str] = set()  # addresses whose workers have not answered in time, which was logged
        self._n_refused: dict[str, int] = {}  # by address: how often no session could be opened, or it had no workers
        self._is_closing = False
        self._closing = threading.Lock()

    # ---- for the broker ----

    def open(self, inbox: SimpleQueue[Any]) -> None:
        self._inbox = inbox
        try:
            if isinstance(self._address, str) and "://" in self._address:
                self._check_safety(self._address)
            self._find_client()
            self._check_safety(self._client.scheduler.address)
            self._await(self._begin(), OPEN_S)
        except BaseException:
            self.close(drains=False)
            raise

    def close(self, drains: bool) -> None:
        with self._closing:
            if self._is_closing:
                return
            self._is_closing = True
        try:
            if self._client is not None and self._client.status != "closed":
                self._await(self._end(drains), END_S)
        except Exception:
            log_exception("the sessions of a pool on Dask did not end in time")
        finally:
            if self._owns_client and self._client is not None:
                self._client.close()

    # ---- the cluster ----

    def _find_client(self) -> None:
        if self._client is None:
            is_file = isinstance(self._address, str) and ":" not in self._address
            where = {"scheduler_file": self._address} if is_file else {"address": self._address}
            try:
                if isinstance(self._address, str) and not is_file:
                    _await_greeting(self._address)
                self._client = distributed.Client(**where, set_as_default=False, timeout=SCHEDULER_S)
            except OSError as error:
                raise ConnectionError(
                    f"no Dask scheduler answers at {self._address or 'the address in the settings of Dask'} within "
                    f"{SCHEDULER_S:g} s: give the address that the scheduler prints at its start, not that of its "
                    f"dashboard ({error})"
                ) from error

    def _check_safety(self, address: str) -> None:
        if not self._insecure and not is_protected(address):
            raise ValueError(
                f"the connection to {address} is not encrypted, so that others on its way can read the tasks and run "
                "code in your name: use tls:// (docs/howto/clusters.md), or pass insecure=True if you trust the network"
            )

    def _await[Value](self, coroutine: Coroutine[Any, Any, Value], timeout: float) -> Value:
        """Run a coroutine in the client's loop, and wait for it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._client.loop.asyncio_loop)
        try:
            return future.result(timeout)
        finally:
            future.cancel()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin(self) -> None:
        """Connect to the workers that are there, unless they do not answer.

        If one refuses, its error is raised, since others probably would as well.
        """
        found = await self._client.scheduler.ncores()
        outcomes = await asyncio.gather(*(self._connect_in_time(address) for address in found), return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        refusals = [error for error in errors if not isinstance(error, OSError)]  # TimeoutError is an OSError
        if refusals or len(errors) == len(outcomes) > 0:
            raise (refusals or errors)[0]
        self._spawn(self._watch())

    async def _watch(self) -> None:
        """Connect to workers that come, and notice if the scheduler goes."""
        while not self._is_closing:
            await asyncio.sleep(LOOK_S)
            found = await self._ask_scheduler()
            if found is None or self._is_closing:
                return
            for address in found.keys() - self._connections.keys() - self._connecting:
                if self._n_refused.get(address, 0) < N_TRIES:
                    self._connecting.add(address)
                    self._spawn(self._try_to_connect(address))

    async def _ask_scheduler(self) -> dict[str, int] | None:
        """Return the addresses of all workers. None: it has not answered for PATIENCE_S, which is told."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        reason: Exception = TimeoutError("no answer")
        while (left := deadline - loop.time()) > 0:
            try:
                found: dict[str, int] = await asyncio.wait_for(self._client.scheduler.ncores(), left)
                return found
            except Exception as error:  # which ones Dask raises is not documented
                reason = error
                await asyncio.sleep(min(LOOK_S, max(0.0, deadline - loop.time())))
        if not self._is_closing:
            self._inbox.put(("failed", ClusterLost(f"the Dask scheduler does not answer: {reason!r}")))
        return None

    # ---- connections ----

    async def _try_to_connect(self, address: str) -> None:
        try:
            await self._connect_in_time(address)
        except TimeoutError:  # it may be stopped, or very busy
            if address not in self._silent and not self._is_closing:
                self._silent.add(address)
                log_exception("the Dask worker %s is not used until it answers", address)
        except Exception:
            if self._note_refusal(address) == N_TRIES and not self._is_closing:
                log_exception("the Dask worker %s is not used", address)
        finally:
            self._connecting.discard(address)

    def _note_refusal(self, address: str) -> int:
        self._n_refused[address] = self._n_refused.get(address, 0) + 1
        return self._n_refused[address]

    async def _connect_in_time(self, address: str) -> None:
        try:
            await asyncio.wait_for(self._connect(address), CONNECT_S)
        except TimeoutError:
            raise TimeoutError(f"the Dask worker {address} has not answered for {CONNECT_S:g} s") from None

    async def _connect(self, address: str) -> None:
        """Open a session in a Dask worker. Raises: why it cannot be used."""
        self._check_safety(address)
        await self._install(address)
        comm = await connect(address, **self._client.connection_args)
        try:
            await comm.write({"op": "pool_party", "reply": False, "terms": ToPickle(Envelope(self._terms))})
            hello = await comm.read()
            if "refused" in hello:
                raise PoolPartyError(f"the Dask worker {address} cannot open a pool: {hello['refused']}")
        except BaseException:
            comm.abort()
            raise
        connection = self._connections[address] = _Connection(comm, Outbox(asyncio.get_running_loop()))
        name = f"{address}, session {next(self._numbers)}"
        self._inbox.put(("joined", name, hello["n_workers"], connection.outbox.put))
        self._spawn(connection.outbox.write_to(comm))
        self._spawn(self._read(address, name, connection))

    async def _install(self, address: str) -> None:
        answers = await self._client._run(_install, workers=[address], on_error="return")
        answer = answers.get(address)
        if isinstance(answer, ImportError):
            raise PoolPartyError(
                f"the Dask worker {address} has no pool_party: install composable-pool {VERSION} there ({answer!r})"
            )
        if not isinstance(answer, dict):
            raise PoolPartyError(f"the Dask worker {address} does not answer: {answer!r}")
        if answer["version"] != VERSION:
            raise PoolPartyError(
                f"the Dask worker {address} has version {answer['version']} of pool_party, and this program has "
                f"{VERSION}: install the same"
            )

    async def _read(self, address: str, name: str, connection: _Connection) -> None:
        """Pass on the messages of a session, and notice if it is lost."""
        reason = "the session has ended"
        try:
            while True:
                answer = await connection.comm.read()
                messages = answer["messages"].message
                self._inbox.put(("messages", name, messages))
                if any(what == "unusable" for what, *_ in messages):
                    self._note_refusal(address)
        except Exception as error:  # the connection is lost, or carries what cannot be decoded
            reason = str(error) or repr(error)
        finally:
            connection.comm.abort()
            connection.ended.set()
            del self._connections[address]
        if not self._is_closing and await self._ask_scheduler() is not None:  # otherwise that is told, for all nodes
            self._inbox.put(("lost", name, reason))

    async def _end(self, drains: bool) -> None:
        """Ask all sessions to end, and wait until they have."""
        connections = list(self._connections.values())
        for connection in connections:
            connection.outbox.put(("end", drains))
        waits = [asyncio.wait_for(connection.ended.wait(), END_S - 1) for connection in connections]
        await asyncio.gather(*waits, return_exceptions=True)
        for connection in connections:
            connection.comm.abort()
        for task in self._tasks.copy():
            task.cancel()
