"""Tasks that change the interpreter in which they run, and one that describes it. For tests/test_reuse.py."""

import asyncio
import atexit
import builtins
import contextlib
import contextvars
import copyreg
import decimal
import gc
import importlib.machinery
import linecache
import logging
import logging.handlers
import multiprocessing.process
import multiprocessing.reduction
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import typing
import warnings
import weakref

PLACE = contextvars.ContextVar("PLACE", default="new")


def number():
    """The number of this interpreter, which is never used again."""
    try:
        import _interpreters
    except ImportError:
        import _xxsubinterpreters

        return int(_xxsubinterpreters.get_current())
    return _interpreters.get_current()[0]


# ---- what an interpreter is like ----


def text_of(value):
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, dict):
        return {text_of(key): text_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [text_of(item) for item in value]
    return re.sub(r"0x[0-9a-f]+", "0x", repr(value))


def loggers():
    known = {name: each for name, each in logging.root.manager.loggerDict.items() if isinstance(each, logging.Logger)}
    changed = [
        (name, each.level, text_of(each.handlers), each.filters, each.propagate, each.disabled)
        for name, each in known.items()
        if each.level or each.handlers or each.filters or not each.propagate or each.disabled
    ]
    root = logging.root
    general = logging.raiseExceptions, logging.getLoggerClass(), logging.getLogRecordFactory(), root.manager.disable
    return changed, root.level, text_of(root.handlers), root.filters, text_of(general)


def look():
    """Everything that may differ between a new interpreter and one that has had a worker."""
    names = ("modules", "path_importer_cache", "stdin", "stdout", "stderr", "last_exc", "lazy_modules")
    getters = [getattr(sys, name) for name in dir(sys) if name.startswith("get") and hasattr(sys, f"s{name[1:]}")]
    return {
        "sys": {name: text_of(value) for name, value in vars(sys).items() if name not in names},
        "streams": [(each.name, each.closed, type(each).__name__) for each in (sys.stdin, sys.stdout, sys.stderr)],
        "settings": [(getter.__name__, text_of(getter())) for getter in getters],
        "builtins": {name: text_of(value) for name, value in vars(builtins).items()},
        "main": sorted(vars(sys.modules["__main__"])),
        "is_main_one": sys.modules["__main__"] is sys.modules["__mp_main__"],
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_debug(), text_of(gc.callbacks), gc.get_freeze_count()),
        "warnings": (text_of(warnings.filters), warnings.showwarning.__module__, warnings.formatwarning.__module__),
        "loggers": loggers(),
        "threads": sorted(text_of(type(each)) for each in threading.enumerate()),
        "threading": (
            threading.excepthook.__module__,
            threading.gettrace(),
            threading.getprofile(),
            threading.stack_size(),
        ),
        "names": sorted(each.name for each in threading.enumerate()),
        "cpus": os.sched_getaffinity(0),
        "signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "nice": os.nice(0),
        "environment": {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "context": [variable.name for variable in contextvars.copy_context()],
        "decimal": (decimal.getcontext().prec, decimal.getcontext().rounding),
        "loop": (asyncio.events._get_running_loop(), asyncio.events._event_loop_policy),
        "timeout": socket.getdefaulttimeout(),
        "process": (multiprocessing.process.current_process().name, len(multiprocessing.process._children)),
        "key": bytes(multiprocessing.process.current_process().authkey),
        "reducers": (sorted(map(repr, copyreg.dispatch_table)), sorted(map(repr, forking_reducers()))),
        "monitoring": [sys.monitoring.get_tool(n) for n in range(6)],
        "lines": sorted(linecache.cache),
    }


def forking_reducers():
    return multiprocessing.reduction.ForkingPickler._extra_reducers


def own_modules():
    """The modules that are neither of the standard library, nor of packages, nor ours: this one alone is expected."""
    found = [name for name in getattr(sys, "lazy_modules", ()) if name.partition(".")[0] == "own_lazy"]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        is_ours = name.partition(".")[0] == "pool_party"
        is_library = name.partition(".")[0] in sys.stdlib_module_names or file.startswith(
            os.path.dirname(os.__file__) + "/"
        )
        if not is_library and "/site-packages/" not in file and not is_ours:
            found.append(name)
    return sorted(found)


# ---- tasks that can be undone ----


class Watched:
    """An object of a class of the user's."""


def record(*args, **kwargs):
    """What is called instead of something else."""


def dirty_modules(folder):
    """Import a module, a package, a namespace package and a part of a library from another folder, and make some."""
    for name, text in {
        "own_module.py": "x = 1",
        "own_package/__init__.py": "",
        "own_package/inner.py": "y = 2",
        "own_space/part.py": "",
        "fractions.py": "z = 3",
    }.items():
        os.makedirs(os.path.dirname(f"{folder}/{name}"), exist_ok=True)
        with open(f"{folder}/{name}", "w") as file:
            file.write(text)
    sys.modules.pop("fractions", None)
    sys.path.insert(0, folder)
    for name in ("own_module", "own_package.inner", "own_space.part", "fractions"):
        __import__(name)
    made = sys.modules["made"] = sys.modules["logging.made"] = logging.made = types.ModuleType("logging.made")
    made.__file__ = logging.__file__
    sys.modules["alias_of_logging"] = logging
    sys.modules["no.parent"] = types.ModuleType("no.parent")
    sys.modules["not_a_module"] = Watched()
    if hasattr(sys, "lazy_modules"):
        exec("lazy import own_lazy", {})


def dirty_sys(folder):
    sys.path.append(folder)
    sys.argv.append("more")
    sys.meta_path.insert(0, Watched())
    sys.path_hooks.insert(0, record)
    sys.path_hooks.append(importlib.machinery.FileFinder.path_hook((importlib.machinery.SourceFileLoader, [".py"])))
    sys.warnoptions.append("error")
    sys.own = Watched()
    sys.excepthook = sys.displayhook = sys.unraisablehook = sys.breakpointhook = record
    sys.stdout = sys.stderr = open(os.devnull, "w")
    sys.stdin = None
    sys.dont_write_bytecode = not sys.dont_write_bytecode
    sys.setrecursionlimit(5000)
    sys.setswitchinterval(0.25)
    sys.set_int_max_str_digits(0)
    sys.set_coroutine_origin_tracking_depth(3)
    sys.setdlopenflags(sys.getdlopenflags() | os.RTLD_GLOBAL)
    sys.set_asyncgen_hooks(record, record)
    sys.path = tuple(sys.path)
    sys.meta_path = [*sys.meta_path]
    del sys.getrefcount


def dirty_traces(folder):
    threading.settrace(record)
    threading.setprofile(record)
    sys.settrace(record)
    sys.setprofile(record)


def dirty_builtins(folder):
    builtins.open = builtins.own = builtins.__import__ = record
    del builtins.callable


def dirty_main(folder):
    main = sys.modules["__main__"]
    main.own = Watched()
    main.own.cycle = main.own
    exec("def f(): return g\ndef g(): return f", vars(main))
    sys.modules["__mp_main__"] = types.ModuleType("__mp_main__")


def dirty_gc(folder):
    gc.disable()
    gc.set_threshold(1, 2, 3)
    gc.callbacks.append(record)
    gc.freeze()


def dirty_warnings(folder):
    warnings.simplefilter("error")
    warnings.showwarning = warnings.formatwarning = record
    warnings.catch_warnings().__enter__()
    warnings.filterwarnings("ignore", "all of them")


def dirty_logging(folder):
    logging.basicConfig(filename=f"{folder}/log", level=logging.DEBUG, force=True)
    logging.disable(5)
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    logging.setLogRecordFactory(lambda *args, **kwargs: record)
    for name in ("asyncio", "own.logger"):
        logger = logging.getLogger(name)
        logger.addHandler(logging.handlers.MemoryHandler(10))
        logger.addFilter(record)
        logger.setLevel(3)
        logger.propagate, logger.disabled = False, True


def dirty_threads(folder):
    threading.excepthook = record
    threading.stack_size(1 << 20)
    threading.current_thread().name = threading.main_thread().name = "own name"
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})


