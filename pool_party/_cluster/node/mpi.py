"""Sessions in the ranks of an MPI program. `_cluster/mpi.py` has `serve` run in each.

The rank remains free for other tasks of mpi4py.futures, and for sessions of other pools: a session has threads of its
own. It ends when rank 0 asks for it.
"""

from __future__ import annotations

import threading
from functools import partial
from math import inf
from queue import SimpleQueue
from time import monotonic
from typing import Any

from pool_party._budget import topology
from pool_party._cluster import ranks
from pool_party._cluster.node import children
from pool_party._cluster.node.session import Session
from pool_party._ground.log import log_exception
from pool_party._ground.threads import start_thread
from pool_party._workers.loop import safe_repr


def serve(members: list[int], tag: int) -> None:
    """Join the other ranks, and begin a session. Waits for the other ranks."""
    comm = ranks.join(members, tag)
    n_cpus = ranks.n_cpus_each(comm)
    # Not a daemon: the rank must not end before the session does.
    threading.Thread(target=_run, args=(ranks.Mail(comm), n_cpus), name="pool_party-mail", daemon=False).start()


def _run(mail: ranks.Mail, n_cpus: int) -> None:
    """Carry the messages of a session until rank 0 ends it."""
    try:
        while not (messages := _take(mail)):
            pass
        environment = {"MPI4PY_RC_INITIALIZE": "0"}
        if n_cpus < topology.cpu_count():  # other ranks have the other CPUs
            environment[topology.OVERRIDE] = str(n_cpus)
        with children.prepared(environment):
            _run_session(mail, n_cpus, *messages)
        mail.put(0, ("ended",))
        mail.flush()
        mail.free()
    except BaseException:  # of MPI: whatever rank 0 waits for, it cannot be told
        log_exception("a session in this rank has failed")


def _take(mail: ranks.Mail) -> tuple[Any, ...]:
    """Return messages of rank 0, if some come within a short time."""
    return tuple(message for _, batch in mail.take() for message in batch)


def _run_session(mail: ranks.Mail, n_cpus: int, opening: tuple[Any, ...], *messages: tuple[Any, ...]) -> None:
    _, terms = opening
    try:
        session = Session(terms, n_cpus, partial(mail.put, 0))
    except Exception as error:
        mail.put(0, ("refused", safe_repr(error)))
        while not any(what == "end" for what, *_ in messages):
            messages = _take(mail)
        return
    inbox: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
    thread = threading.Thread(target=session.handle_all, args=(inbox,), name="pool_party-session")
    mail.put(0, ("opened", session.n_workers))
    start_thread(thread)
    deadline = inf
    try:
        while thread.is_alive() and monotonic() < deadline:
            for message in messages:
                inbox.put(message)
                if message[0] == "end":
                    deadline = monotonic() + ranks.END_S
            messages = _take(mail)
    finally:
        inbox.put(("end", False))
