"""The native libraries of this process that have thread pools: OpenBLAS, MKL, BLIS, FlexiBLAS and OpenMP runtimes.

threadpoolctl finds them, but counts are set directly through the addresses of the libraries' own functions. That takes
0.1 us instead of some 200 us, and threadpoolctl 3.8 ignores calls for OpenBLAS from all threads but one.
"""

import os
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from pool_party import _native


@dataclass(frozen=True)
class Library:
    """A loaded library. Each loaded copy is a library of its own, such as NumPy's and SciPy's copies of OpenBLAS.

    The addresses stay valid until the process ends. A getter may return a number below 1, which means 1.
    """

    name: str  # openblas, mkl, blis, flexiblas, libgomp, libomp, libiomp
    path: str
    version: str | None
    threading_layer: str | None  # what makes its threads: pthreads, openmp, ...; None: unknown, or it has no threads
    scope: Literal["process", "thread"]  # whether its setter acts on the process or the thread
    setter: int  # address of void (*)(int)
    getter: int  # address of int (*)(void)
    callback: int | None = None  # address of openblas_set_threads_callback_function
    n_threads_max: int | None = None  # the most threads that it can use


# ---- finding them ----------------------------------------------------------

# Wheels rename OpenBLAS's functions, in several ways.
_AFFIXES = tuple(product(("", "scipy_"), ("", "64_", "_64")))

_OPENMP = ("omp_set_num_threads", "omp_get_max_threads")
_MKL_OF_THREAD = ("MKL_Set_Num_Threads_Local", "MKL_Get_Max_Threads")
_MKL_OF_PROCESS = ("MKL_Set_Num_Threads", "MKL_Get_Max_Threads")
_OF_PROCESS = {
    "openblas": ("openblas_set_num_threads", "openblas_get_num_threads"),
    "blis": ("bli_thread_set_num_threads", "bli_thread_get_num_threads"),
    "flexiblas": ("flexiblas_set_num_threads", "flexiblas_get_num_threads"),
    "mkl": _MKL_OF_PROCESS,
}


def find() -> tuple[Library, ...]:
    """Return all loaded libraries that have threads of their own. Takes about 0.2 ms if there may be any, else 3 us.

    In an interpreter that is a worker, these are the ones that it uses.
    """
    if not _native.n_thread_libraries() and "threadpoolctl" not in sys.modules:
        return ()
    described = (_describe(controller) for controller in _controllers())
    return tuple(library for library in described if library is not None)


def _controllers() -> list[Any]:
    """Return threadpoolctl's controllers, without its warning (see `warnings_for`)."""
    threadpoolctl = _import_threadpoolctl()
    silent = {"_warn_if_incompatible_openmp": lambda self: None}
    controllers: list[Any] = type("Controller", (threadpoolctl.ThreadpoolController,), silent)().lib_controllers
    return controllers


def _import_threadpoolctl() -> Any:
    """Import threadpoolctl, and undo the environment variable that its import sets."""
    variable = "KMP_DUPLICATE_LIB_OK"
    is_ours = "threadpoolctl" not in sys.modules and variable not in os.environ
    import threadpoolctl

    if is_ours:
        os.environ.pop(variable, None)
    return threadpoolctl


def _describe(controller: Any) -> Library | None:
    """Describe a library, or return None if it lacks functions that we need."""
    dll = controller.dynlib  # which keeps the library loaded
    kind, layer = controller.internal_api, _layer(controller)
    functions, scope = _functions(dll, kind, layer)
    if functions is None:
        return None
    return Library(
        name=controller.prefix if kind == "openmp" else kind,
        path=controller.filepath,
        version=controller.version,
        threading_layer=layer,
        scope=scope,
        setter=functions[0],
        getter=functions[1],
        callback=_address(dll, "openblas_set_threads_callback_function") if kind == "openblas" else None,
        n_threads_max=_openblas_max(dll) if kind == "openblas" else None,
    )


def _layer(controller: Any) -> str | None:
    if controller.internal_api == "openmp":
        return "openmp"
    layer: str | None = getattr(controller, "threading_layer", None)
    return None if layer in ("unknown", "disabled", "not specified") else layer


def _functions(dll: Any, kind: str, layer: str | None) -> tuple[tuple[int, int] | None, Literal["process", "thread"]]:
    """Return the addresses of setter and getter, or None, and how far they reach.

    An OpenBLAS that is built on OpenMP uses the OpenMP count of the calling thread; its own setter is unreliable.
    """
    of_thread = {"openmp": _OPENMP, "mkl": _MKL_OF_THREAD}.get(kind)
    if kind == "openblas" and layer == "openmp":
        of_thread = _OPENMP
    if of_thread and (functions := _both(dll, of_thread)):
        return functions, "thread"
    return _both(dll, _OF_PROCESS.get(kind)), "process"


