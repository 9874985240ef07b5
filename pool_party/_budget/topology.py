"""Which CPUs there are, how they share cores and caches, and how many of them this process may use.

Everything is read from files below a root directory, so that a test can describe any machine. What a container or a
virtual machine does not report is assumed to be simple: a CPU without known siblings is a core of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable

from pool_party import _native
from pool_party._ground.records import NamedTuple

OVERRIDE = "POOL_PARTY_CPU_COUNT"
PYTHONS_OVERRIDE = "PYTHON_CPU_COUNT"

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"

# (type of file system, cgroup at its root, mount point)
_Mount = tuple[str, str, str]
_USUAL_MOUNTS: dict[str, list[_Mount]] = {
    "cpu": [("cgroup", "/", "/sys/fs/cgroup/cpu"), ("cgroup", "/", "/sys/fs/cgroup/cpu,cpuacct")],
    "memory": [("cgroup", "/", "/sys/fs/cgroup/memory")],
}
_USUAL_MOUNTS_2: list[_Mount] = [
    ("cgroup2", "/", "/sys/fs/cgroup"),
    ("cgroup2", "/", "/sys/fs/cgroup/unified"),
]


class Cpu(NamedTuple):
    """A logical CPU and what it shares. A core or a cache is identified by the number of its first CPU."""

    n: int
    core: int
    package: int
    cache: int  # the last-level cache, or the core if that is unknown
    node: int


class Topology(NamedTuple):
    """A machine's CPUs, and those of them that may be used.

    `cpus` and `allowed` are in topology order: by NUMA node, package, last-level cache and core. CPUs that share much
    are therefore neighbours, and siblings are adjacent. `quota` is the limit of the control groups in CPUs, or None.
    """

    cpus: tuple[Cpu, ...]
    allowed: tuple[int, ...]
    quota: float | None

    @property
    def n_cpus(self) -> int:
        """How many CPUs to use: the allowed ones, limited by the quota, which is rounded down to at least 1.

        It is rounded down because the kernel stops a group that exceeds its quota for the rest of each period, and
        because threads that spin at a barrier use it up. `nproc` and loky round up.
        """
        return _count_usable(len(self.allowed), self.quota)

    @property
    def usable(self) -> tuple[int, ...]:
        """The `n_cpus` CPUs to use, in topology order.

        If the quota limits them, other programs may choose the same CPUs under their own quotas. Use these for counting
        only; do not bind threads to them.
        """
        return self.choose(self.n_cpus)

    @property
    def cores(self) -> tuple[tuple[int, ...], ...]:
        """The allowed CPUs, grouped by core, in topology order."""
        may = set(self.allowed)
        return tuple(some for core in self._all_cores() if (some := tuple(n for n in core if n in may)))

    def choose(self, count: int) -> tuple[int, ...]:
        """Return at most `count` of the allowed CPUs, in topology order.

        Wholly allowed cores come before partly allowed ones.
        """
        if count >= len(self.allowed):
            return self.allowed
        may = set(self.allowed)
        by_wholeness = sorted(self._all_cores(), key=lambda core: not may.issuperset(core))  # the sort is stable
        chosen = set([n for core in by_wholeness for n in core if n in may][: max(count, 0)])
        return tuple(n for n in self.allowed if n in chosen)

    def _all_cores(self) -> list[list[int]]:
        cores: dict[int, list[int]] = {}
        for cpu in self.cpus:
            cores.setdefault(cpu.core, []).append(cpu.n)
        return list(cores.values())


def read(root: str = "/", allowed: Iterable[int] | None = None) -> Topology:
    """Read the topology that the files below `root` describe.

    `allowed` are the CPUs of the affinity mask, by default the calling thread's. If the mask and the list of online
    CPUs disagree, the mask is right: in containers that list is often invented. Raises ValueError if the mask is empty.
    """
    may = os.sched_getaffinity(0) if allowed is None else frozenset(allowed)
    return _restrict(_read_cpus(root, may), may, _read_quota(find_groups(root)))


def current() -> Topology:
    """Like `read()`, but cheap to call again: CPUs and the locations of limits are read only once.

    The calling thread's mask and the limits themselves are read each time. A CPU that came online after the first call
    counts as a core of its own. A process that moves to another control group keeps the limits of its first one.
    """
    may = os.sched_getaffinity(0)
    return _restrict(_known_cpus(), may, _read_quota(_known_groups()))


def cpu_count() -> int:
    """Return how many CPUs the calling thread may use: its affinity mask, cut by the quotas of its control groups.

    An override wins, whatever the machine has: first the environment variable POOL_PARTY_CPU_COUNT, then CPython's own
    `-X cpu_count` and PYTHON_CPU_COUNT, on Python 3.12 too. In a task the result is at most what the worker may use,
    since pools in workers share that.

    Returns:
        The number of CPUs, at least 1. A quota is rounded down.

    Raises:
        ValueError: An override is no positive integer.

    Guarantees:
        Any thread may call it, and it does not block. Environment, mask and quota are read in every call, also in a
        forked child.
    """
    n = _overriding_count()
    if n is None:
        n = _count_usable(len(os.sched_getaffinity(0)), _read_quota(_known_groups()))
    return min(n, _native.own_grant() or n)


# ---- overrides -------------------------------------------------------------


def _overriding_count() -> int | None:
    own = os.environ.get(OVERRIDE)
    if own:
        return _parse_override(OVERRIDE, own)
    name, value = "-X cpu_count", sys._xoptions.get("cpu_count")
    if value is None and not sys.flags.ignore_environment:
        name, value = PYTHONS_OVERRIDE, os.environ.get(PYTHONS_OVERRIDE) or None
    return None if value is None or value == "default" else _parse_override(name, value)


def _parse_override(name: str, value: str | bool) -> int:
    try:
        count = int(value) if isinstance(value, str) else 0  # True if the option has no value
    except ValueError:
        count = 0
    if count < 1:
        raise ValueError(f"{name} must be a positive number of CPUs, not {value!r}: change or unset it")
    return count


# ---- CPUs ------------------------------------------------------------------


_cpus: tuple[Cpu, ...] = ()  # of this machine, once they were read


def _known_cpus() -> tuple[Cpu, ...]:
    global _cpus
    _cpus = _cpus or _read_cpus("/", frozenset())
    return _cpus


def _read_cpus(root: str, besides: Iterable[int]) -> tuple[Cpu, ...]:
    """Read the CPUs that are online, and add those in `besides`. Return them in topology order."""
    numbers = sorted({*_read_list(root, f"{_CPUS}/online"), *besides})
    cores = _group(numbers, lambda n: _read_siblings(root, n))
    caches = _group(numbers, lambda n: _read_sharers(root, n))
    nodes = _read_nodes(root)
    packages = {n: _read_int(root, f"{_CPUS}/cpu{n}/topology/physical_package_id") for n in {*cores.values()}}
    # All CPUs of a core take the values of its first one. So siblings stay together, whatever the files say.
    cpus = [Cpu(n, first, packages[first], caches[first], nodes.get(first, 0)) for n, first in cores.items()]
    return tuple(sorted(cpus, key=lambda cpu: (cpu.node, cpu.package, cpu.cache, cpu.core, cpu.n)))


def _group(numbers: list[int], sharers_of: Callable[[int], set[int]]) -> dict[int, int]:
    """Map each CPU to the first member of its group. Only the files of that member are read."""
    groups: dict[int, int] = {}
    known = set(numbers)
    for n in numbers:
        if n not in groups:
            for other in {n, *(sharers_of(n) & known)}:
                groups.setdefault(other, n)
    return groups


def _read_siblings(root: str, n: int) -> set[int]:
    directory = f"{_CPUS}/cpu{n}/topology"
    return _read_list(root, f"{directory}/core_cpus_list") or _read_list(root, f"{directory}/thread_siblings_list")


def _read_sharers(root: str, n: int) -> set[int]:
    """Return the CPUs that share their last-level cache with this one."""
    directory = f"{_CPUS}/cpu{n}/cache"
    entries = [f"{directory}/{entry}" for entry in _list_directory(root, directory) if entry.startswith("index")]
    data = [entry for entry in entries if read_file(root, f"{entry}/type") != "Instruction"]
    last = max(data, key=lambda entry: _read_int(root, f"{entry}/level"), default=None)
    return _read_list(root, f"{last}/shared_cpu_list") if last else set()


def _read_nodes(root: str) -> dict[int, int]:
    """Return the NUMA node of each CPU."""
    nodes = {}
    for entry in _list_directory(root, _NODES):
        if entry.startswith("node") and entry[4:].isdecimal():
            for n in _read_list(root, f"{_NODES}/{entry}/cpulist"):
                nodes[n] = int(entry[4:])
    return nodes


def _restrict(cpus: tuple[Cpu, ...], may: Iterable[int], quota: float | None) -> Topology:
    may = set(may)
    if not may:
        raise ValueError("no CPU is allowed: the affinity mask must have at least one")
    strangers = sorted(may.difference(cpu.n for cpu in cpus))
    cpus += tuple(Cpu(n, n, 0, n, 0) for n in strangers)
    return Topology(cpus, tuple(cpu.n for cpu in cpus if cpu.n in may), quota)


# ---- quotas ----------------------------------------------------------------


def _count_usable(n_allowed: int, quota: float | None) -> int:
    return n_allowed if quota is None else max(1, min(n_allowed, int(quota)))


def _read_quota(groups: Iterable[str]) -> float | None:
    """Return the smallest limit of all control groups, in CPUs, since each also applies to the groups below it."""
    return min((limit for group in groups if (limit := _read_limit(group)) is not None), default=None)


def _read_limit(group: str) -> float | None:
    """Return the limit of one group.

    Version 2 has "max 100000" or "150000 100000" in one file. Version 1 has two files, with -1 for no limit.
    """
    text = (
        read_file(group, "cpu.max") or f"{read_file(group, 'cpu.cfs_quota_us')} {read_file(group, 'cpu.cfs_period_us')}"
    )
    try:
        quota, period = map(int, text.split())
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


_groups: tuple[str, ...] | None = None  # of this process, once they were read


def _known_groups() -> tuple[str, ...]:
    global _groups
    if _groups is None:
        _groups = find_groups("/")
    return _groups


def find_groups(root: str, controller: str = "cpu") -> tuple[str, ...]:
    """Return the directories of the control groups that limit this process, from its own up to the mounted root.

    controller: "cpu" or "memory", which version 1 may mount at different places.

    In a container the path in /proc/self/cgroup need not exist below the mount point. Then only the part that exists is
    used.
    """
    memberships = _read_memberships(root, controller)
    mounts = _read_mounts(root, controller) or [*_USUAL_MOUNTS_2, *_USUAL_MOUNTS[controller]]
    groups = []
    for kind, path in memberships.items():
        of_kind = [mount for mount in mounts if mount[0] == kind]
        for _, top, point in [mount for mount in of_kind if _is_below(path, mount[1])] or of_kind:
            below = path.removeprefix(top.rstrip("/")) if _is_below(path, top) else path
            while below.strip("/"):
                groups.append(_below(root, point + below))
                below = os.path.dirname(below)
            groups.append(_below(root, point))
    return tuple(group for group in dict.fromkeys(groups) if os.path.isdir(group))


def _read_memberships(root: str, controller: str) -> dict[str, str]:
    """Return the process's group in the two hierarchies that may have limits: {type of file system: path}."""
    memberships = {"cgroup2": "/", "cgroup": "/"}
    for line in read_file(root, "proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            memberships["cgroup2"] = _normalize(path)
        elif controller in controllers.split(","):
            memberships["cgroup"] = _normalize(path)
    return memberships


def _read_mounts(root: str, controller: str) -> list[_Mount]:
    mounts = []
    for line in read_file(root, "proc/self/mountinfo").splitlines():
        place, _, what = line.partition(" - ")
        places, whats = place.split(), what.split()
        if len(places) < 5 or len(whats) < 3:
            continue
        if whats[0] == "cgroup2" or (whats[0] == "cgroup" and controller in whats[2].split(",")):
            mounts.append((whats[0], _normalize(places[3]), places[4].replace("\\040", " ")))
    return mounts


def _is_below(path: str, top: str) -> bool:
    return f"{path}/".startswith(f"{top.rstrip('/')}/")


def _normalize(path: str) -> str:
    """Make a path absolute. The ".." of a group outside the namespace is dropped, since it leads nowhere."""
    return os.path.normpath("/" + path.lstrip("/"))


# ---- files -----------------------------------------------------------------


def _below(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))


def read_file(root: str, path: str) -> str:
    """Return a file's text without surrounding space, or "" if it cannot be read."""
    try:
        with open(_below(root, path), "rb", buffering=0) as file:
            return os.fsdecode(file.read()).strip()
    except OSError:
        return ""


def _read_int(root: str, path: str) -> int:
    """Read a number that is not negative, or 0 if the kernel reports none."""
    text = read_file(root, path)
    return int(text) if text.isascii() and text.isdecimal() else 0


def _read_list(root: str, path: str) -> set[int]:
    """Read a list of CPUs in the kernel's format, such as "0-3,8"; empty if it cannot be read."""
    numbers: set[int] = set()
    try:
        for part in filter(None, read_file(root, path).split(",")):
            first, _, last = part.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    except ValueError:
        return set()
    return numbers


def _list_directory(root: str, path: str) -> list[str]:
    try:
        return sorted(os.listdir(_below(root, path)))
    except OSError:
        return []
