"""The worker side, the same for all kinds: it initializes, reports, and runs tasks until the pool ends.

It runs in fresh interpreters and processes, so it imports nothing that start-up does not need.
"""

import os
import sys

from pool_party import _native
from pool_party._ground.quoting import place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pool_party._ground.quoting import Call, Place


REPR_MAX = 10_000  # characters of the repr of a value that could not be sent, perhaps because it was too large


def format_traceback(error: BaseException) -> str:
    """Format the traceback as `multiprocessing.pool.RemoteTraceback` quotes it."""
    import traceback
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # linecache warns about modules that were built by hand
        lines = traceback.format_exception(type(error), error, error.__traceback__)
    return f'\n"""\n{"".join(lines)}"""'


def safe_repr(value: object) -> str:
    """Return the value's repr, or a text that says why it has none."""
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__} object whose repr raised {type(error).__name__}>"


def describe(
    error: BaseException, call: "Call | None" = None, encode: "Callable[[object], object] | None" = None
) -> "tuple[object, str, str, Place | None]":
    """Make what is sent for an exception.

    It is the payload, or why it does not pickle as a str; its repr; its traceback; and which item has raised it.

    call: what has raised it. encode: makes the payload; None: for a receiver on this machine.
    """
    place = place_of(error, call)
    try:
        text = format_traceback(error)
    except Exception as reason:
        text = f"(no traceback: formatting it raised {safe_repr(reason)})"
    error.__traceback__ = None
    payload: object
    try:  # without a descriptor or memory not even the import succeeds
        from pool_party._wire import codec

        payload = codec.encode(error, is_local=_is_interpreter) if encode is None else encode(error)
    except Exception as reason:
        payload = safe_repr(reason)
    return payload, safe_repr(error), text, place


def describe_unencodable(
    error: BaseException, result: object, encode: "Callable[[object], object] | None" = None
) -> "tuple[str, str, tuple[object, str, str, Place | None]]":
    """Make what is sent for a result that does not pickle: the reprs of reason and result, and the reason as
    `describe`.

    A pool raises an error that contains the first two; an executor raises the reason itself.
    """
    text = safe_repr(result)
    if len(text) > REPR_MAX:
        text = f"{text[:REPR_MAX]}... ({len(text)} characters)"
    return safe_repr(error), text, describe(error, encode=encode)


def keep(error: BaseException, call: "Call | None" = None) -> "tuple[BaseException, Place | None]":
    """Make what is sent for an exception by reference: itself, and which item has raised it."""
    return error, place_of(error, call)


def run(
    worker: "_native.Worker",
    initialize: "Callable[[], object]",
    max_tasks: int,
    failed: "Callable[..., Any]" = describe,
    preload: "tuple[str, ...]" = (),
    observe: "Callable[[_native.Worker], Callable[[], object]] | None" = None,
) -> None:
    """Run a worker from its initializer to its end.

    observe: begins to relay what the worker logs and prints, and returns what to call at its end.
    """
    worker.enter()
    leave = None
    try:
        try:
            leave = observe and observe(worker)
            if preload:
                from pool_party._workers import preloading

                preloading.load(preload, worker)
            worker.initialize(initialize)
        except BaseException as error:
            if not worker.must_stop:
                worker.report_broken(failed(error))
            return
        worker.ready()
        worker.serve(failed, describe_unencodable, max_tasks)
    except BaseException:
        if not worker.must_stop:  # otherwise the exception was what interrupted it
            raise
    finally:
        try:
            if leave is not None:
                leave()
        finally:
            worker.leave()


_is_interpreter = False
is_remote = False  # this process, or this interpreter, is a worker of a pool


def run_interpreter(worker: "_native.Worker", config: "tuple[Any, ...]") -> None:
    """Run a worker in an interpreter. config is what `workers.interp.worker` marshalled."""
    from pool_party._workers.interp import extensions, process_state

    global _is_interpreter, is_remote
    _is_interpreter = is_remote = True
    sys.argv, main_names, cpus, packages, steps, initializer, max_tasks, preload, name, relay = config
    if cpus:
        os.sched_setaffinity(0, cpus)
    main = sys.modules["__mp_main__"] = sys.modules["__main__"]  # as in processes of `multiprocessing`
    main.__dict__.update(main_names)
    extensions.install(*packages)
    process_state.install()
    sys.unraisablehook = _native.interrupt_hook(sys.unraisablehook)
    if steps is not None:
        take_steps(steps)

    def initialize() -> object:
        if initializer is None:
            return None
        from pool_party._wire import codec

        function, args = codec.decode(initializer)
        function(*args)
        return function, args  # an interrupt that comes now does not hit their destructors

    run(worker, initialize, max_tasks, preload=preload, observe=relaying(name, relay))


def take_steps(encoded: bytes) -> None:
    """Do what `workers.interp.steps` lists."""
    from pool_party._wire import codec

    for module, step, args in codec.decode(encoded):
        getattr(__import__(module, fromlist=["__name__"]), step)(*args)


def relaying(name: str, terms: "tuple[Any, ...] | None") -> "Callable[[_native.Worker], Callable[[], object]] | None":
    """Return the `observe` of `run`, or None if nothing is to be relayed. terms: from `workers.relaying.terms`."""
    if terms is None:
        return None

    def enter(worker: "_native.Worker") -> "Callable[[], object]":
        from pool_party._workers import relaying

        return relaying.enter(worker, name, terms)

    return enter


def end_threads() -> None:
    """Wait for the interpreter's threads, as its end would.

    It is done earlier, so that other interpreters can start meanwhile.
    """
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
        # the interpreter's end calls it again, which 3.12 does not allow
        threading._shutdown = lambda: None  # type: ignore[attr-defined]
        # 3.13.0 takes this thread for a foreign one, and complains if it forgets the thread once the module is gone
        vars(getattr(threading, "_thread_local_info", threading.local())).clear()
