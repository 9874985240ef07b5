"""How a workload does in every mode: the program behind the benchmarks of MANIFEST, each of which names a workload.

    python benchmarks/bm_fib/run_benchmark.py --help    (pyperf's options, and ours)

There is one benchmark per mode, timed by pyperf: a map over all tasks by a pool that is open and warm. Its metadata
have the costs other than time, and the speed-up over mode "sequential".
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from checkout import make_importable

_MODES, _SIZE, _WORKERS = (f"POOL_PARTY_BENCH_{name}" for name in ("MODES", "SIZE", "WORKERS"))


def _modes(text: str) -> list[str]:
    from party_modes import MODES

    modes = [mode for mode in text.split(",") if mode]
    for mode in modes:
        if mode not in MODES:
            raise argparse.ArgumentTypeError(f"no mode {mode!r}; there are {', '.join(MODES)}")
    return modes


def _add_options(parser: argparse.ArgumentParser) -> None:
    from party_modes import MODES
    from party_workloads import SIZES

    environment = os.environ.get
    options = parser.add_argument_group("modes", "pyperformance passes no options on: there, the variables choose")
    options.add_argument(
        "--modes",
        type=_modes,
        default=environment(_MODES) or ",".join(MODES),
        help=f"separated by commas; default: ${_MODES}, else all: {', '.join(MODES)}",
    )
    options.add_argument(
        "--size",
        choices=SIZES,
        default=environment(_SIZE) or "small",
        help=f"default: ${_SIZE}, else small; original: that of the document",
    )
    options.add_argument(
        "--workers",
        type=int,
        default=int(environment(_WORKERS) or 0),
        help=f"default: ${_WORKERS}, else 16 for the original size, else one per usable CPU",
    )


def _describe(size: str, workload: str, n_workers: int) -> dict[str, Any]:
    """Return metadata that all modes share: the workload, and the versions."""
    from metadata import collect_metadata
    from party_modes import has_gil
    from party_workloads import WORKLOADS

    n_tasks, argument = WORKLOADS[workload].scale(size)
    run = collect_metadata(n_workers)
    return {
        "size": size,
        "n_tasks": n_tasks,
        "argument": repr(argument),
        "n_workers": n_workers,
        "start_method": run["start_method"],
        "gil": "on" if has_gil() else "off",
        "versions": ", ".join(f"{name} {number}" for name, number in run["versions"].items()),
    }


class _Party:
    """One workload, in those of the requested modes that are available."""

    def __init__(self, workload: str) -> None:
        import pyperf
        from party_modes import is_available
        from party_workloads import SIZES

        self._runner = pyperf.Runner(add_cmdline_args=self._pass_on)
        _add_options(self._runner.argparser)
        options = self._options = self._runner.parse_args()
        if options.size not in SIZES:  # argparse does not check a default
            self._runner.argparser.error(f"there is no size {options.size!r}")
        default_workers = 16 if options.size == "original" else len(os.sched_getaffinity(0))
        self._n_workers = options.workers or default_workers
        self._workload = workload
        self._modes = [mode for mode in options.modes if is_available(mode)]
        if not self._modes:
            self._runner.argparser.error("none of these modes is available here")
        self._runner.metadata.update(_describe(options.size, workload, self._n_workers))

    def _pass_on(self, command: list[str], _: argparse.Namespace) -> None:
        """Tell pyperf's worker processes what was chosen here.

        They find their mode by its position, and pyperf counts only the successful ones. Failed modes are therefore
        left out.
        """
        command += ["--modes", ",".join(self._modes)]
        command += ["--size", self._options.size, "--workers", str(self._n_workers)]

    def _mapping(self, mode: str) -> Any:
        from party_modes import Mapping

        return Mapping(self._workload, self._options.size, mode, self._n_workers)

    def _time(self, mode: str) -> Any:
        """Let pyperf measure a mode; return its benchmark, None if this process is another mode's worker."""
        from party_modes import benchmark_name

        with self._mapping(mode) as mapping:

            def time_maps(n_loops: int) -> float:
                if not mapping.is_open:
                    mapping.open()
                started_s = time.perf_counter()
                for _ in range(n_loops):
                    results = mapping.run()
                taken_s = time.perf_counter() - started_s
                del results
                return taken_s

            name = benchmark_name(self._workload, self._options.size, mode)
            return self._runner.bench_time_func(name, time_maps)

    def run(self) -> bool:
        """Measure all modes; return whether none failed."""
        if self._options.worker or self._options.compare_to:
            for mode in self._modes:
                self._time(mode)
            return True
        benchmarks, failed = {}, []
        for mode in list(self._modes):
            try:
                benchmarks[mode] = self._time(mode)
            except RuntimeError as error:  # a worker process of pyperf failed, and has printed why
                self._modes.remove(mode)
                failed.append(mode)
                print(f"{self._workload}[{mode}] failed: {error}", flush=True)
        self._add_metrics(benchmarks)
        if benchmarks and self._options.output:
            _write(list(benchmarks.values()), self._options.output)
        return not failed

    def _add_metrics(self, benchmarks: dict[str, Any]) -> None:
        from party_metrics import measure
        from party_modes import SEQUENTIAL

        are_times = not (self._options.tracemalloc or self._options.track_memory)
        sequential = benchmarks.get(SEQUENTIAL) if are_times else None
        for mode, benchmark in benchmarks.items():
            metrics = measure(self._workload, self._options.size, mode, self._n_workers)
            if sequential is not None:
                metrics["speed_up"] = round(sequential.mean() / benchmark.mean(), 3)
            benchmark.update_metadata(metrics)
            print(f"{benchmark.get_name()}: {_format(metrics)}", flush=True)


def _format(metrics: dict[str, Any]) -> str:
    """Return the metrics as a line of text."""
    if "metrics_error" in metrics:
        return f"no metrics: {metrics['metrics_error']}"
    parts = [f"{metrics['speed_up']:.2f} x sequential"] if "speed_up" in metrics else []
    parts.append(f"{metrics['cpu_percent']:.0f} % of the CPUs (others use {metrics['cpu_cores_of_others']:.1f})")
    for measure in ("pss", "rss"):
        if f"{measure}_peak_bytes" in metrics:
            parts.append(f"{metrics[f'{measure}_peak_bytes'] / 1e6:.0f} MB {measure.upper()}")
    parts.append(f"{metrics['vm_peak_bytes'] / 1e6:.0f} MB VmPeak")
    if "gil_held_share" in metrics:
        parts.append(f"GIL held {metrics['gil_held_share']:.0%}")
    return ", ".join(parts)


def _write(benchmarks: Sequence[Any], path: str) -> None:
    """Replace the file that pyperf wrote by one with the metrics."""
    import pyperf

    pyperf.BenchmarkSuite(benchmarks).dump(path, replace=True)


def main(workload: str) -> None:
    """Run the benchmark of a workload.

    The exit status is 1 if a mode failed. Under pyperformance it is 0 if another mode succeeded, since pyperformance
    would drop that one, too.
    """
    make_importable()
    went_well = _Party(workload).run()
    if not went_well and "PYPERFORMANCE_RUNID" not in os.environ:
        sys.exit(1)
