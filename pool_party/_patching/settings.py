"""What `patch()` and `python -m pool_party` were asked for, as one value that child processes get, too."""

from __future__ import annotations

from pool_party._ground.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pool_party._ground.choices import PatchingKind


class Settings(NamedTuple):
    """How replaced pools are opened, and which parts are replaced. Immutable, and small when pickled."""

    kind: PatchingKind = "process"  # of workers in the place of processes: "process", "thread", "interp" or "auto"
    n_workers: int | None = None  # where the program names no number; None: see `patch`
    oversubscription: float = 1.0
    policy: str | None = None  # None: "dynamic"
    scope: str = "pool"  # or "machine"
    only: tuple[str, ...] = ()  # names of parts; empty: all
    excluded: tuple[str, ...] = ()
