"""Tasks on extension modules that tests build."""

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
