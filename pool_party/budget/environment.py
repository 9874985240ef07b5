"""What a process is told of its budget before it loads any library. Light: each worker imports it."""

import os
import sys
from collections.abc import Mapping

# How long an idle thread of OpenBLAS spins before it sleeps: 2^k ticks of the CPU's counter; its own k is 28. Measured
# at 2.6 GHz with 2 threads, on a machine too busy for times of a QR: how often the second thread falls asleep in one QR
# of 10,000 x 200, which has many short regions (least of 5 to 9), and the CPU time that is spun away after one matrix
# product (median of 9). From 22 on the regions are no longer slept between (18 does not fit in, and is unexplained).
#
#     k        4      14     16     18     20     22     24     26     28
#     sleeps   505    377    215    462    41     26     18     -      -
#     ms       0.07   0.08   0.08   0.09   1.3    1.7    4.0    20     77
OPENBLAS_TIMEOUT = "22"

# Each with the variables that the library reads where the first is not set.
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
}
_VARIABLES = {name for variable, others in _COUNTS.items() for name in (variable, *others)}
_OF_LIBRARY = {"openblas": "OPENBLAS_NUM_THREADS", "mkl": "MKL_NUM_THREADS", "blis": "BLIS_NUM_THREADS"}

_given: dict[str, tuple[str, str | None]] = {}  # what this worker process got of its pool, and the user's own value


def users_environment() -> dict[str, str]:
    """The variables for counts as the user has set them: without what a pool has given to this process."""
    users = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    for name, (given, before) in _given.items():
        if users.get(name) == given:
            del users[name]
            if before is not None:
                users[name] = before
    return users


def users_count(library: str) -> int:
    """What the user's environment says of a library, by its name; 0: nothing."""
    variable = _OF_LIBRARY.get(library, "OMP_NUM_THREADS")
    n = _count(sys.maxsize, (variable, *_COUNTS[variable]), users_environment())
    return 0 if n >= 1 << 31 else n


def enter(n: int, n_cpus: int, overlap: bool, users: Mapping[str, str]) -> None:
    """In a worker process: sets its environment. users: what `users_environment` said in its parent."""
    others = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    wanted = thread_environment(n, n_cpus, overlap=overlap, environ={**others, **users})
    _given.clear()
    _given.update((name, (wanted[name], users.get(name))) for name in _VARIABLES & wanted.keys())
    os.environ.update({**users, **wanted})


def thread_environment(
    n: int, n_cpus: int | None = None, *, overlap: bool = False, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment variables to set for a process, before it loads any library, whose budget is n threads.

    A count that the user has set stays if it is lower than n, and if it is what a library would go by for want of a
    variable of its own, that library gets it, too. How idle threads wait is left as the user has set it.

    n_cpus: what the budget may grow to. Numba cannot raise its count later, so it gets these, and `budget.numba` masks.
    overlap: budgets may overlap, so that an idle thread of one worker must not keep a CPU busy.
    environ: what is set now; os.environ by default.
    """
    environ = os.environ if environ is None else environ
    wanted = {variable: str(_count(n, (variable, *others), environ)) for variable, others in _COUNTS.items()}
    if "NUMBA_NUM_THREADS" not in environ and "numba" not in sys.modules:  # Numba raises if it changes after its start
        wanted["NUMBA_NUM_THREADS"] = str(max(n, n_cpus or 1))
    if overlap:
        wanted.update(_patience(environ))
    return {variable: value for variable, value in wanted.items() if environ.get(variable) != value}


def _count(n: int, variables: tuple[str, ...], environ: Mapping[str, str]) -> int:
    for variable in variables:
        first = environ.get(variable, "").partition(",")[0].strip()  # OpenMP: a list, one number for each level
        if first.isascii() and first.isdecimal() and int(first) > 0:
            return min(n, int(first))
    return n


def _patience(environ: Mapping[str, str]) -> dict[str, str]:
    wanted = {"OPENBLAS_THREAD_TIMEOUT": OPENBLAS_TIMEOUT, "OMP_WAIT_POLICY": "passive"}
    if "OMP_WAIT_POLICY" not in environ:  # KMP_BLOCKTIME would outdo it
        wanted["KMP_BLOCKTIME"] = "0"
    return {variable: value for variable, value in wanted.items() if variable not in environ}
