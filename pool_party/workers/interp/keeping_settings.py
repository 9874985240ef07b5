"""Gives modules of the standard library, and our own, the state that they have in a new interpreter.

Only what is listed here is reset. docs/interpreters.md says what that means for programs.
"""

import itertools
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    type _IsOfLibrary = Callable[[object], bool]


def _reset_threading(threading: "Any", is_of_library: "_IsOfLibrary") -> None:
    threading.excepthook = threading.__excepthook__
    threading._trace_hook = threading._profile_hook = None
    threading.stack_size(0)
    threading.main_thread()._name = "MainThread"
    if hasattr(threading, "_thread_local_info"):  # of a thread that `threading` did not know, as ours is from 3.13 on
        vars(threading._thread_local_info).clear()


def _reset_logging(logging: "Any", is_of_library: "_IsOfLibrary") -> bool:
    manager = logging.Logger.manager
    loggers = [each for each in manager.loggerDict.values() if isinstance(each, logging.Logger)]
    if not all(is_of_library(type(logger)) for logger in loggers):
        return False
    logging.captureWarnings(False)
    logging.raiseExceptions = True
    logging.lastResort = logging._defaultLastResort
    logging.setLoggerClass(logging.Logger)
    logging.setLogRecordFactory(logging.LogRecord)
    manager.loggerClass = manager.logRecordFactory = None
    manager.disable = 0
    for logger in (logging.root, *loggers):
        _reset_logger(logging, logger)
    manager._clear_cache()
    return True


def _reset_logger(logging: "Any", logger: "Any") -> None:
    for handler in list(logger.handlers):
        if type(handler) is not logging.NullHandler:  # a library's own, which does nothing
            logger.removeHandler(handler)
            handler.flush()
            handler.close()
    logger.filters.clear()
    logger.disabled = False
    logger.propagate = True
    logger.level = logging.WARNING if logger is logging.root else logging.NOTSET


def _reset_process(process: "Any", is_of_library: "_IsOfLibrary") -> None:
    process._current_process = type(process._current_process)()
    process._parent_process = None
    process._process_counter = itertools.count(1)
    process._children.clear()


def _reset_tracker(module: "Any", is_of_library: "_IsOfLibrary") -> None:
    module._resource_tracker._fd = None  # `process_state` asks for the main interpreter's again


def _reset_asyncio(events: "Any", is_of_library: "_IsOfLibrary") -> None:
    events._set_running_loop(None)
    events._event_loop_policy = None


def _reset_reduction(reduction: "Any", is_of_library: "_IsOfLibrary") -> None:
    _drop_reducers(reduction.ForkingPickler._extra_reducers, is_of_library)


def _reset_copyreg(copyreg: "Any", is_of_library: "_IsOfLibrary") -> None:
    _drop_reducers(copyreg.dispatch_table, is_of_library)


def _drop_reducers(table: "dict[Any, Any]", is_of_library: "_IsOfLibrary") -> None:
    for cls, reducer in list(table.items()):
        if not (is_of_library(cls) and is_of_library(reducer)):
            del table[cls]


def _reset_typing(typing: "Any", is_of_library: "_IsOfLibrary") -> None:
    for clear in typing._cleanups:  # caches, which keep classes alive
        clear()


def _reset_namespace(namespace: "Any", is_of_library: "_IsOfLibrary") -> None:
    namespace._namespace = None
    for table in (namespace.marks, namespace._codes, namespace._pending, namespace._coming, namespace._tokens):
        table.clear()


def _reset_definitions(definitions: "Any", is_of_library: "_IsOfLibrary") -> None:
    definitions._caller = None
    definitions._of_caller.clear()
    definitions._settled.clear()


def _reset_contexts(contexts: "Any", is_of_library: "_IsOfLibrary") -> None:
    contexts._known.clear()
    contexts._made.clear()


_RESETS: "dict[str, Callable[[Any, _IsOfLibrary], object]]" = {
    "threading": _reset_threading,
    "logging": _reset_logging,
    "multiprocessing.process": _reset_process,
    "multiprocessing.resource_tracker": _reset_tracker,
    "multiprocessing.reduction": _reset_reduction,
    "asyncio.events": _reset_asyncio,
    "copyreg": _reset_copyreg,
    "typing": _reset_typing,
    "linecache": lambda linecache, _: linecache.clearcache(),
    "random": lambda random, _: random.seed(),
    "socket": lambda socket, _: socket.setdefaulttimeout(None),
    "pool_party.wire.namespace": _reset_namespace,
    "pool_party.wire.definitions": _reset_definitions,
    "pool_party._core.contexts": _reset_contexts,
}


def reset(is_of_library: "_IsOfLibrary") -> bool:
    """Reset those of these modules that are loaded. Return False if that is not possible.

    is_of_library: says of a class or function whether it is not the user's own.
    """
    loaded = [(sys.modules[name], function) for name, function in _RESETS.items() if name in sys.modules]
    return all(function(module, is_of_library) is not False for module, function in loaded)
