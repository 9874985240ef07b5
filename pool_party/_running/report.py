"""The report at the end of a program: which pools were replaced, and what they did. Every figure in it was counted.

The process that the runner started writes it. Its children, and theirs, note their own figures in its journal.
"""

import atexit
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from pool_party._ground.imports import loaded
from pool_party._running import figures, journal

if TYPE_CHECKING:
    from pool_party._running.journal import Address

_VERSION = 2  # of the JSON: raised when a field changes its meaning
_BEFORE_LAST = -1000  # priority among the finalizers of multiprocessing, which end the pools of a process first


class _Child:
    """A child process, in which this module notes figures. There is one of them in each at most."""

    def __init__(self, address: "Address") -> None:
        self.address = address
        self.pid = os.getpid()
        self.started = _start_of("self")
        self._is_noted = self._is_ending = False

    def note(self) -> None:
        """Note the figures so far."""
        if os.getpid() != self.pid:
            return  # amid a fork
        if not self._is_noted:
            self._is_noted = True
            self._leave_word()
        journal.append(
            self.address,
            {"name": _process_name(), "started": self.started, "is_ending": self._is_ending, **figures.collect()},
        )

    def _leave_word(self) -> None:
        """Have the end of the process noted: multiprocessing's processes run no exit handlers."""
        atexit.register(self._end)
        util = loaded("multiprocessing.util")
        if util is not None:
            util.Finalize(None, self._end, exitpriority=_BEFORE_LAST)

    def _end(self) -> None:
        self._is_ending = True
        self.note()


_form = ""
_child: _Child | None = None  # None in the process that writes the report
_address: "Address | None" = None


def arrange(form: str) -> "Address":
    """Have the report written to standard error when this process ends, after the program's own exit handlers.

    form: "text" or "json". Return where children are to note their figures.
    """
    global _form
    _form = form
    address = journal.make()
    _count(address)
    atexit.register(_write)
    return address


def join(address: "Address") -> None:
    """Have the figures of this process, which is a child that was spawned, in the report. It may be called again."""
    global _child
    if _address is None:
        _count(address)
        _child = _Child(address)


def _count(address: "Address") -> None:
    global _address
    _address = address
    figures.count(_note)
    os.register_at_fork(after_in_child=_begin_as_child)


def _begin_as_child() -> None:
    global _child
    if _address is not None:
        figures.forget()
        _child = _Child(_address)


def _note() -> None:
    if _child is not None:
        _child.note()


def _process_name() -> str:
    process = loaded("multiprocessing.process")
    return "" if process is None else str(process.current_process().name)


def _start_of(pid: object) -> int | None:
    """Return when a process began, in ticks since boot; no two processes with one pid have the same. None: it is gone.

    proc(5): the 22nd field of `stat`, of which the second may contain blanks.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else int(fields[19])


# ---- what the report says ----


def _write() -> None:
    if _child is not None or sys.stderr is None:
        return
    found = collect()
    if _form == "json":
        import json

        text = json.dumps(found) + "\n"
    else:
        text = as_text(found)
    sys.stderr.write(text)
    sys.stderr.flush()


def collect() -> dict[str, Any]:
    """Return what is known of this process and its children, in plain types."""
    from pool_party._budget.topology import cpu_count

    own = figures.collect()
    return {
        "version": _VERSION,
        "cpus": cpu_count(),
        **own,
        "parts_used": sorted({event["part"] for event in own["replaced"]}),
        "children": _children(),
    }


def _children() -> list[dict[str, Any]] | None:
    """Return the last note of each child, with what became of the child, or None if the journal is gone.

    Whether a child lives is asked before its last note is read: one that ends in between has noted its end.
    """
    if (notes := _last_notes()) is None:
        return None
    lived = {(pid, started): _start_of(pid) == started for pid, started in notes}
    notes = _last_notes() or {}
    for key, note in notes.items():
        note["end"] = "ended" if note.pop("is_ending") else "runs" if lived.get(key, True) else "killed"
        del note["started"]
    return list(notes.values())


def _last_notes() -> dict[tuple[int, int], dict[str, Any]] | None:
    """Return the last note of each child by its pid and start."""
    notes = None if _address is None else journal.read(_address)
    return None if notes is None else {(note["pid"], note["started"]): note for note in notes}


def as_text(found: dict[str, Any]) -> str:
    """Return the report for people."""
    lines = [f"pool_party: {found['program']} (pid {found['pid']}, CPUs: {found['cpus']})"]
    children = found["children"]
    if not found["replaced"]:
        lines.append("  no pool was replaced")
    lines += _uses(found) + _work(found)
    if children is None:
        lines.append("  child processes: unknown, since the program has closed a file descriptor of ours")
    elif children:
        lines += _of_children(children)
    return "".join(f"{line}\n" for line in lines)


def _of_children(children: list[dict[str, Any]]) -> list[str]:
    total = _sum(children)
    lines = [f"child processes that asked for pools: {len(children)}"]
    for child in children:
        if child["end"] != "ended":
            lines.append(_unfinished(child))
    return [f"  {line}" for line in [*lines, *_uses(total), *_work(total)]]


def _unfinished(child: dict[str, Any]) -> str:
    name = f"  pid {child['pid']}" + (f" ({child['name']})" if child["name"] else "")
    what = "still runs" if child["end"] == "runs" else "was killed, or left by os._exit"
    return f"{name} {what}: its figures are those at the last start or end of a pool; pools open then: {child['open']}"


def _sum(children: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of several processes together."""
    total: dict[str, Any] = {}
    for key in ("replaced", "left_alone"):
        times: Counter[tuple[tuple[str, Any], ...]] = Counter()
        for child in children:
            for event in child[key]:
                n = event.pop("times")
                times[tuple(event.items())] += n
                event["times"] = n
        total[key] = [{**dict(event), "times": n} for event, n in times.items()]
    total |= {name: sum(child[name] for child in children) for name in figures.COUNTS}
    total["library_threads"] = {
        name: sum(child["library_threads"][name] for child in children) for name in figures.THREADS
    }
    return total


def _uses(found: dict[str, Any]) -> list[str]:
    """Return a line for each way in which pools were replaced or left alone."""
    lines = []
    for event in found["replaced"]:
        lines.append(
            f"  replaced {event['times']} x {event['name']}, made in {event['caller']}: workers of kind "
            f"{event['kind']}, {event['n_workers']} each"
        )
    for event in found["left_alone"]:
        lines.append(f"  left alone {event['times']} x {event['name']}, made in {event['caller']}. {event['reason']}")
    return lines


def _work(found: dict[str, Any]) -> list[str]:
    if not found["pools"]:
        return []
    threads = found["library_threads"]
    lines = [
        f"  tasks: {found['tasks']}, of which {found['failed']} raised",
        f"  workers: {found['workers']} started, {found['lost']} lost",
    ]
    if threads["limited"]:
        lines.append(
            f"  threads that BLAS and OpenMP may use in {threads['limited']} workers: {threads['threads']} at the end; "
            f"without limits, with one for each CPU: {threads['unlimited']}"
        )
    if found["lends"]:
        lines.append(f"  CPUs of idle workers were lent {found['lends']} times")
    return lines
