"""Messages of a session on their way into a connection of Dask. Both sides use it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from distributed.protocol.serialize import ToPickle

from pool_party._cluster.distant import Envelope
from pool_party._ground.log import log_exception


class Outbox:
    """Messages that wait to be written. Any thread may put one; the loop of the connection writes them."""

    def __init__(self, event_loop: asyncio.AbstractEventLoop) -> None:
        self._loop = event_loop
        self._messages: deque[tuple[Any, ...]] = deque()
        self._is_told = False  # the writer was told of a message, and has not taken it yet
        self._is_filled = asyncio.Event()

    def put(self, message: tuple[Any, ...]) -> None:
        """Have a message written soon, behind those that were put before. Does not block."""
        self._messages.append(message)
        if self._is_told:  # the writer takes this one, too: it clears the flag before it takes any
            return
        self._is_told = True
        try:
            self._loop.call_soon_threadsafe(self._is_filled.set)
        except RuntimeError:
            pass  # the loop has ended, and the connection with it

    async def write_to(self, comm: Any) -> None:
        """Write messages as they come, as many at once as there are, until this is cancelled or the connection ends.

        If a message cannot be written, the connection is ended.
        """
        while True:
            await self._is_filled.wait()
            self._is_filled.clear()
            self._is_told = False
            batch = []
            while self._messages:
                batch.append(self._messages.popleft())
            try:
                await comm.write({"messages": ToPickle(Envelope(batch))})
            except OSError:
                comm.abort()  # whoever reads sees it, too
                return
            except Exception:
                log_exception("a message could not be written, so its session ends")
                comm.abort()
                return
