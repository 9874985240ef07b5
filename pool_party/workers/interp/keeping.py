"""Makes an interpreter as if it were new when its pool ends, so that the next pool with `reuse=True` may have it.

What programs may rely on is in docs/interpreters.md. `begin` notes what a new interpreter is like, before any code of a
task runs there. At the end of each pool `clean` undoes what tasks have changed, and says whether that has succeeded.
If it has not, or if there is any doubt, the interpreter ends. Only interpreters of such pools import this module.
"""

import _imp
import _warnings
import atexit
import builtins
import gc
import os
import sys
from _contextvars import Context

from pool_party import _native
from pool_party.workers.interp import extensions, process_state
from pool_party.workers.interp.keeping_modules import MAIN, MISSING, Libraries, Module, spec_of
from pool_party.workers.interp.keeping_settings import reset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_GROWING = ("meta_path", "path_hooks")  # lists of `sys` that packages add to when they are imported


# ---- what a new interpreter is like ----


class _Noted:
    restored: "list[list[int]]"  # what `_lists` returned when all was restored

    def __init__(self) -> None:
        self.modules = {name: module for name, module in sys.modules.items() if name not in MAIN}
        self.main = {**vars(sys.modules["__main__"]), "__package__": None}
        self.main.pop("__file__", None)  # it is the program's, as is __package__
        self.builtins = dict(vars(builtins))
        self.sys = dict(vars(sys))
        self.lists = {name: list(value) for name, value in self.sys.items() if type(value) is list}
        self.dicts = {name: dict(value) for name, value in self.sys.items() if type(value) is dict}
        del self.dicts["modules"], self.dicts["path_importer_cache"]
        self.settings = [(get, put, get()) for module in (sys, gc) for get, put in _settings_of(module)]
        self.filters: Any = _warnings.filters
        self.first_filters = list(self.filters)
        self.callbacks = list(gc.callbacks)
        self.collects = gc.isenabled()
        self.fixed = _fixed_state(self.sys)
        self.n_exits = atexit._ncallbacks()


def _settings_of(module: "Any") -> "list[tuple[Callable[[], Any], Callable[..., Any]]]":
    """Return the functions of a module that return a setting, each with the one that changes it."""
    names = [name for name in dir(module) if name.startswith("get") and hasattr(module, f"s{name[1:]}")]
    return [(getattr(module, name), getattr(module, f"s{name[1:]}")) for name in names]


def _fixed_state(attributes: "dict[str, Any]") -> "tuple[Any, ...]":
    """Return what is not restored: nice value and scheduling policy of the thread, and settings of the streams."""
    names = ("closed", "encoding", "errors", "line_buffering", "write_through")
    streams = [attributes[name] for name in ("stdin", "stdout", "stderr")]
    return os.nice(0), os.sched_getscheduler(0), [[getattr(stream, name, None) for name in names] for stream in streams]


_noted: _Noted
_libraries: "Libraries | None" = None  # once those two are there
_is_spoilt = False  # a task has done what cannot be undone
_register: "Callable[..., Any]"  # the one of atexit
_exits: "list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]]" = []  # what it was told to call, and by which module
_context: Context  # of the tasks


def is_new() -> bool:
    """Return whether no pool has used the interpreter yet."""
    return _libraries is None


def begin(cpus: "tuple[int, ...]") -> None:
    """Note what the interpreter is like, if it is new. Otherwise adopt what has changed in the process since.

    cpus: where its thread is to run; () for all CPUs of the process.
    """
    global _libraries, _noted
    if _libraries is None:
        _watch_exits()
        _watch_audit_hooks()
        _noted = _Noted()
        _libraries = Libraries(_noted.modules)
    else:
        os.sched_setaffinity(0, cpus or os.sched_getaffinity(os.getpid()))
        _load_environment()
        extensions.make_joblib_sequential()
        process_state.adopt_key()


def _watch_exits() -> None:
    """Note what is registered with atexit, which does not say."""
    global _register
    _register, unregister = atexit.register, atexit.unregister

    def register(func: "Callable[..., Any]", /, *args: "Any", **kwargs: "Any") -> "Any":
        _register(func, *args, **kwargs)
        _exits.append((func, args, kwargs, sys._getframe(1).f_globals.get("__name__")))
        return func

    def forget(func: "Callable[..., Any]", /) -> None:
        unregister(func)
        _exits[:] = [entry for entry in _exits if entry[0] != func]

    atexit.register, atexit.unregister = register, forget


def _watch_audit_hooks() -> None:
    """Note whether there are any, since they cannot be removed."""
    add = sys.addaudithook

    def addaudithook(hook: "Callable[[str, tuple[Any, ...]], Any]") -> None:
        global _is_spoilt
        _is_spoilt = True
        add(hook)

    sys.addaudithook = addaudithook


