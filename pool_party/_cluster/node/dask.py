"""Sessions in a Dask worker. `_cluster/dask.py` installs `serve` there as a handler, and connects to it.

A connection is a session, and the session ends with it, whichever side is lost. Messages of both directions are
lists under the key "messages". The loop of the Dask worker only reads and writes them. A thread of the session begins
the tasks, since that pickles, and may copy much.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from queue import SimpleQueue
from typing import Any

from pool_party._cluster.node.session import Session
from pool_party._cluster.outbox import Outbox
from pool_party._ground.threads import start_thread
from pool_party._workers.loop import safe_repr

OP = "pool_party"


def install(dask_worker: Any) -> dict[str, Any]:
    """Add the handler to a Dask worker, and return what a program must know of it before it connects."""
    import platform
    from multiprocessing import process

    # Nannies start Dask workers as daemons, which may have no children, since these would outlive a worker that is
    # killed. Ours do not.
    process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]

    async def handler(comm: Any, terms: Any) -> Any:
        return await serve(comm, terms, dask_worker.state.nthreads)

    dask_worker.handlers.setdefault(OP, handler)
    return {"version": sys.modules["pool_party"].__version__, "python": platform.python_version()}


async def serve(comm: Any, terms: Any, n_threads: int) -> Any:
    """Handle a connection: open a session, and carry its messages until the connection or the session ends."""
    from distributed.core import Status

    outbox = Outbox(asyncio.get_running_loop())
    try:
        session = await asyncio.to_thread(Session, terms.message, n_threads, outbox.put)
    except Exception as error:
        await comm.write({"refused": safe_repr(error)})
        return Status.dont_reply
    inbox: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
    thread = threading.Thread(target=session.handle_all, args=(inbox,), name="pool_party-session")
    start_thread(thread)
    writer = None
    try:
        await comm.write({"n_workers": session.n_workers})
        writer = asyncio.create_task(outbox.write_to(comm))  # messages come behind the answer
        await _read_all(comm, inbox)
    except OSError:
        pass  # the other side is lost
    finally:
        inbox.put(("end", False))
        await asyncio.to_thread(thread.join)
        if writer is not None:
            writer.cancel()
        comm.abort()  # the other side waits for this, and knows then that all has ended
    return Status.dont_reply


async def _read_all(comm: Any, inbox: SimpleQueue[tuple[Any, ...]]) -> None:
    """Pass on messages until one asks for the end."""
    while True:
        for message in (await comm.read())["messages"].message:
            inbox.put(message)
            if message[0] == "end":
                return
