"""Tasks on extension modules that tests build."""

import atexit
import importlib
import pickle


def facts(name):
    """Return what a module and its function report of themselves, a constant, and the number of inits."""
    module = importlib.import_module(name)
    count = pickle.loads(pickle.dumps(module.count))
    return module.__name__, count.__module__, module.answer, module.count()


def import_twice(name):
    """Import a module again after it was forgotten. The module itself handles that."""
    import sys

    importlib.import_module(name)
    del sys.modules[name]
    return importlib.import_module(name).count()


def attribute(name, what):
    """Return an attribute of a module."""
    return getattr(importlib.import_module(name), what)


def imports_of(names):
    """Return whether one module found only the second one that it asked for, and whether another did without."""
    asks, tries = map(importlib.import_module, names)
    refused, known = asks.found
    return [refused is None and known is not None, tries.torch is None]


def inner(name):
    """Return whether a module has made a submodule, and whether another module was refused meanwhile."""
    module = importlib.import_module(name)
    return isinstance(module.inner, type(importlib)), module.refused


def run_scheduled(what):
    """Schedule a call. Return this interpreter, and the one that ran the call (-1: none).

    what: the name of the module, and whether the call is scheduled by a thread that Python does not know.
    """
    name, in_raw_thread = what
    module = importlib.import_module(name)
    assert module.schedule(in_raw_thread)
    for _ in range(10_000_000):
        if module.called() != -1:
            break
    return module.here(), module.called()


def schedule_late(what):
    """Start a thread that schedules a call later, perhaps after this interpreter's end.

    what: the name of the module, and two descriptors: the thread reads from one, and writes to the other.
    """
    name, to_read, to_write = what
    importlib.import_module(name).stay(to_read, to_write)


def enter_in_raw_thread(name):
    """Return this interpreter, and the one that a thread enters which Python does not know."""
    module = importlib.import_module(name)
    return module.here(), module.entered()


def enter_at_exit(name):
    """Have the interpreter's end wait for a thread that enters it and that Python does not know."""
    atexit.register(importlib.import_module(name).entered)


def register_exit(name):
    """Register a function for Python's end, which sets PP_TEST_EXIT."""
    return importlib.import_module(name).at_exit()


def make_key(name):
    """Make a thread-specific key that the module never deletes."""
    return importlib.import_module(name).make_key()


def constructed(name):
    """Return how many constructors a module's library has run, and the number of arguments that they got."""
    return importlib.import_module(name).constructed()


def count(name):
    """Call two functions that count their calls: in a library that a module needs, and in the module itself."""
    module = importlib.import_module(name)
    return module.count(), module.use()


def use(name):
    """Call a function of a module."""
    return importlib.import_module(name).use()


def lines_of_maps(name, file):
    """Import a module, and return the mappings of its file, of files without a name, and those after them."""
    importlib.import_module(name)
    with open("/proc/self/maps") as maps:
        lines = maps.read().splitlines()
    before = ["", *lines]
    return [line for n, line in enumerate(lines) if file in before[n] + line or "memfd:" in line]


def count_in(names):
    """Call a function of each module."""
    return [importlib.import_module(name).count() for name in names]


def call_at_end(name):
    """Make a module be called when the library that it needs is closed."""
    importlib.import_module(name).call_at_end()


def begin(name, *args):
    """Call a module's function that begins something which outlives the interpreter."""
    return importlib.import_module(name).begin(*args)
