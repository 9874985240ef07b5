"""Measures a piece of work: wall time, CPU time and memory of this process and its descendants.

Everything is read from Linux's /proc. Memory is PSS, the proportional set size, if the kernel reports it
(/proc/PID/smaps_rollup): a page that k processes share counts 1/k in each, so the sum over a process tree is right.
Otherwise it is RSS, which counts shared pages once per process.
"""

import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SCHEDULER_CLOCK = 2  # CPUCLOCK_SCHED of Linux: user and system time, in nanoseconds


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of a block. `peak_bytes` is None if no memory figure is available.

    `others_cpu_s` is the CPU time of all other programs meanwhile. It tells how far the other figures can be trusted.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int | None
    others_cpu_s: float = 0.0

    @property
    def cores(self) -> float:
        """The average number of busy cores."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on (the second may contain spaces)."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _parent_of(pid: int) -> int | None:
    with suppress(OSError):
        return int(_stat_fields(pid)[1])
    return None


def _children_from_scan(parents: set[int]) -> set[int]:
    everybody = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    return {pid for pid in everybody if _parent_of(pid) in parents}


def _children_from_tasks(parents: set[int]) -> set[int]:
    """Return the children that the kernel lists for every thread of `parents`, without a scan of /proc."""
    children: set[int] = set()
    for pid in parents:
        with suppress(FileNotFoundError, ProcessLookupError):
            for task in (_PROC / str(pid) / "task").iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):
                    children.update(map(int, (task / "children").read_text().split()))
    return children


def process_tree(root: int) -> list[int]:
    """Return the ids of a process and of all its descendants, ancestors first."""
    has_lists = (_PROC / f"{root}/task/{root}/children").exists()
    children_of = _children_from_tasks if has_lists else _children_from_scan
    tree, generation = [root], {root}
    while generation := children_of(generation) - set(tree):
        tree += generation
    return tree


def _cpu_of_process_s(pid: int) -> float:
    """Return the CPU time of a process and of those of its children that it has waited for.

    Its own part is exact (the clock of clock_getcpuclockid(3)); its children's part is in ticks.
    """
    with suppress(OSError):
        own_s = time.clock_gettime((~pid << 3) | _SCHEDULER_CLOCK)
        fields = _stat_fields(pid)
        return own_s + (int(fields[13]) + int(fields[14])) / _TICKS_PER_S
    return 0.0


def cpu_of_tree_s(root: int) -> float:
    """Return the CPU time that a process and its descendants, dead or alive, have used so far."""
    return sum(map(_cpu_of_process_s, process_tree(root)))


def cpu_of_machine_s() -> float:
    """Return the CPU time that all programs have used so far, without idle time and I/O wait."""
    total = (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, total)
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def _pss_bytes(pid: int) -> int:
    for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no Pss in /proc/{pid}/smaps_rollup")


def _rss_bytes(pid: int) -> int:
    return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE_BYTES


def memory_measure() -> str:
    """Return which memory figure this system offers: "PSS", "RSS", or "" for none."""
    for name, read in (("PSS", _pss_bytes), ("RSS", _rss_bytes)):
        with suppress(OSError):
            read(os.getpid())
            return name
    return ""


def memory_bytes(pids: Iterable[int], measure: str) -> int:
    """Return the memory of some processes in total. A process that has just ended counts nothing."""
    read = {"PSS": _pss_bytes, "RSS": _rss_bytes}[measure]
    total = 0
    for pid in pids:
        with suppress(OSError):
            total += read(pid)
    return total


class Meter:
    """Measures the block of a `with` statement. `usage` is available after it.

    A thread samples the memory every `interval_s` seconds. Other processes of the tree that existed before, such as a
    fork server of an earlier pool, are not counted.
    """

    usage: Usage

    def __init__(self, interval_s: float = 0.1) -> None:
        self._interval_s = interval_s
        self._measure = memory_measure()
        self._lock = threading.Lock()  # guards _peak_bytes, which the sampler and sample() write
        self._peak_bytes = 0
        self._stop = threading.Event()
        self._sampler = threading.Thread(target=self._sample_until_stopped, daemon=True)

    def __enter__(self) -> Self:
        self._root = os.getpid()
        self._not_ours = set(process_tree(self._root)) - {self._root}
        self._sampler.start()
        self._cpu_before_s = cpu_of_tree_s(self._root)
        self._machine_before_s = cpu_of_machine_s()
        self._started_s = time.perf_counter()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        wall_s = time.perf_counter() - self._started_s
        cpu_s = cpu_of_tree_s(self._root) - self._cpu_before_s
        others_s = max(0.0, cpu_of_machine_s() - self._machine_before_s - cpu_s)
        self._stop.set()
        self._sampler.join()
        self.usage = Usage(wall_s, cpu_s, self._peak_bytes or None, others_s)

    def sample(self) -> None:
        """Include the memory in use now, as the sampler does by itself. Thread-safe."""
        if not self._measure:
            return
        ours = [pid for pid in process_tree(self._root) if pid not in self._not_ours]
        now_bytes = memory_bytes(ours, self._measure)
        with self._lock:
            self._peak_bytes = max(self._peak_bytes, now_bytes)

    def _sample_until_stopped(self) -> None:
        self.sample()
        while not self._stop.wait(self._interval_s):
            self.sample()