def _load_environment() -> None:
    """Make `os.environ` what the process's environment is now, as it is in a new interpreter."""
    posix: Any = sys.modules["posix"]
    if hasattr(posix, "_create_environ"):  # CPython 3.14
        now = posix._create_environ()
    else:
        another: Any = _imp.create_builtin(posix.__spec__)
        _imp.exec_builtin(another)
        now = another.environ
    data: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    data.clear()
    data.update(now)


# ---- running a worker ----


def run(
    loop_run: "Callable[..., None]",
    worker: "_native.Worker",
    initialize: "Callable[[], object]",
    preload: "tuple[str, ...]",
    observe: "Callable[[_native.Worker], Callable[[], object]] | None",
) -> None:
    """Run a worker by `loop.run`, which is passed in, in a context of its own."""
    global _context

    def enter(worker: "_native.Worker") -> "Callable[[], object]":
        leave = observe and observe(worker)

        def end() -> None:
            try:
                if leave is not None:
                    leave()
            finally:
                worker.restore_limits()

        return end

    _context = Context()
    _context.run(loop_run, worker, initialize, 0, preload=preload, observe=enter)


# ---- cleaning ----


def clean() -> bool:
    """Undo what tasks have changed in this interpreter. Return whether it is as if it were new.

    This runs code of the user's: threads that are waited for, functions of atexit, and destructors.
    """
    assert _libraries is not None
    if not (_end_threads() and _run_exits(_libraries) and _can_be_cleaned()):
        return False
    for _ in range(2):  # destructors may change something again
        if not _clean(_libraries):
            return False
        if _is_clean(_libraries):
            return True
    return False


def _end_threads() -> bool:
    """Wait for the threads of tasks, as the interpreter's end would."""
    threading: Any = sys.modules.get("threading")
    futures: Any = sys.modules.get("concurrent.futures.thread")
    processes: Any = sys.modules.get("concurrent.futures.process")
    if threading is None:
        return True
    known = [module._python_exit for module in (futures, processes) if module is not None]
    if any(_called_by(call) not in known for call in threading._threading_atexits):
        return False  # it prepares the end of the interpreter, and there is no way back
    if processes is not None and processes._threads_wakeups:
        return False
    if futures is not None and futures._threads_queues:
        futures._python_exit()
        futures._shutdown = False
    unknown = threading._MainThread, threading._DummyThread  # ours is either; of others the native code knows
    while others := [thread for thread in threading.enumerate() if not isinstance(thread, unknown)]:
        for thread in others:
            thread.join()
    return True


def _called_by(call: "Any") -> object:
    """Return the function that was given to `threading._register_atexit`. CPython 3.12 has a partial for it."""
    if hasattr(call, "func"):
        return call.func
    return dict(zip(call.__code__.co_freevars, call.__closure__, strict=True))["func"].cell_contents


def _run_exits(libraries: Libraries) -> bool:
    """Call what tasks and the modules of the user have registered with atexit. What libraries have registered stays."""
    if _noted.n_exits:
        return False  # nobody knows what was registered before `begin`
    kept = libraries.names()
    stay = [entry for entry in _exits if entry[3] in kept and libraries.has_made(kept, entry[0])]
    if len(stay) == len(_exits):
        return True
    others = [entry for entry in _exits if not any(entry is each for each in stay)]
    _exits.clear()
    for entries, run_all in ((others, True), (stay, False)):
        atexit._clear()
        for func, args, kwargs, _ in entries:
            _register(func, *args, **kwargs)
        if run_all:
            _context.run(atexit._run_exitfuncs)
    _exits[:] = stay
    return True


def _can_be_cleaned() -> bool:
    """Return whether all that tasks have changed can be undone, as far as it can be seen beforehand."""
    modules = sys.modules
    return (
        not _is_spoilt
        and modules is _noted.sys["modules"]
        and all(modules.get(name) is module for name, module in _noted.modules.items())
        and not any(getattr(spec_of(module), "_initializing", False) for module in list(modules.values()))
        and all(sys.monitoring.get_tool(n) is None for n in range(6))
        and _fixed_state(_noted.sys) == _noted.fixed
        and not _has_processes_or_pools()
        and _has_all_copies()
    )


def _has_processes_or_pools() -> bool:
    """Return whether a task has started a process or a pool, or replaced other libraries' pools by ours."""
    places = (
        ("multiprocessing.process", "_children"),
        ("pool_party._core.exit", "_is_hooked"),
        ("pool_party._default", "_executors"),
        ("pool_party._default", "_configured"),
        ("pool_party.patching.apply", "_undoers"),
    )
    return any(getattr(sys.modules.get(module), name, None) for module, name in places)


