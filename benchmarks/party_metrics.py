"""The cost of a workload in a mode, other than time: CPU, memory, and how long the GIL is held meanwhile.

    python -c 'from party_metrics import main; main()' cpu|gilknocker|gil WORKLOAD SIZE MODE N_WORKERS

prints the figures that a process knows of itself as JSON; its parent adds the memory. The timed maps run in another
process, so that sampling disturbs no figure. The GIL is measured in a further one, since gilknocker crashes some
Pythons (0.4.2 those of version 3.14: https://github.com/milesgranger/gilknocker/issues/35). If it crashes, or is
missing, `gil_sampler` measures.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gil_sampler
from fresh import Figures, Measurement, begin, end
from party_modes import Mapping, has_gil

_ROUND_S = 0.4  # minimum duration of a measurement
_SAMPLING_S = 0.05  # between two memory samples
_KNOCKING_US = 1000  # between two GIL samples
_LIMIT_S = 3600


def _repeat(run: Callable[[], Any]) -> float:
    """Call repeatedly until the time is over; return how long that took."""
    started_s = time.perf_counter()
    while True:
        run()
        taken_s = time.perf_counter() - started_s
        if taken_s >= _ROUND_S:
            return taken_s


def _cpu(run: Callable[[], Any]) -> Figures:
    """Measure how many CPUs this process and its descendants keep busy, and how many other programs do meanwhile."""
    from pool_party._measuring.meter import cpu_of_machine_s, cpu_of_tree_s

    before_s, machine_before_s = cpu_of_tree_s(os.getpid()), cpu_of_machine_s()
    wall_s = _repeat(run)
    cores = (cpu_of_tree_s(os.getpid()) - before_s) / wall_s
    others = max(0.0, (cpu_of_machine_s() - machine_before_s) / wall_s - cores)
    return {
        "cpu_cores": round(cores, 2),
        "cpu_percent": round(100 * cores / len(os.sched_getaffinity(0)), 1),
        "cpu_cores_of_others": round(others, 2),
    }


def _gilknocker(run: Callable[[], Any]) -> Figures:
    """Measure the share of time that the GIL of this interpreter is held; workers elsewhere have GILs of their own."""
    from gilknocker import KnockKnock

    knocker = KnockKnock(_KNOCKING_US)
    knocker.start()
    _repeat(run)
    knocker.stop()
    return {"gil_held_share": round(knocker.contention_metric, 3), "gil_held_source": "gilknocker"}


def _gil(run: Callable[[], Any]) -> Figures:
    """Measure the same with `gil_sampler`."""
    share = gil_sampler.held_share(lambda: _repeat(run))
    return {"gil_held_share": round(share, 3), "gil_held_source": gil_sampler.SOURCE}


def main() -> None:
    """Measure in this process; print the figures."""
    what, workload, size, mode, n_workers = sys.argv[1:]
    with Mapping(workload, size, mode, int(n_workers)) as mapping:
        mapping.open()
        figures = {"cpu": _cpu, "gilknocker": _gilknocker, "gil": _gil}[what](mapping.run)
    print(json.dumps(figures))


def _peak_address_space(pid: int) -> int:
    """Return VmPeak in bytes, 0 if the process has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmPeak:"):
                return int(line.split()[1]) * 1024
    return 0


def _watch_memory(measurement: Measurement) -> Figures:
    """Sample the memory of a process and its descendants until it ends."""
    from pool_party._measuring.meter import memory_bytes, memory_measure, process_tree

    root, measure = measurement.process.pid, memory_measure()
    peak = peak_address_space = 0
    deadline_s = time.monotonic() + _LIMIT_S
    while measurement.process.poll() is None and time.monotonic() < deadline_s:
        tree = process_tree(root)
        peak_address_space = max(peak_address_space, sum(map(_peak_address_space, tree)))
        if measure:
            peak = max(peak, memory_bytes(tree, measure))
        time.sleep(_SAMPLING_S)
    figures: Figures = {"vm_peak_bytes": peak_address_space}
    return figures | {f"{measure.lower()}_peak_bytes": peak} if measure else figures


def _measure_gil(task: list[object]) -> Figures:
    if not has_gil():
        return {"gil_held_source": "there is no GIL"}
    samplers = ["gilknocker"] if importlib.util.find_spec("gilknocker") is not None else []
    samplers += ["gil"] if gil_sampler.is_available() else []
    errors = []
    for sampler in samplers:
        figures, error = end(begin("party_metrics", [sampler, *task]), _LIMIT_S)
        if figures is not None:
            return figures
        errors.append(f"{sampler}, {error}")
    return {"gil_held_source": f"not measured: {'; '.join(errors) or 'gilknocker is not installed'}"}


def measure(workload: str, size: str, mode: str, n_workers: int) -> Figures:
    """Run a workload in a mode in fresh processes; return its costs, or why they are not known ("metrics_error").

    Memory is that of the whole process tree, from the first import to the end.
    """
    task = [workload, size, mode, n_workers]
    measurement = begin("party_metrics", ["cpu", *task])
    memory = _watch_memory(measurement)
    figures, error = end(measurement, timeout_s=1)
    if figures is None:
        return {"metrics_error": error}
    return memory | figures | _measure_gil(task)