def dirty_pool_of_threads(folder):
    from concurrent.futures import ThreadPoolExecutor

    sys.modules["__main__"].executor = executor = ThreadPoolExecutor(2)
    executor.submit(record).result()


def dirty_context(folder):
    PLACE.set("old")
    decimal.getcontext().prec = 3
    os.environ["OWN_VARIABLE"] = "x"
    os.environ._data[b"OWN_VIEW"] = b"y"
    os.unsetenv("OWN_VARIABLE")


def dirty_asyncio(folder):
    loop = asyncio.new_event_loop()
    asyncio.events._event_loop_policy = Watched()
    asyncio._set_running_loop(loop)
    loop.close()
    socket.setdefaulttimeout(7)


def dirty_multiprocessing(folder):
    process = multiprocessing.process.current_process()
    process.name, process.authkey = "own name", b"own key"


def dirty_reducers(folder):
    copyreg.pickle(Watched, record)
    copyreg.pickle(decimal.Decimal, record)
    multiprocessing.reduction.ForkingPickler.register(Watched, record)
    copyreg.dispatch_table[decimal.Context] = print
    del copyreg.dispatch_table[decimal.Context]
    typing.List[Watched]  # noqa: UP006
    linecache.getlines(__file__)


def dirty_atexit(folder):
    path = f"{folder}/ended"

    def note(text):
        with open(path, "a") as file:
            file.write(text)

    atexit.register(note, "2")
    atexit.register(note, text="1")
    atexit.register(note, "not this").cancelled = True
    atexit.unregister(note)
    for text in ("b", "a"):
        atexit.register(write_to, path, text)
    atexit.register(print, "", end="", flush=True)  # a function of a library, which this module has registered


