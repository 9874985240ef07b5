"""What one run of the demonstration does."""

import os
from dataclasses import dataclass
from pathlib import Path

POOL_KINDS = ("thread", "process", "interp")
_MAX_DEFAULT_WORKERS = 8  # guess: with more workers, starting them would take a large part of such a short run


@dataclass(frozen=True, slots=True)
class Problems:
    """A set of eigenvalue problems: `count` random matrices of `order` rows and columns."""

    order: int
    count: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The work and the workers.

    The sequential run always comes first, because the others are compared with it.
    """

    output: Path
    n_workers: int
    kinds: tuple[str, ...]
    width_px: int
    height_px: int
    tile_px: int
    sweep: tuple[Problems, ...]


def default_n_workers() -> int:
    """Return the number of CPUs that this process may use, at most 8."""
    return min(len(os.sched_getaffinity(0)), _MAX_DEFAULT_WORKERS)


def make_plan(
    output: Path,
    n_workers: int,
    kinds: tuple[str, ...] = POOL_KINDS,
    *,
    quick: bool = False,
    size_px: tuple[int, int] | None = None,
    with_numpy: bool = True,
) -> Plan:
    """Return the plan of a full demonstration (under a minute on 2 cores) or of a `quick` one.

    A tile is a sixteenth of the picture wide, so that there are well over a hundred of them. The problems of each order
    take one worker about a second, or a quarter of that if `quick`.
    """
    width_px, height_px = size_px or ((320, 180) if quick else (640, 360))
    share = 4 if quick else 1
    sweep = (Problems(40, 1600 // share), Problems(120, 160 // share), Problems(300, 24 // share))
    return Plan(
        output=output,
        n_workers=n_workers,
        kinds=kinds,
        width_px=width_px,
        height_px=height_px,
        tile_px=max(1, width_px // 16),
        sweep=sweep if with_numpy else (),
    )
