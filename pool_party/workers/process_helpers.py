"""The processes that `multiprocessing` starts for its own needs: the resource tracker and the fork server.

A fork server imports the program's main module before it starts the first worker, which is most of the time until a
program's first result. So a pool of processes starts it before anything else is done or imported for the pool.
"""

from __future__ import annotations

import contextlib
import sys

from pool_party import _native


def start_early(method: str | None) -> None:
    """Start them in another thread, and wait for that, so that no signal handler runs amid it.

    A handler may end another pool, and wait for a thread that needs the locks which are held here. What fails is tried
    again when a worker starts, and is reported then.
    """
    if method in ("forkserver", "spawn"):
        with contextlib.suppress(Exception):
            _native.call_apart(lambda: ensure(method))


def ensure(method: str | None) -> None:
    """Start those that a start method needs and that do not run, with the caller's signal mask, which they inherit."""
    _complete_main()
    if method in ("forkserver", "spawn"):
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()
    if method == "forkserver":
        from multiprocessing import forkserver

        forkserver.ensure_running()


def _complete_main() -> None:
    """Give `__main__` what `multiprocessing` expects of it, since a program that runs a script may have replaced it.

    Workers name a script's classes after `__mp_main__`, which `multiprocessing` sets when it is imported. `__spec__` is
    read to start a process, and IPython's second `%run` of a script runs it in a module that has none.
    """
    main = sys.modules.get("__main__")
    if main is not None:
        sys.modules["__mp_main__"] = main
        main.__dict__.setdefault("__spec__", None)
        _forget_stdin(main.__dict__)


def _forget_stdin(main: dict[str, object]) -> None:
    """Remove `__file__` from a `__main__` that was read from stdin, which Python before 3.14 sets.

    multiprocessing would search for a script of that name in the child, and the child would die.
    """
    if main.get("__file__") == "<stdin>":
        main.pop("__file__", None)