def _has_all_copies() -> bool:
    """Return whether each private copy is that of a module that is there: it could not be loaded again."""
    origins = {spec.origin for module in list(sys.modules.values()) if (spec := spec_of(module)) is not None}
    return origins.issuperset(extensions.copied())


def _clean(libraries: Libraries) -> bool:
    global _context
    if not libraries.drop_others():
        return False
    kept = libraries.names()
    _restore_settings()
    _restore_namespaces(libraries, kept)
    if not reset(lambda thing: libraries.has_made(kept, thing)):
        return False
    _restore_warnings()  # which logging may have changed
    _context = Context()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return True


def _restore_namespaces(libraries: Libraries, kept: "set[str]") -> None:
    main = Module("__main__")
    vars(main).update(_noted.main)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    _restore(vars(builtins), _noted.builtins)
    _restore(vars(sys), _noted.sys)
    for name, entries in _noted.dicts.items():
        _restore(_noted.sys[name], entries)
    for name, then in _noted.lists.items():
        now = _noted.sys[name]
        front, back = _added(now, then, libraries, kept) if name in _GROWING else ([], [])
        now[:] = [*front, *then, *back]
    front, back = _added(gc.callbacks, _noted.callbacks, libraries, kept)
    gc.callbacks[:] = [*front, *_noted.callbacks, *back]
    gc.garbage.clear()
    _noted.restored = _lists()
    sys.path_importer_cache.clear()
    lazy: set[str] = getattr(sys, "lazy_modules", set())  # from CPython 3.15 on: imported lazily, and not loaded yet
    known = kept | sys.stdlib_module_names
    lazy.difference_update([name for name in lazy if name.partition(".")[0] not in known])


def _lists() -> "list[list[int]]":
    """Return which objects are in the lists of `sys` and `gc` now."""
    return [[*map(id, value)] for value in (*(_noted.sys[name] for name in _noted.lists), gc.callbacks)]


def _restore(now: "dict[str, Any]", then: "dict[str, Any]") -> None:
    for name in now.keys() - then.keys():
        del now[name]
    for name, value in then.items():
        if now.get(name, MISSING) is not value:
            now[name] = value


def _added(
    now: "list[Any]", then: "list[Any]", libraries: Libraries, kept: "set[str]"
) -> "tuple[list[Any], list[Any]]":
    """Return what packages have added before the first entry that was there, and after it."""
    known = {id(each) for each in then}
    first = next((n for n, each in enumerate(now) if id(each) in known), 0)
    new = [id(each) not in known and libraries.is_of_package(kept, each) for each in now]
    front = [each for each, is_new in zip(now[:first], new[:first], strict=True) if is_new]
    return front, [each for each, is_new in zip(now[first:], new[first:], strict=True) if is_new]


def _restore_settings() -> None:
    """Restore what the interpreter and this thread are set to."""
    for get, put, value in _noted.settings:
        if get() != value:
            put(*value) if isinstance(value, tuple) else put(value)
    gc.unfreeze()
    gc.enable() if _noted.collects else gc.disable()


def _restore_warnings() -> None:
    _noted.filters[:] = _noted.first_filters
    if (warnings := sys.modules.get("warnings")) is not None:
        module: Any = warnings
        module.filters = _noted.filters
        module.onceregistry.clear()
        module.showwarning, module.formatwarning = module._showwarning_orig, module._formatwarning_orig
        module._filters_mutated()


def _is_clean(libraries: Libraries) -> bool:
    """Return whether it is as it should be, and nothing of the user's waits for the end of the interpreter."""
    kept = libraries.names()
    names = ("path_importer_cache",)
    return (
        sys.modules.keys() == kept | {*MAIN}
        and vars(sys.modules["__main__"]).keys() == _noted.main.keys()
        and vars(builtins) == _noted.builtins
        and all(vars(sys).get(name, MISSING) is value for name, value in _noted.sys.items() if name not in names)
        and vars(sys).keys() == _noted.sys.keys()
        and _lists() == _noted.restored
        and not getattr(sys.modules.get("multiprocessing.util"), "_finalizer_registry", None)
        and not getattr(sys.modules.get("subprocess"), "_active", None)  # processes that run, and nobody refers to
        and all(libraries.has_made(kept, entry[0]) for entry in _exits)
        and all(libraries.has_made(kept, info.func) for info in _finalizers())
    )


def _finalizers() -> "list[Any]":
    """Return what `weakref.finalize` is to call."""
    weakref: Any = sys.modules.get("weakref")
    return [] if weakref is None else list(weakref.finalize._registry.values())
