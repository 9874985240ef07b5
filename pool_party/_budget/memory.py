"""How much memory this process and its children may use, and amounts of memory in words."""

import re
from typing import Any

from pool_party._budget import topology

_FILES = ("memory.max", "memory.high", "memory.limit_in_bytes")  # two of control groups version 2, one of version 1
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b", re.I)
_EXAMPLE = 'a number of bytes, or a text such as "2 GiB" or "500 MB"'


def parse_bytes(option: str, amount: Any) -> int:
    """Return an amount of memory in bytes. MB and the like are powers of 1000, MiB and the like powers of 1024.

    Raises: TypeError, ValueError that name the option.
    """
    if isinstance(amount, bool) or not isinstance(amount, int | str):
        raise TypeError(f"{option} must be {_EXAMPLE}, not {amount!r}")
    n_bytes = _parse(amount) if isinstance(amount, str) else amount
    if n_bytes < 1:
        raise ValueError(f"{option} must be {_EXAMPLE}, not {amount!r}")
    return n_bytes


def _parse(text: str) -> int:
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        return 0
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " kmgt".index(match[2].lower() or " "))


def format_bytes(n_bytes: int) -> str:
    """Return an amount of memory as people read it."""
    amount = float(n_bytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} GiB"


def total_bytes(root: str = "/") -> int:
    """Return the memory of this machine, or the smallest limit of this process's control groups if that is less."""
    limits = [_read_machine(root)]
    for group in topology.find_groups(root, "memory"):
        limits += [int(text) for name in _FILES if (text := topology.read_file(group, name)).isdecimal()]
    return min(limits)


def _read_machine(root: str) -> int:
    """Return the machine's memory, also if a container reports less than there is."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", topology.read_file(root, "proc/meminfo"), re.M)
    if match is None:
        raise OSError("/proc/meminfo does not tell how much memory there is")
    return int(match[1]) * 1024
