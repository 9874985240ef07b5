"""The workloads of the pool-party document (M. Droettboom), reimplemented, and their sizes.

original    as in the document, for 16 workers: 64 tasks (data_pass: 1,024, whose results are 2 GB unpickled)
small       a map takes 0.1 to 1 s on two CPUs
tiny        shows that it runs
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workloads.bodies import balance, nbody, nbody_no_share
from workloads.lists import data_pass
from workloads.rays import raytrace
from workloads.recursion import fib, fib2

SIZES = ("original", "small", "tiny")

type Scale = tuple[int, Any]  # number of tasks, and the argument that all of them get


@dataclass(frozen=True, slots=True)
class Workload:
    """A task, and how often it runs with which argument in each size."""

    task: Callable[[Any], Any]
    original: Scale
    small: Scale
    tiny: Scale

    @property
    def name(self) -> str:
        """The name of its benchmark."""
        return self.task.__name__

    def scale(self, size: str) -> Scale:
        """Return the number of tasks and the argument."""
        scale: Scale = getattr(self, size)
        return scale

    def arguments(self, size: str) -> list[Any]:
        """Return the argument of each task."""
        n_tasks, argument = self.scale(size)
        return [argument] * n_tasks


_ALL = (
    Workload(fib, (64, 28), (16, 26), (4, 10)),
    Workload(fib2, (64, 28), (16, 25), (4, 10)),
    Workload(nbody, (64, (10, 20_000)), (16, (1, 4_000)), (4, (2, 10))),
    Workload(nbody_no_share, (64, (10, 20_000)), (16, (1, 4_000)), (4, (2, 10))),
    Workload(raytrace, (64, (100, 100)), (16, (30, 30)), (4, (4, 4))),
    Workload(data_pass, (1024, (1000.0, 65_536)), (64, (1000.0, 65_536)), (4, (1000.0, 256))),
    Workload(balance, (64, (20_000, 65_536)), (16, (3_000, 65_536)), (4, (10, 256))),
)
WORKLOADS = {workload.name: workload for workload in _ALL}
