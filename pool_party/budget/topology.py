"""Which CPUs there are, how they share cores and caches, and how many of them this process may use.

Everything comes from files below a root directory, so that a test can describe any machine. Whatever a container or a
virtual machine leaves out is taken for the simplest case: a CPU of unknown relations is a core of its own.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pool_party import _native

OVERRIDE = "POOL_PARTY_CPU_COUNT"
PYTHONS_OVERRIDE = "PYTHON_CPU_COUNT"

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"

# (type of file system, group that is its root, where it is mounted)
_Mount = tuple[str, str, str]
_USUAL_MOUNTS: list[_Mount] = [
    ("cgroup2", "/", "/sys/fs/cgroup"),
    ("cgroup2", "/", "/sys/fs/cgroup/unified"),
    ("cgroup", "/", "/sys/fs/cgroup/cpu"),
    ("cgroup", "/", "/sys/fs/cgroup/cpu,cpuacct"),
]


class Cpu(NamedTuple):
    """A logical CPU and what it shares. A core or cache goes by the number of its first CPU, unlike any other's."""

    n: int
    core: int
    package: int
    cache: int  # the last level; where that is unknown, the core's own
    node: int


class Topology(NamedTuple):
    """A machine's CPUs and the part of them that may be used.

    `cpus` and `allowed` are in topology order: by NUMA node, package, last-level cache and core, so that CPUs which
    share much are neighbours and siblings are adjacent. `quota` is the control groups' limit in CPUs, None without one.
    """

    cpus: tuple[Cpu, ...]
    allowed: tuple[int, ...]
    quota: float | None

    @property
    def n_cpus(self) -> int:
        """How many CPUs to use: the allowed ones, cut by the quota, rounded down, but at least 1.

        Down, since a group with more running threads than its quota is stopped as a whole for the rest of each period,
        and threads that spin at a barrier use it up in vain. `nproc` and loky round up.
        """
        return _count_usable(len(self.allowed), self.quota)

    @property
    def usable(self) -> tuple[int, ...]:
        """The `n_cpus` CPUs to use, in topology order.

        Where the quota cuts, this choice is no better than another program's, which may make the same one under a
        quota of its own: count with these CPUs, but do not bind threads to them.
        """
        return self.choose(self.n_cpus)

    @property
    def cores(self) -> tuple[tuple[int, ...], ...]:
        """The allowed CPUs, grouped by core, in topology order."""
        may = set(self.allowed)
        return tuple(some for core in self._all_cores() if (some := tuple(n for n in core if n in may)))

    def choose(self, count: int) -> tuple[int, ...]:
        """At most `count` of the allowed CPUs, in topology order: whole cores before those that the mask cuts."""
        if count >= len(self.allowed):
            return self.allowed
        may = set(self.allowed)
        by_wholeness = sorted(self._all_cores(), key=lambda core: not may.issuperset(core))  # a stable sort
        chosen = set([n for core in by_wholeness for n in core if n in may][: max(count, 0)])
        return tuple(n for n in self.allowed if n in chosen)

    def _all_cores(self) -> list[list[int]]:
        cores: dict[int, list[int]] = {}
        for cpu in self.cpus:
            cores.setdefault(cpu.core, []).append(cpu.n)
        return list(cores.values())


def read(root: str = "/", allowed: Iterable[int] | None = None) -> Topology:
    """The topology that the files below `root` describe, all of them read anew.

    `allowed` are the CPUs of the affinity mask, by default the calling thread's. The mask is believed where it and the
    list of online CPUs differ: in containers that list is often made up. Raises ValueError if it is empty.
    """
    may = os.sched_getaffinity(0) if allowed is None else frozenset(allowed)
    return _restrict(_read_cpus(root, may), may, _read_quota(_find_groups(root)))


def current() -> Topology:
    """As `read()`, but cheap to ask again: what the kernel says about CPUs and where limits stand is read only once.

    The calling thread's mask and the limits themselves are read anew. A CPU that came online since the first call is
    taken for a core of its own; a process that moves to another control group is judged by its first one.
    """
    may = os.sched_getaffinity(0)
    return _restrict(_known_cpus(), may, _read_quota(_known_groups()))


