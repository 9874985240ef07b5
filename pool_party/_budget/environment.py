"""The environment variables for a process's budget, set before it loads any library.

Each worker imports this module.
"""

import os
import sys
from collections.abc import Mapping

# How long an idle OpenBLAS thread spins before it sleeps: 2^k ticks of the CPU's counter; OpenBLAS's default k is 28.
# Measured at 2.6 GHz with 2 threads, on a machine too busy to time the QR itself. "sleeps": how often the second thread
# falls asleep in one QR of 10,000 x 200, which has many short regions (least of 5 to 9). "ms": the CPU time spent
# spinning after one matrix product (median of 9). From k = 22 on threads no longer sleep between regions. The value for
# 18 is unexplained.
#
#     k        4      14     16     18     20     22     24     26     28
#     sleeps   505    377    215    462    41     26     18     -      -
#     ms       0.07   0.08   0.08   0.09   1.3    1.7    4.0    20     77
OPENBLAS_TIMEOUT = "22"

# Each count variable, with those that the library reads if it is not set.
_COUNTS = {
    "OMP_NUM_THREADS": (),
    "OPENBLAS_NUM_THREADS": ("GOTO_NUM_THREADS", "OMP_NUM_THREADS"),
    "MKL_NUM_THREADS": ("OMP_NUM_THREADS",),
    "BLIS_NUM_THREADS": ("OMP_NUM_THREADS",),
    "VECLIB_MAXIMUM_THREADS": (),
    "NUMEXPR_NUM_THREADS": ("OMP_NUM_THREADS",),
    "RAYON_NUM_THREADS": (),
    "POLARS_MAX_THREADS": (),
    "LOKY_MAX_CPU_COUNT": (),
    "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS": (),
    "TF_NUM_INTRAOP_THREADS": (),
}
_VARIABLES = {name for variable, others in _COUNTS.items() for name in (variable, *others)}
_OF_LIBRARY = {"openblas": "OPENBLAS_NUM_THREADS", "mkl": "MKL_NUM_THREADS", "blis": "BLIS_NUM_THREADS"}

_given: dict[str, tuple[str, str | None]] = {}  # name -> what the pool set in this worker process, and the user's own


def users_environment() -> dict[str, str]:
    """Return the count variables as the user has set them, without those that a pool has set in this process."""
    users = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    for name, (given, before) in _given.items():
        if users.get(name) == given:
            del users[name]
            if before is not None:
                users[name] = before
    return users


def users_count(library: str) -> int:
    """Return the count that the user's environment sets for a library, or 0 if none."""
    variable = _OF_LIBRARY.get(library, "OMP_NUM_THREADS")
    n = _count(sys.maxsize, (variable, *_COUNTS[variable]), users_environment())
    return 0 if n >= 1 << 31 else n


def enter(n: int, n_cpus: int, overlap: bool, users: Mapping[str, str]) -> None:
    """Set the environment of a worker process. users: what `users_environment` returned in its parent."""
    wanted = of_worker(n, n_cpus, overlap, users)
    _given.clear()
    _given.update((name, (wanted[name], users.get(name))) for name in _VARIABLES & wanted.keys())
    os.environ.update({**users, **wanted})


def of_worker(n: int, n_cpus: int, overlap: bool, users: Mapping[str, str]) -> dict[str, str]:
    """Return what `enter` sets, in the worker or in its parent."""
    others = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    return thread_environment(n, n_cpus, overlap=overlap, environ={**others, **users})


def thread_environment(
    n: int, n_cpus: int | None = None, *, overlap: bool = False, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables to set for a process with a budget of n threads, before it loads any library.

    A lower user setting wins, and is copied to libraries that fall back on that variable. User settings of how idle
    threads wait are kept.

    n_cpus: the largest that the budget may become. Numba cannot raise its count later, so it starts with this many
    threads, and `budget.numba_threads` masks the surplus.
    overlap: whether budgets may overlap; idle threads of one worker must then not spin on a CPU of another.
    environ: what is set now; os.environ by default.
    """
    environ = os.environ if environ is None else environ
    wanted = {variable: str(_count(n, (variable, *others), environ)) for variable, others in _COUNTS.items()}
    if "NUMBA_NUM_THREADS" not in environ and "numba" not in sys.modules:  # Numba raises if it changes after the import
        wanted["NUMBA_NUM_THREADS"] = str(max(n, n_cpus or 1))
    if overlap:
        wanted.update(_patience(environ))
    return {variable: value for variable, value in wanted.items() if environ.get(variable) != value}


def _count(n: int, variables: tuple[str, ...], environ: Mapping[str, str]) -> int:
    for variable in variables:
        first = environ.get(variable, "").partition(",")[0].strip()  # in OpenMP, a list with one number a level
        if first.isascii() and first.isdecimal() and int(first) > 0:
            return min(n, int(first))
    return n


def _patience(environ: Mapping[str, str]) -> dict[str, str]:
    wanted = {"OPENBLAS_THREAD_TIMEOUT": OPENBLAS_TIMEOUT, "OMP_WAIT_POLICY": "passive"}
    if "OMP_WAIT_POLICY" not in environ:  # KMP_BLOCKTIME would override it
        wanted["KMP_BLOCKTIME"] = "0"
    return {variable: value for variable, value in wanted.items() if variable not in environ}
