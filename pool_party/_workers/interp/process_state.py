"""Makes interpreters use the process's authentication key and resource tracker of `multiprocessing`, and its processor.

With its own key an interpreter could not talk to the managers that its process has started. A tracker of its own would,
when the interpreter ends, remove shared memory that a task has attached. So both come from the main interpreter, as a
worker process gets them from its parent.

For the name of the processor, `platform` starts a program. The new process has the descriptors of all interpreters for
a moment, and with them the lock on an HDF5 file that another one closes just then. h5py asks for it when it is
imported. So it is asked for once, in the main interpreter.
"""

import sys

from pool_party import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec, PathFinder
    from types import ModuleType
    from typing import Any
else:
    from _frozen_importlib_external import PathFinder

_KEY = """
from multiprocessing.process import current_process
result = bytes(current_process().authkey)
"""
_TRACKER = """
from multiprocessing import resource_tracker
result = str(resource_tracker.getfd()).encode()
"""
_PROCESSOR = """
import platform
result = platform.processor().encode()
"""


def _adopt_key(module: "Any") -> None:
    module.current_process().authkey = _native.ask_main(_KEY)


def _adopt_tracker(module: "Any") -> None:
    """Make every function that needs the tracker get the main interpreter's first."""
    tracker = module._resource_tracker

    def with_tracker(function: "Callable[..., Any]") -> "Callable[..., Any]":
        def call(*args: "Any") -> "Any":
            if tracker._fd is None:
                tracker._fd = int(_native.ask_main(_TRACKER))
            return function(*args)

        return call

    for name in ("ensure_running", "register", "unregister", "getfd"):
        function = with_tracker(getattr(tracker, name))
        setattr(tracker, name, function)
        setattr(module, name, function)


def _adopt_processor(module: "Any") -> None:
    module._Processor.from_subprocess = staticmethod(lambda: _native.ask_main(_PROCESSOR).decode())


_ADOPTERS: "dict[str, Callable[[Any], None]]" = {
    "multiprocessing.process": _adopt_key,
    "multiprocessing.resource_tracker": _adopt_tracker,
    "platform": _adopt_processor,
}


def change(name: str, function: "Callable[[Any], None]") -> None:
    """Call a function with a module as soon as it is loaded, or now if it is."""
    if name in sys.modules:
        function(sys.modules[name])
    else:
        _ADOPTERS[name] = function


class _Finder:
    """Finds the modules of _ADOPTERS as usual, and changes them once they are loaded."""

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "ModuleType | None" = None) -> "ModuleSpec | None":
        if name not in _ADOPTERS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        loader: Any = spec and spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: "ModuleType") -> None:
                execute(module)
                _ADOPTERS[name](module)

            loader.exec_module = exec_module
        return spec


def install() -> None:
    """Make modules that are imported from now on use what the process has."""
    sys.meta_path.insert(0, _Finder)
