"""Where does the time of a task go?

    python benchmarks/profile_task.py [--quick] [--only VERB] [--kinds KIND...] [--workers N] [--json FILE]

runs empty tasks, one task a chunk, by `map`, and one after the other by `apply`. Meanwhile, Linux's perf samples the
stacks of the caller and the workers by the CPU clock. Each sample is assigned to a step of the task's path on its side.
Figures are therefore CPU time per task, summed over all workers: they include spinning, but not sleeping. The table
adds wall time per task without samples, and the time for marshal, a compare-and-swap, moving a cache line to another
core, and a futex wake-up. Without perf (apt-get install linux-perf) there are no steps. Without a C compiler or debug
information in pool_party's extension, there are fewer bounds and coarser steps.
"""

import argparse
import tempfile
from typing import Any

from fresh import Figures, begin, end
from native_bounds import compile_native, run_native
from profile_steps import PARENT, WORKER
from program import Record, add_kinds, add_only, add_workers, finish, make_parser, n_usable_cpus, say
from tables import table

_TIMEOUT_S = 120.0
_QUICK_EFFORT = 0.05
_N_ROUNDS = 20  # of the bounds
_LEAST_NS = 0.005  # per side: smaller steps are combined
_VERBS = {"map": "map(noop, range(n), chunksize=1)", "apply": "apply(noop, (value,))"}
_NS = "ns per task"


def _native_bounds(n_rounds: int) -> dict[str, float]:
    """Return what profile_native.c measures; nothing without a C compiler and two CPUs."""
    if n_usable_cpus() < 2:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        program = compile_native(folder)
        return {} if program is None else run_native(program, n_rounds)


def _bounds(n_rounds: int) -> tuple[dict[str, float], str]:
    figures, failure = end(begin("profile_sections", [], function="bounds"), _TIMEOUT_S)
    return {**(figures or {}), **_native_bounds(n_rounds)}, failure


def _steps(figures: Figures) -> dict[str, float]:
    """Return ns by "SIDE: STEP", the largest first; the sum of all steps precedes each side."""
    rows: dict[str, float] = {}
    for side in (PARENT, WORKER):
        steps = {step: ns for found, step, ns in figures.get("steps_ns", ()) if found == side}
        total = sum(steps.values())
        shown = {step: ns for step, ns in steps.items() if ns >= _LEAST_NS * total}
        if rest := total - sum(shown.values()):
            shown["all else"] = rest
        if total:
            rows[f"{side}, CPU time"] = total
            rows |= {f"{side}: {step}": ns for step, ns in shown.items()}
    return rows


def _section(figures: Figures) -> dict[str, Any]:
    rows = {"wall time": figures["wall_ns"], "wall time while sampled": figures["sampled_wall_ns"]} | _steps(figures)
    return {name: {"summary": {_NS: round(ns, 1)}} for name, ns in rows.items()}


def _format(section: dict[str, Any]) -> str:
    return table(["", _NS], [[n, f"{found['summary'][_NS]:.1f}"] for n, found in section.items() if "summary" in found])


def _measure(verb: str, kind: str, options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    say(f"{verb}, {kind}")
    effort = _QUICK_EFFORT if options.quick else 1.0
    figures, failure = end(begin("profile_sections", [verb, kind, options.workers, effort]), _TIMEOUT_S)
    if figures is None:
        return {kind: {"failure": failure}}, f"- not measured: {failure}"
    return _section(figures), "" if "steps_ns" in figures else "- no steps, since perf is not there or may not sample"


def main() -> int:
    """Measure as the command line says, and print a table for each verb and kind."""
    parser = make_parser(__doc__)
    add_workers(parser)
    add_kinds(parser)
    add_only(parser, _VERBS)
    options = parser.parse_args()
    record = Record(__doc__, options.workers, options)
    bounds, failure = _bounds(1 if options.quick else _N_ROUNDS)
    section = {name: {"summary": {_NS: round(ns, 1)}} for name, ns in bounds.items()}
    record.show("bounds: each by itself", _format(section), failure)
    record.put_section("bounds", section)
    has_failed = bool(failure)
    for verb in options.only or _VERBS:
        for kind in options.kinds:
            section, note = _measure(verb, kind, options)
            record.show(f"{_VERBS[verb]}, {kind}", _format(section), note)
            record.put_section(f"{_VERBS[verb]}, {kind}", section)
            has_failed |= kind in section
    return int(has_failed)


if __name__ == "__main__":
    finish(main)
