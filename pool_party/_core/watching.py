"""Who is told of every pool of this process: the runner, which counts and traces pools; in other programs nobody."""

from __future__ import annotations

from pool_party._ground.log import log_exception

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pool_party._core.engine import Engine

    Watcher = Callable[[Engine], Any]

on_open: list[Watcher] = []  # called in the thread that opens a pool, once it runs
on_end: list[Watcher] = []  # called in the pool's background thread after the last worker has ended


def tell(watchers: list[Watcher], engine: Engine) -> None:
    """Call each of them. An error is logged, and changes nothing for the pool."""
    for watcher in watchers:
        try:
            watcher(engine)
        except Exception:
            log_exception("a pool could not be watched")