def cpu_count() -> int:
    """Return how many CPUs the calling thread may use: its affinity mask, cut by the quotas of its control groups.

    An override wins, whatever the machine has: the environment variable POOL_PARTY_CPU_COUNT, else CPython's own
    `-X cpu_count` and PYTHON_CPU_COUNT, in that order, which count on Python 3.12 too. In a task it is at most what the
    worker may use, since pools in workers share that.

    Returns:
        The number of CPUs, at least 1. A quota is rounded down.

    Raises:
        ValueError: An override is no positive integer.

    Guarantees:
        Any thread may call it, and it does not block. Environment, mask and quota are looked at in every call, in a
        forked child, too.
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
        count = int(value) if isinstance(value, str) else 0  # True: an option without a value
    except ValueError:
        count = 0
    if count < 1:
        raise ValueError(f"{name} must be a positive number of CPUs, not {value!r}: change or unset it")
    return count


# ---- CPUs ------------------------------------------------------------------


@functools.cache
def _known_cpus() -> tuple[Cpu, ...]:
    return _read_cpus("/", frozenset())


def _read_cpus(root: str, besides: Iterable[int]) -> tuple[Cpu, ...]:
    """The CPUs that are online, and those `besides`, in topology order."""
    numbers = sorted({*_read_list(root, f"{_CPUS}/online"), *besides})
    cores = _group(numbers, lambda n: _read_siblings(root, n))
    caches = _group(numbers, lambda n: _read_sharers(root, n))
    nodes = _read_nodes(root)
    packages = {n: _read_int(root, f"{_CPUS}/cpu{n}/topology/physical_package_id") for n in {*cores.values()}}
    # A core's CPUs have all from its first one: siblings stay together, whatever the files say.
    cpus = [Cpu(n, first, packages[first], caches[first], nodes.get(first, 0)) for n, first in cores.items()]
    return tuple(sorted(cpus, key=lambda cpu: (cpu.node, cpu.package, cpu.cache, cpu.core, cpu.n)))


def _group(numbers: list[int], sharers_of: Callable[[int], set[int]]) -> dict[int, int]:
    """Names the group of each CPU by its first member; only that one's files are read."""
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
    """The CPUs with which this one shares its last-level cache."""
    directory = f"{_CPUS}/cpu{n}/cache"
    entries = [f"{directory}/{entry}" for entry in _list_directory(root, directory) if entry.startswith("index")]
    data = [entry for entry in entries if _read(root, f"{entry}/type") != "Instruction"]
    last = max(data, key=lambda entry: _read_int(root, f"{entry}/level"), default=None)
    return _read_list(root, f"{last}/shared_cpu_list") if last else set()


def _read_nodes(root: str) -> dict[int, int]:
    """The NUMA node of each CPU."""
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
    """The least limit of all control groups, in CPUs: each holds for the groups below it, too."""
    return min((limit for group in groups if (limit := _read_limit(group)) is not None), default=None)


def _read_limit(group: str) -> float | None:
    """Version 2 has "max 100000" or "150000 100000" in one file, version 1 has two, with -1 for no limit."""
    text = _read(group, "cpu.max") or f"{_read(group, 'cpu.cfs_quota_us')} {_read(group, 'cpu.cfs_period_us')}"
    try:
        quota, period = map(int, text.split())
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


@functools.cache
def _known_groups() -> tuple[str, ...]:
    return _find_groups("/")


def _find_groups(root: str) -> tuple[str, ...]:
    """The directories of the control groups whose limits hold for this process, from its own up to the mounted root.

    In a container the path of /proc/self/cgroup need not exist below the mount point; then what exists of it counts.
    """
    memberships = _read_memberships(root)
    mounts = _read_mounts(root) or _USUAL_MOUNTS
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


def _read_memberships(root: str) -> dict[str, str]:
    """The process's group in the two hierarchies that may limit CPUs: {type of file system: path}."""
    memberships = {"cgroup2": "/", "cgroup": "/"}
    for line in _read(root, "proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            memberships["cgroup2"] = _normalize(path)
        elif "cpu" in controllers.split(","):
            memberships["cgroup"] = _normalize(path)
    return memberships


def _read_mounts(root: str) -> list[_Mount]:
    mounts = []
    for line in _read(root, "proc/self/mountinfo").splitlines():
        place, _, what = line.partition(" - ")
        places, whats = place.split(), what.split()
        if len(places) < 5 or len(whats) < 3:
            continue
        if whats[0] == "cgroup2" or (whats[0] == "cgroup" and "cpu" in whats[2].split(",")):
            mounts.append((whats[0], _normalize(places[3]), places[4].replace("\\040", " ")))
    return mounts


def _is_below(path: str, top: str) -> bool:
    return f"{path}/".startswith(f"{top.rstrip('/')}/")


def _normalize(path: str) -> str:
    """An absolute path; the ".." of a group outside the namespace leads nowhere and goes."""
    return os.path.normpath("/" + path.lstrip("/"))


# ---- files -----------------------------------------------------------------


def _below(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))


def _read(root: str, path: str) -> str:
    """A file's text without the space around it; empty if it cannot be read."""
    try:
        with open(_below(root, path), "rb", buffering=0) as file:
            return os.fsdecode(file.read()).strip()
    except OSError:
        return ""


def _read_int(root: str, path: str) -> int:
    """A number that is not negative; 0 where the kernel does not know one."""
    text = _read(root, path)
    return int(text) if text.isascii() and text.isdecimal() else 0


def _read_list(root: str, path: str) -> set[int]:
    """A list of CPUs as the kernel writes it, such as "0-3,8"; empty where it cannot be read."""
    numbers: set[int] = set()
    try:
        for part in filter(None, _read(root, path).split(",")):
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
