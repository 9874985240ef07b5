"""Records what the workers of all pools of a program do, in a file for each pool."""

import itertools
import os
from typing import TYPE_CHECKING

from pool_party._core import watching

if TYPE_CHECKING:
    from pool_party._core.engine import Engine

_MAX_EVENTS = 100_000  # for each pool, as for `ComposablePool.trace`


def arrange(path: str) -> None:
    """Have every pool that this process opens from now on write its trace when it ends.

    path: an absolute path, which is that of the first one's file. Child processes record nothing.
    """
    pid = os.getpid()
    numbers = itertools.count(1)
    root, suffix = os.path.splitext(path)

    def trace(engine: "Engine") -> None:
        if os.getpid() == pid:
            number = next(numbers)
            engine.trace(path if number == 1 else f"{root}-{number}{suffix}", _MAX_EVENTS)

    watching.on_open.append(trace)