def write_to(path, text):
    """Append to a file, without a file object: one whose task is interrupted just then would warn in its destructor."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, text.encode())
    os.close(fd)


def dirty_random(folder):
    random.seed(1)


def dirty_error(folder):
    sys.last_exc = ValueError("kept, with its frames")
    raise sys.last_exc


def dirty_thread_that_is_waited_for(folder):
    def work():
        while not os.path.exists(f"{folder}/go"):
            time.sleep(0.001)
        write_to(f"{folder}/done", "x")

    threading.Thread(target=work).start()


class Interferes:
    """An object whose destructor changes the interpreter, and makes another such object if it is to."""

    def __init__(self, stays):
        self.stays = stays
        self.itself = self

    def __del__(self, sys=sys):
        sys.left_by_destructor = True
        sys.path_hooks.append(self)
        if self.stays and "__main__" in sys.modules:
            sys.modules["__main__"].interferes = type(self)(True)


def dirty_destructor(folder):
    sys.modules["__main__"].interferes = Interferes(False)


class Tells:
    """An object that notes its end in a file."""

    def __init__(self, path, letter):
        self.path, self.letter, self.itself = path, letter, self

    def __del__(self, write_to=write_to):
        write_to(self.path, self.letter)


def leave_objects(path):
    """Leave objects where tasks leave them, as parts of cycles."""
    sys.modules["__main__"].left = Tells(path, "m")
    sys.modules[__name__].left = Tells(path, "g")
    sys.left = Tells(path, "s")
    builtins.left = Tells(path, "b")
    PLACE.set(Tells(path, "c"))
    logging.getLogger("left").addFilter(Tells(path, "l"))
    threading.excepthook = Tells(path, "t")
    warnings.showwarning = Tells(path, "w")
    record.left = Tells(path, "f")
    gc.callbacks.append(Tells(path, "G").__init__)
    exec("def f(): pass", vars(sys.modules["__main__"]))
    sys.modules["__main__"].f.left = Tells(path, "F")


DIRTY = [value for name, value in list(globals().items()) if name.startswith("dirty_")]


# ---- tasks after which an interpreter ends ----


def spoil_by_audit_hook():
    sys.addaudithook(record)


def spoil_by_monitoring():
    sys.monitoring.use_tool_id(3, "own")


def spoil_by_closing_output():
    sys.stdout.close()


def spoil_by_settings_of_output():
    sys.stdout.reconfigure(errors="replace", line_buffering=True, write_through=True)


def spoil_by_finalizer():
    weakref.finalize(logging, record)


def spoil_by_thread_exit():
    threading._register_atexit(record)


def spoil_by_destructor():
    sys.modules["__main__"].interferes = Interferes(True)


def spoil_by_new_module():
    sys.modules["os"] = types.ModuleType("os")


def spoil_by_pool():
    from pool_party import ThreadPool

    with ThreadPool(1) as pool:
        assert pool.apply(abs, (-1,)) == 1


def spoil_by_process():
    subprocess.Popen(["tail", f"--pid={os.getpid()}", "-f", os.devnull])  # runs as long as this process


def spoil_by_nice():
    os.nice(1)


def spoil_by_logger():
    class Own(logging.Logger):
        pass

    logging.setLoggerClass(Own)
    logging.getLogger("of a class of the user's")


SPOILING = [value for name, value in list(globals().items()) if name.startswith("spoil_")]


# ---- others ----


def is_as_reuse_needs(names):
    """Whether none of these modules is loaded, and what `__main__` and its parts have."""
    return [name for name in names if name in sys.modules], hasattr(logging, "made")


def use_numpy(n):
    import numpy

    return float(numpy.linalg.norm(numpy.arange(n)))


def numpy_is_loaded():
    return "numpy" in sys.modules


def initialize(path):
    write_to(path, "i")


def log_and_print(text):
    logging.getLogger("own").warning(text)
    print(text)


def wait_in_import(folder):
    """Import a module that waits, and that the end of the pool interrupts."""
    sys.path.insert(0, folder)
    import waits  # noqa: F401


def hold(path):
    """Say that the task runs, and run until it is interrupted."""
    write_to(path, "x")
    with contextlib.suppress(ValueError):
        while True:
            time.sleep(0.001)


def end_when_told(begun, told):
    """Say that the task runs. After it was interrupted, end some time after it was told to."""
    write_to(begun, "x")
    try:
        while True:
            time.sleep(0.001)
    finally:
        while not os.path.exists(told):
            time.sleep(0.001)
        for _ in range(3_000_000):
            pass


def number_of(x):
    return number()


def number_and_cpus(x):
    return number(), tuple(sorted(os.sched_getaffinity(0)))


def own_modules_around(name, folder):
    """The modules of the user's before a task, and those that it imported."""
    before, all_before = own_modules(), {*sys.modules}
    if name in globals():
        globals()[name](folder)
    return before, sorted(module for module in sys.modules.keys() - all_before if type(module) is str)


def value_of(name):
    return __import__(name).value


def registered():
    """Which modules have registered functions with atexit."""
    from pool_party.workers.interp import keeping

    return [entry[3] for entry in keeping._exits]


def draw():
    return random.random()


def place():
    return PLACE.get()


def variable(name):
    return os.environ.get(name)


def arguments():
    return sys.argv, sys.path


def import_it(name):
    __import__(name)


def remove_numpy():
    import numpy  # noqa: F401

    del sys.modules["numpy"]


def set_numpy():
    import numpy

    numpy.random.seed(5)
    numpy.seterr(all="raise")
    numpy.monkey = "patch"


def look_at_numpy():
    import numpy

    return numpy.geterr()["divide"], float(numpy.random.random()), getattr(numpy, "monkey", None)