def _both(dll: Any, names: tuple[str, str] | None) -> tuple[int, int] | None:
    if names is None:
        return None
    setter, getter = _address(dll, names[0]), _address(dll, names[1])
    return (setter, getter) if setter and getter else None


def _function(dll: Any, name: str) -> Any:
    for prefix, suffix in _AFFIXES:
        function = getattr(dll, prefix + name + suffix, None)
        if function is not None:
            return function
    return None


def _address(dll: Any, name: str) -> int | None:
    import ctypes

    function = _function(dll, name)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


def _openblas_max(dll: Any) -> int | None:
    import ctypes

    function = _function(dll, "openblas_get_config")
    if function is None:
        return None
    function.restype = ctypes.c_char_p
    limit = re.search(rb"MAX_THREADS=(\d+)", function() or b"")
    return int(limit[1]) if limit else None


def variables_of(library: Library) -> tuple[int, int] | tuple[()]:
    """Return where OpenBLAS keeps its count, and whether it has started its threads. Empty: unknown, or not OpenBLAS.

    It exports neither, but its file has the names, unless it is stripped. Takes about 1 ms.
    """
    if library.name != "openblas" or library.threading_layer != "pthreads":
        return ()
    import ctypes

    from pool_party._budget import variables

    getter: Any = _function(ctypes.CDLL(library.path, mode=os.RTLD_NOLOAD), _OF_PROCESS["openblas"][1])
    found = variables.find(library.path, getter.__name__, library.getter, ("blas_cpu_number", "blas_server_avail"))
    if found is None or ctypes.c_int.from_address(found[0]).value != _native.call_getter(library.getter):
        return ()  # it has another meaning there
    return found[0], found[1]


_lock = _native.Guard()  # shared by all `Loaded`: one thread searches at a time


def _renew_lock() -> None:
    global _lock
    _lock = _native.Guard()


os.register_at_fork(after_in_child=_renew_lock)


class Loaded:
    """The libraries found by the last `refresh`. Thread-safe."""

    def __init__(self) -> None:
        self.libraries: tuple[Library, ...] = ()
        self.has_variables = False  # whether the limiter knows what `variables_of` returns
        self._n_loads = 0

    def refresh(self) -> bool:
        """Search again if anything was loaded since the last time. Return True if the libraries have changed."""
        if _native.n_loads() == self._n_loads:
            return False
        with _lock:
            n_loads = _native.n_loads()  # before the search: what is loaded meanwhile is found the next time
            if n_loads == self._n_loads:
                return False
            found = find()
            has_changed = found != self.libraries
            self.libraries, self._n_loads = found, n_loads
            return has_changed


# ---- known defects ---------------------------------------------------------

_RACE = "may return wrong results when several threads of a process call it at once, each with more than one thread"


@dataclass(frozen=True)
class Flaw:
    """A defect of OpenBLAS from version `first` up to, but not including, version `fixed`."""

    first: tuple[int, ...]
    fixed: tuple[int, ...]
    threading_layer: str
    text: str


# Sources: OpenBLAS's change log and #5516, #5838, #5806; numpy #29391 and #31618. Builds between two releases
# (0.3.31.188) may contain a fix before the release that is named here.
KNOWN_BAD = (
    Flaw((), (0, 3, 4), "pthreads", f"before 0.3.4 {_RACE}"),
    Flaw((0, 3, 4), (0, 3, 28), "pthreads", f"before 0.3.34 {_RACE}, if they call different functions"),
    Flaw((0, 3, 28), (0, 3, 31), "pthreads", f"0.3.28 to 0.3.30 {_RACE}"),
    Flaw((0, 3, 31), (0, 3, 34), "pthreads", f"before 0.3.34 {_RACE}, if they call different functions"),
    Flaw((), (0, 3, 34), "openmp", "before 0.3.34, built on OpenMP, does not keep to openblas_set_num_threads"),
)


def warnings_for(library: Library, loaded: Collection[Library] = ()) -> tuple[str, ...]:
    """Return warnings for users of this library, in plain language. loaded: all libraries of the process."""
    this = library.version or "one that does not tell its version"
    found = [f"OpenBLAS {flaw.text}; this is {this}" for flaw in KNOWN_BAD if _has(library, flaw)]
    if library.name == "libiomp" and any(other.name == "libomp" for other in loaded):
        found.append("Intel's OpenMP (libiomp) and LLVM's (libomp) are both loaded; this may crash or deadlock")
    return tuple(found)


def _has(library: Library, flaw: Flaw) -> bool:
    if library.name != "openblas" or library.threading_layer != flaw.threading_layer:
        return False
    digits = re.match(r"\d+(\.\d+)*", library.version or "0")  # before 0.3.4 it does not tell its version
    return digits is not None and flaw.first <= tuple(map(int, digits[0].split("."))) < flaw.fixed
