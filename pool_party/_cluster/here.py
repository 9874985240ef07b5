"""A cluster of one node, which is inside this process: what runs the tasks if no cluster is named.

So a program can be tried without a cluster. Nothing listens on a network. Messages are copied, as a network would.
"""

from __future__ import annotations

import pickle
import threading
from queue import SimpleQueue
from typing import Any

from pool_party._cluster.distant import Terms
from pool_party._cluster.node.session import Session
from pool_party._ground.threads import start_thread

NAME = "inside this process"


def _copied[T](message: T) -> T:
    """Return the message as another machine would get it, so that no task shares memory with the program."""
    copied: T = pickle.loads(pickle.dumps(message, 5))
    return copied


class Here:
    """Carries the messages of a pool to and from a session in this process.

    Args:
        n_workers: The number of workers.
        terms: What the session opens its pool with; see `distant.Terms`.
    """

    def __init__(self, n_workers: int, terms: Terms) -> None:
        self._n_workers = n_workers
        self._terms = terms
        self._messages: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def open(self, inbox: SimpleQueue[Any]) -> None:
        session = Session(
            _copied(self._terms), self._n_workers, lambda message: inbox.put(("messages", NAME, [_copied(message)]))
        )
        self._thread = threading.Thread(target=session.handle_all, args=(self._messages,), name="pool_party-session")
        inbox.put(("joined", NAME, session.n_workers, lambda message: self._messages.put(_copied(message))))
        start_thread(self._thread)  # what it tells comes behind

    def close(self, drains: bool) -> None:
        if self._thread is not None:
            self._messages.put(("end", drains))
            self._thread.join()
