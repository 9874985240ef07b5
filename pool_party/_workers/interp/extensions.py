"""Lets interpreters load extension modules that do not support it, by giving each interpreter private copies of them.

CPython refuses to load an extension module into an interpreter with its own GIL unless the module declares support.
Those of NumPy, SciPy, pandas and scikit-learn do not: they keep state in static variables, which exist once per
process. The dynamic linker treats a copy of the file, under another inode, as another library with its own static
variables. So each interpreter has a NumPy of its own, as each process has. `native/interp/loader.c` does the loading;
docs/interpreters.md is for users.

Only the interpreters of pools of kind "interp" do this, before their initializer runs.
"""

import _imp
import os
import sys

from pool_party import _native
from pool_party._budget import packages
from pool_party._workers.interp import process_state
from pool_party._workers.interp.known import (
    ARROW,
    ARROW_SETTINGS,
    AT_RISK,
    OWN_LIBRARIES,
    PACKAGES,
    REFUSED,
    SLEEPERS,
    TESTED,
    why_refused,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.machinery import (
        ExtensionFileLoader,
        FileFinder,
        ModuleSpec,
        PathFinder,
        SourceFileLoader,
        SourcelessFileLoader,
    )
    from types import ModuleType
    from typing import Any

    from pool_party._workers.interp.elf import Dynamic
else:  # the same classes as importlib.machinery's; fresh interpreters have these modules already, and importlib is slow
    from _frozen_importlib import ModuleSpec
    from _frozen_importlib_external import (
        ExtensionFileLoader,
        FileFinder,
        PathFinder,
        SourceFileLoader,
        SourcelessFileLoader,
    )

# A standard-library module that also refuses -> the package that imports it but does not need it in interpreters.
STAND_INS = {"faulthandler": "joblib"}

# Packages with threads that never end by themselves, but do if their count is set to 1.
ENDLESS = ("cv2", "numexpr")

_IS_NEW = sys.version_info >= (3, 14) and "t" not in sys.abiflags
IS_SUPPORTED = _IS_NEW and bool(_native.HAS_GLIBC)
_REFUSAL = "does not support loading in subinterpreters"
_NUMPY_CORE = "numpy._core._multiarray_umath"
_NUMPY_WARNING = "NumPy was imported from a Python sub-interpreter"

_allowed: "frozenset[str]" = frozenset()
_copies: "dict[str, int]" = {}  # path of an original -> number of this interpreter's copy
_pinned: "set[str]" = set()  # libraries that this interpreter has loaded because its copies need them
_has_own_blas = False  # whether this interpreter also copies OpenBLAS
_own: "dict[str, tuple[int, str]]" = {}  # path of a library that copies need -> its own copy's number and name


def choose(names: "Iterable[str] | None") -> "tuple[str, ...]":
    """Return the packages for the option `extensions`: the default ones, and `names` with what they come with; none if
    `names` is empty.

    Raises: TypeError, ValueError for a value that is not the name of a top-level package.
    """
    default = PACKAGES if IS_SUPPORTED else TESTED  # others may do without their extension modules
    if names is None:
        return tuple(default)
    if isinstance(names, str):
        raise TypeError(f"extensions must be names of packages, such as [{names!r}], not a str")
    chosen = list(names)
    for name in chosen:
        if not isinstance(name, str):
            raise TypeError(f"extensions must be names of packages, not {name!r}")
        if not name.isidentifier():
            raise ValueError(f"extensions must be names of top-level packages, not {name!r}")
    if not chosen:
        return ()
    from pool_party._workers.interp import companions

    others = dict.fromkeys(name for name in chosen if name not in default)
    return tuple(dict.fromkeys([*default, *others, *companions.find(others)]))


def install(names: "Sequence[str]", has_own_blas: bool = False) -> None:
    """Make this interpreter load the extension modules of these packages as private copies.

    has_own_blas: whether their OpenBLAS is copied as well, so that each interpreter has its own threads and count.
    """
    global _allowed, _has_own_blas
    _allowed, _has_own_blas = frozenset(names), has_own_blas
    hook = FileFinder.path_hook(
        (_Loader, _imp.extension_suffixes()),
        (SourceFileLoader, [".py"]),
        (SourcelessFileLoader, [".pyc"]),
    )
    sys.path_hooks.insert(-1, hook)  # before CPython's own for folders
    sys.path_importer_cache.clear()
    sys.meta_path[:0] = [_Refusals, _StandIns] if IS_SUPPORTED else [_Refusals]
    process_state.change("importlib.util", _hide_refused)
    for name in packages.SETTINGS:
        process_state.change(name, _limit_package)
    process_state.change("threadpoolctl", _limit_threads)
    _make_joblib_sequential()


def _make_joblib_sequential() -> None:
    """Make joblib run sequentially: its pools need daemon threads, which CPython forbids here, and loky would hang.

    The variable is set behind os.environ's back, because os.environ would change the environment of the whole process.
    """
    environ = os.environ._data  # type: ignore[attr-defined]
    environ.setdefault(os.fsencode("JOBLIB_MULTIPROCESSING"), b"0")


def _limit_package(module: "Any") -> None:
    """Keep a package's threads to the worker's own budget. What is lent to the worker it does not get.

    Some packages' threads would never end by themselves, and run code of a copy that is closed.
    """
    import atexit

    if n := _native.own_grant():
        packages.keep_to(n)
    set_threads = getattr(module, packages.SETTINGS[module.__name__][1], None)
    if module.__name__ in ENDLESS and set_threads is not None:  # otherwise a module of the user's own
        atexit.register(set_threads, 1)


def _limit_threads(threadpoolctl: "Any") -> None:
    from pool_party._workers.interp import thread_limits

    thread_limits.adopt(threadpoolctl, own_handle, is_of_others, own_threads)


def copied() -> "set[str]":
    """Return the paths of the extension modules of which this interpreter has private copies."""
    return {*_copies}


def own_threads() -> "dict[str, int]":
    """Return path of the original -> threads that this interpreter's copy of OpenBLAS may use now."""
    return {library: _native.copy_threads(copy) for library, (copy, _) in _own.items() if _is_openblas(library)}


def own_handle(library: str) -> "int | None":
    """Return the dynamic loader's handle of this interpreter's copy of a library, or None if it has none."""
    return _native.copy_handle(_own[library][0]) if library in _own else None


def is_of_others(library: str) -> bool:
    """Whether a library is an OpenBLAS that this interpreter does not use, since it would have a copy."""
    return _has_own_blas and library not in _own and _is_openblas(library)


def _top(name: str) -> str:
    return name.partition(".")[0]


def _is_private(name: str) -> bool:
    """Whether this interpreter loads a module as a private copy.

    mypyc puts the code of a package's modules into one module beside the package, named HASH__mypyc. ctypes supports
    interpreters, but lets callbacks in threads that Python does not know enter the main one, which damages memory.
    Those of a copy enter their own.
    """
    if _top(name) in _allowed:
        return True
    return IS_SUPPORTED and bool(_allowed) and (name == "_ctypes" or name.endswith("__mypyc"))


class _Loader(ExtensionFileLoader):
    """Loads extension modules of the allowed packages as private copies, and all others as CPython does."""

    _is_fresh = False  # whether `create_module` has made a module that `exec_module` has not executed yet

    def create_module(self, spec: ModuleSpec) -> "ModuleType":
        if _is_private(spec.name):
            module = self._create_private(spec)
            self._is_fresh = True
            return module
        try:
            return super().create_module(spec)
        except ImportError as error:
            if _REFUSAL in str(error):
                _advise(error, _top(spec.name))
            raise

    def exec_module(self, module: "ModuleType") -> None:
        if not _is_private(self.name):
            super().exec_module(module)
            return
        if not self._is_fresh:
            raise ImportError(
                f"{self.name} cannot be reloaded: an extension module is initialized once", name=self.name
            )
        self._is_fresh = False
        if self.name == _NUMPY_CORE:
            _silence_numpy()
        _native.exec_extension(module)

    def _create_private(self, spec: ModuleSpec) -> "ModuleType":
        if not IS_SUPPORTED:
            raise ImportError(_unsupported(_top(spec.name)), name=spec.name)
        if self.path not in _copies and _is_linkable(self.path):
            library = os.path.realpath(self.path)
            _load_own(library, (), _top(spec.name))
            _copies[self.path], _ = _own[library]
        elif self.path not in _copies:
            _copies[self.path], _ = _open_copy(self.path, (), _top(spec.name))
        return _native.load_extension(_copies[self.path], _init_suffix(spec.name), spec)


def _init_suffix(name: str) -> str:
    """Return what follows "PyInit" in the name of a module's init function (PEP 489)."""
    last = name.rpartition(".")[2]
    if last.isascii():
        return f"_{last}"
    return "U_" + last.encode("punycode").replace(b"-", b"_").decode()


def _silence_numpy() -> None:
    """Silence NumPy's warning that it does not support subinterpreters, which is about sharing one instance among
    them.
    """
    import warnings

    warnings.filterwarnings("ignore", _NUMPY_WARNING, UserWarning)


def _advise(error: ImportError, package: str) -> None:
    advice = "use kind='process' or 'thread' for it"
    risk = f", or try extensions=[{package!r}] at your own risk" if IS_SUPPORTED else ""
    error.msg = f"{error.msg}: {advice}{risk}"
    error.args = (error.msg,)


def what_is_missing() -> str:
    """Return what private copies need and this Python lacks, as the end of a sentence."""
    if _IS_NEW:
        return "glibc, and this Python has another C library (musl)"
    version = f"{sys.version_info.major}.{sys.version_info.minor}{sys.abiflags}"
    return f"CPython 3.14 or later with a GIL, and this is {version}"


def _unsupported(package: str) -> str:
    return f"{package} in workers of kind 'interp' needs {what_is_missing()}: use kind='process' or 'thread' for it"


# ---- copies ----


def _open_copy(path: str, folders: "Sequence[str]", package: str, is_needed: bool = False) -> "tuple[int, str]":
    """Load a copy of a library. Return its number, and the name under which other copies find it if they need it.

    package: of the extension module that is being loaded.
    """
    try:
        return _open_checked_copy(path, folders, package, is_needed)
    except OSError as error:
        raise _why(path, error) from None


def _why(path: str, error: OSError) -> ImportError:
    """Return the error of a copy that could not be made, with the limit that it has met."""
    reason = str(error)
    if reason.startswith("/proc/self/fd"):  # the linker's text begins with the copy's name
        reason = reason.partition(": ")[2]
    try:
        from pool_party._ground import limits

        remedy = _about_static_tls(path) if "static TLS" in reason else limits.explain(error) or limits.near_limit()
    except OSError as exhaustion:  # no descriptor is left for looking
        remedy = f"; {exhaustion.strerror}"
    return ImportError(f"{path} cannot be copied for this interpreter: {reason}{remedy}", path=path)


def _about_static_tls(path: str) -> str:
    from pool_party._workers.interp.elf import Dynamic

    n = Dynamic(path).static_tls_bytes
    return (
        f"; each copy takes {n} bytes of a block that has a fixed size: set the environment variable GLIBC_TUNABLES="
        f"glibc.rtld.optional_static_tls=N before Python starts, where N is {n} times the number of workers plus 512, "
        "or use fewer workers, or kind='process'"
    )


def _check_room(path: str) -> None:
    """Leave some mappings to the rest of the program, which would crash without any.

    The mappings of the process are counted before the first copy of an interpreter, and then when they may be near the
    limit, since counting takes long where there are many.

    Raises: ImportError if no more copy may be loaded.
    """
    if not _native.has_room(not _copies):
        from pool_party._ground import limits

        raise ImportError(f"{path} is not copied for this interpreter: {limits.no_room()}", path=path)


def _open_checked_copy(path: str, folders: "Sequence[str]", package: str, is_needed: bool) -> "tuple[int, str]":
    from pool_party._workers.interp.elf import Dynamic

    _check_room(path)
    dynamic = Dynamic(path)
    names = _load_needed(dynamic, folders, package)
    _native.occupy_standard()
    fd = os.memfd_create(os.path.basename(path), os.MFD_CLOEXEC)
    try:
        _copy(path, fd)
        own_name = f"pp{os.fstat(fd).st_ino:x}"  # unique: no other copy can have that inode while this one is loaded
        if is_needed and dynamic.name:
            names[dynamic.name] = own_name
        elif is_needed:
            dynamic.give_name(fd, own_name)
        dynamic.make_unique_symbols_ordinary(fd)
        if _is_arrow(path):
            dynamic.replace(fd, ARROW_SETTINGS)
        dynamic.rename(fd, names)
        dynamic.postpone_constructors(fd)
        may_sleep = not is_needed and package in SLEEPERS
        return _native.open_copy(fd, path, _is_openblas(path), may_sleep, package not in PACKAGES), own_name
    except ImportError as error:
        if os.path.exists("/proc/self/fd"):
            raise
        text = f"{path} cannot be copied for an interpreter, since /proc is missing here: mount it, or use another kind"
        raise ImportError(text, path=path) from error
    except ValueError as error:
        raise ImportError(f"{path} cannot be copied: {error}", path=path) from None
    finally:
        os.close(fd)


def _copy(path: str, fd: int) -> None:
    _native.occupy_standard()
    original = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        left = os.fstat(original).st_size
        while left > 0:
            n = os.sendfile(fd, original, None, left)
            if n == 0:
                raise ImportError(f"{path} became shorter while it was copied", path=path)
            left -= n
    finally:
        os.close(original)


def _load_needed(dynamic: "Dynamic", folders: "Sequence[str]", package: "str | None") -> "dict[str, str]":
    """Load the libraries that a library needs, so that its copy, which is in no folder, finds them by name.

    package: for whose modules; None: the library is not copied.

    Return new names for those that are copied themselves. A dependency resolves symbols in the scope of whichever
    library loads it first. All dependencies are therefore loaded before the copy; otherwise libstdc++ would bind to
    templates in the copy, permanently.
    """
    folders = [*dynamic.folders, *folders]
    names = {}
    for name in dynamic.needed:
        library = next((file for folder in folders if os.path.exists(file := os.path.join(folder, name))), name)
        if package is not None and _is_copied(library):
            if library == name:  # only the linker knows where it is
                raise ImportError(f"{name} is not in its package, and interpreters cannot share it: use kind='process'")
            names[name] = _load_own(os.path.realpath(library), folders, package)
        elif library not in _pinned:
            _pinned.add(library)
            _load_shared(library, library != name, folders)
    return names


def _load_shared(library: str, is_file: bool, folders: "Sequence[str]") -> None:
    from pool_party._workers.interp.elf import Dynamic

    if is_file:
        _load_needed(Dynamic(library), folders, package=None)
        _pin(os.path.realpath(library))
        return
    try:
        _pin(library)
    except OSError:
        pass  # loading the copy itself then fails with an error that says so


def _is_openblas(library: str) -> bool:
    return "openblas" in os.path.basename(os.path.realpath(library))


def _is_arrow(library: str) -> bool:
    return os.path.basename(library).startswith(ARROW)


def _is_copied(library: str) -> bool:
    """Return whether each interpreter gets its own copy of a library that its copies need."""
    if os.path.basename(library).startswith(OWN_LIBRARIES) or _is_linkable(library):
        return True
    return _has_own_blas and os.path.isabs(library) and _is_openblas(library)


def _is_linkable(path: str) -> bool:
    """Whether a file is an extension module that others may need as a library, as pysam's are.

    The linker looks for libraries as "libNAME", and such modules name the folder in which they find each other.
    """
    from pool_party._workers.interp.elf import Dynamic

    name, suffix = os.path.basename(path), _imp.extension_suffixes()[0]
    is_named_so = name.startswith("lib") and name.endswith(suffix) and name != f"lib{suffix}"
    return is_named_so and os.path.isabs(path) and bool(Dynamic(path).folders)


def _load_own(library: str, folders: "Sequence[str]", package: str) -> str:
    """Return the name of this interpreter's own copy of a library, and limit the copy to the worker's budget.

    Arrow's threads end before the interpreter does; by themselves they never do.

    OpenBLAS starts threads when its count first needs them, on the CPUs of the thread that sets the count. If the
    worker is pinned, its count never changes, so these threads are pinned as well.
    """
    from pool_party._budget.environment import users_count

    if library not in _own:
        _own[library] = _open_copy(library, folders, package, is_needed=True)
        copy = _own[library][0]
        _native.limit_copy(copy, users_count("openblas"))
        if _is_arrow(library):
            import atexit

            atexit.register(_native.end_threads, copy)
    return _own[library][1]


def _pin(library: str) -> None:
    """Load a library for all workers and the rest of the process, while the thread may use all CPUs of the process.

    OpenBLAS counts CPUs when it is loaded, and starts threads on them, while this worker may be pinned to some CPUs.
    """
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))
    try:
        _native.pin_library(library)
    finally:
        os.sched_setaffinity(0, mine)


