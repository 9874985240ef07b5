"""The part of the report about scientific workloads: sweeps of scikit-learn, pandas and SciPy, and a large array."""

from tables import duration, folded

from reporting.drawing import Panel, picture
from reporting.found import Found, Json, measured
from reporting.parts import Part, bar_panel, failure_list, summary_table

_SERIAL = "serial"


def array_time_s(found: Found, subject: str) -> float | None:
    """Return the time of an array of 64 MB to a worker and back; None where science.py has not measured that."""
    return None if found.is_quick("science") else found.figure("science", "transfer", subject, "median_s")


def _mb(value: float) -> str:
    return f"{value / 1e6:.0f} MB"


_SWEEP = {
    "scikit-learn_s": ("scikit-learn", duration),
    "pandas_s": ("pandas", duration),
    "scipy_s": ("SciPy", duration),
    "all_s": ("all", duration),
    "cpu_s": ("CPU time", duration),
    "start_s": ("start-up", duration),
    "bytes_per_worker": ("memory per worker", _mb),
}
_TRANSFER = {"median_s": ("median", duration), "best_s": ("best", duration), "first_s": ("first call", duration)}


def _with_bound(sweep: Json, n_workers: int) -> Json:
    """Return the bound of the sweep: the serial time divided by the workers."""
    serial: Json | None = dict(measured(sweep)).get(_SERIAL)
    if serial is None:
        return sweep
    return sweep | {
        f"serial / {n_workers}": {"summary": {"all_s": serial["summary"]["all_s"] / n_workers}, "is_bound": True}
    }


def science(found: Found) -> Part:
    """Sweeps and the transfer of an array in all ways."""
    sweep, transfer = found.section("science", "sweep"), found.section("science", "transfer")
    texts = []
    for title, section, columns in (("Sweep", sweep, _SWEEP), ("A large array there and back", transfer, _TRANSFER)):
        if section:
            texts.append(
                "\n\n".join(filter(None, (f"{title}.", summary_table(section, columns), failure_list(section))))
            )
    with_bound = _with_bound(sweep, found.benchmarks["science"]["metadata"].get("n_workers", 1))
    panels: list[Panel] = [
        bar_panel(with_bound, "all_s", "all workloads, s", duration),
        bar_panel(sweep, "bytes_per_worker", "memory per worker, MB", _mb, scale=1e-6),
        bar_panel(transfer, "median_s", "a large array there and back, ms", duration, scale=1e3, is_log=True),
    ]
    return Part(folded("Tables", "\n\n".join(texts)), picture(panels, 3, (3.9, 2.4)))