# ---- finders for other modules ----


class _StandIn:
    """Loads a module in which every function does nothing."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> "ModuleType | None":
        return None

    @staticmethod
    def exec_module(module: "ModuleType") -> None:
        module.__getattr__ = _find_nothing  # type: ignore[method-assign]


def _nothing(*args: object, **kwargs: object) -> None:
    """Do nothing: the real function would act on the whole process."""


def _find_nothing(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    return _nothing


class _StandIns:
    """Finds a stand-in for a module that refuses, once the package that imports it needlessly is being imported."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        if _allowed and STAND_INS.get(name) in sys.modules:
            return ModuleSpec(name, _StandIn)  # type: ignore[arg-type]
        return None


class _Refusal:
    """Makes the import of a module fail at once, with a better message than its extension modules would give."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> "ModuleType | None":
        raise ImportError(spec.loader_state, name=spec.name)

    @staticmethod
    def exec_module(module: "ModuleType") -> None: ...


class _Refusals:
    """Finds modules that crash or put files at risk, and allowed packages on Pythons where they cannot be loaded."""

    @staticmethod
    def find_spec(name: str, path: "Sequence[str] | None" = None, target: object = None) -> "ModuleSpec | None":
        if name in REFUSED or (IS_SUPPORTED and name in AT_RISK and name not in _allowed):
            reason = why_refused(name)
        elif not IS_SUPPORTED and name in TESTED and name in _allowed:
            reason = _unsupported(name)
        else:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None or _is_own(spec):
            return None
        return ModuleSpec(name, _Refusal, origin=spec.origin, loader_state=reason)  # type: ignore[arg-type]


def _is_own(spec: ModuleSpec) -> bool:
    """Return whether a module is one source file: the user's own, which has a package's name."""
    return isinstance(spec.loader, SourceFileLoader) and spec.submodule_search_locations is None


def _hide_refused(util: "Any") -> None:
    """Make `importlib.util.find_spec` not find what is refused, since libraries ask it what they may import."""
    find = util.find_spec

    def find_spec(name: str, package: "str | None" = None) -> "ModuleSpec | None":
        spec = find(name, package)
        return None if spec is not None and spec.loader is _Refusal else spec

    util.find_spec = find_spec
