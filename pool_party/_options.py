"""Checks the options of pools and executors, and makes the engine that they describe."""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Callable, Iterable

from pool_party import _native
from pool_party._core.engine import Engine
from pool_party.budget.plan import Limits, make_plan
from pool_party.budget.topology import cpu_count
from pool_party.workers import preloading
from pool_party.workers.base import Setup, has_interpreters, start_method

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextvars import ContextVar
    from typing import Any, Unpack

    from pool_party._core.contexts import Carrier
    from pool_party.observe.relay import Relay
    from pool_party.workers.cluster.broker import Transport

KINDS = {
    "thread": "thread",
    "process": "process",
    "subprocess": "process",
    "interp": "interp",
    "subinterpreter": "interp",
    "dask": "dask",
    "mpi": "mpi",
}
REMOTE_KINDS = ("dask", "mpi")  # their workers are on other machines
N_REMOTE_SLOTS = 1024  # tasks that a cluster may have under way at a time; guess


def resolve_kind(kind: str) -> str:
    """Return the kind for a name or an alias. Raises ValueError, which lists them all."""
    try:
        return KINDS[kind]
    except (KeyError, TypeError):
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, not {kind!r}") from None


def resolve_context(context: Any) -> Any:
    """Return a `multiprocessing` context, given itself or its name. What `_start_context` leaves out is the default."""
    import multiprocessing

    context = _start_context(context)
    return multiprocessing.get_context(context) if context is None or isinstance(context, str) else context


def _start_context(context: Any) -> Any:
    """Return what `context=` says about starting processes: nothing if it is a bool, about context variables."""
    return None if isinstance(context, bool) else context


def _choose_number(n_workers: Any) -> int:
    try:
        return cpu_count() if n_workers is None else operator.index(n_workers)
    except TypeError:
        raise TypeError(f"the number of workers must be an int or None, not {n_workers!r}") from None


def _choose_context(kind: str, context: Any) -> Any:
    """Return the context that starts processes, or None for other kinds.

    Other kinds accept a context as well, so that a program can change the kind alone.

    multiprocessing is imported only for processes, or to check a context that was given.
    """
    resolved: Any = resolve_context(context) if kind == "process" or context is not None else None
    if kind != "process":
        return None
    if context is not None and resolved.get_start_method() == "fork" and has_interpreters():
        raise ValueError(
            "context 'fork' cannot be used while a pool of kind 'interp' is open: CPython crashes in the forked child "
            "(CPython issue 139759); use 'forkserver' or 'spawn'"
        )
    return resolved


def _choose_extensions(kind: str, names: Iterable[str] | None) -> tuple[str, ...]:
    if kind == "interp":
        from pool_party.workers.interp.extensions import choose

        return choose(names)
    if names is not None:
        raise ValueError(f"extensions is for kind='interp', not {kind!r}: other workers load what this process loads")
    return ()


def _choose_reuse(kind: str, reuse: bool) -> bool:
    if reuse and kind != "interp":
        raise ValueError(f"reuse is for kind='interp', not {kind!r}: other workers end with their pool")
    return bool(reuse)


class PoolOptions(Limits, total=False):
    """The options that every kind of pool has beside those of `multiprocessing.Pool`, but for `preload`."""

    log: bool
    output: str | None
    propagate: Iterable[ContextVar[Any] | str]
    memory_per_worker: int | str | None
    worker_memory_limit: int | str | None


def _choose_relay(kind: str, n_workers: int, log: bool, output: str | None) -> Relay | None:
    """Return what handles what workers log and print. Threads do both in this interpreter and need nothing."""
    if output not in (None, "relay"):
        raise ValueError(f"output must be 'relay' or None, not {output!r}")
    if kind == "thread" or not (log or output):
        return None
    from pool_party.observe.relay import Relay

    return Relay(log, output is not None, n_workers)


def _choose_memory(kind: str, option: str, amount: int | str | None) -> int:
    """Return an amount of memory in bytes, or 0 for None."""
    if amount is None:
        return 0
    if kind != "process":
        raise ValueError(f"{option} is for kind='process', not {kind!r}: all other workers share this process's memory")
    from pool_party.budget.memory import parse_bytes

    return parse_bytes(option, amount)


def _bound_number(n_workers: int, n_bytes: int) -> int:
    from pool_party.budget.memory import total_bytes

    return max(1, min(n_workers, total_bytes() // n_bytes))


def _choose_carrier(kind: str, context: Any, propagate: Iterable[ContextVar[Any] | str]) -> Carrier | None:
    inherits = kind == "thread" and getattr(sys.flags, "thread_inherit_context", False)
    if context is not True and not inherits and propagate == ():
        return None
    from pool_party._core.contexts import choose_carrier

    return choose_carrier(kind, context, propagate)


def _check_workers(n_workers: int, initializer: object, max_tasks: object) -> None:
    if n_workers < 1:
        raise ValueError("Number of processes must be at least 1")
    if n_workers > _native.MAX_WORKERS:
        raise ValueError(f"Number of processes must be at most {_native.MAX_WORKERS}, not {n_workers}")
    if max_tasks is not None and (not isinstance(max_tasks, int) or max_tasks <= 0):
        raise ValueError("maxtasksperchild must be a positive int or None")
    if initializer is not None and not callable(initializer):
        raise TypeError("initializer must be a callable")


def arguments_of(initializer: Callable[..., object] | None, initargs: Iterable[Any]) -> tuple[Any, ...]:
    """Return the arguments of an initializer. Without one they may be None, as with the standard library's pools."""
    return () if initializer is None else tuple(initargs)


def open_engine(
    kind: str,
    n_workers: int | None,
    initializer: Callable[..., object] | None,
    initargs: Iterable[Any],
    max_tasks: int | None,
    context: Any,
    on_broken: Callable[[BaseException], object] | None = None,
    extensions: Iterable[str] | None = None,
    preload: Iterable[str] = (),
    log: bool = False,
    output: str | None = None,
    propagate: Iterable[ContextVar[Any] | str] = (),
    memory_per_worker: int | str | None = None,
    worker_memory_limit: int | str | None = None,
    address: Any = None,
    client: Any = None,
    worker_kind: str | None = None,
    insecure: bool = False,
    reuse: bool = False,
    **limits: Unpack[Limits],
) -> tuple[Engine, _native.Keeper]:
    """Open an engine. Return it with its keeper, which keeps it running.

    Raises: ValueError and TypeError for bad arguments, with the standard library's messages.
    """
    kind = resolve_kind(kind)
    _check_elsewhere(kind, ("dask",), address=address, insecure=insecure)
    _check_elsewhere(kind, REMOTE_KINDS, client=client, worker_kind=worker_kind)
    if kind in REMOTE_KINDS:
        if log or output is not None:
            raise ValueError(f"log and output are for workers on this machine, and not for kind={kind!r}")
        terms = {
            "worker_kind": worker_kind or "process",
            "processes": n_workers,
            "maxtasksperchild": max_tasks,
            "extensions": extensions,
            **({"reuse": _choose_reuse(resolve_kind(worker_kind or "process"), reuse)} if reuse else {}),
            "preload": preloading.choose(preload),
            "memory_per_worker": memory_per_worker,
            "worker_memory_limit": worker_memory_limit,
            **limits,
        }
        carrier = _choose_carrier(kind, context, propagate)
        _choose_context(kind, _start_context(context))
        call = None if initializer is None else (initializer, arguments_of(initializer, initargs))
        return _open_elsewhere(kind, terms, call, address, client, insecure, on_broken, carrier)
    memory_limit = _choose_memory(kind, "worker_memory_limit", worker_memory_limit)
    reuse = _choose_reuse(kind, reuse)
    n_workers = _choose_number(n_workers)
    _check_workers(n_workers, initializer, max_tasks)
    if n_bytes := _choose_memory(kind, "memory_per_worker", memory_per_worker):
        n_workers = _bound_number(n_workers, n_bytes)
    carrier = _choose_carrier(kind, context, propagate)
    context = _choose_context(kind, _start_context(context))
    if kind == "process":
        from pool_party.workers import process_helpers

        process_helpers.start_early(start_method(context))
    backlog: deque[Any] = deque()
    channel = _native.Channel(n_workers, kind == "thread", backlog)
    interpreters = _begin_interpreters(channel, n_workers, reuse) if kind == "interp" else None
    try:
        setup = Setup(
            initializer,
            arguments_of(initializer, initargs),
            max_tasks or 0,
            context,
            plan=make_plan(kind, n_workers, **limits),
            extensions=_choose_extensions(kind, extensions),
            preload=preloading.choose(preload),
            begun=interpreters,
            relay=_choose_relay(kind, n_workers, log, output),
            names_records=log and kind == "thread",
            memory_limit=memory_limit,
            reuse=reuse,
        )
        engine = Engine(kind, n_workers, channel, backlog, setup, on_broken, carrier)
        return engine, engine.open(setup)
    except BaseException:
        if interpreters:
            from pool_party.workers.interp import prestart

            prestart.give_up(interpreters)
        raise


def _begin_interpreters(channel: _native.Channel, n_workers: int, reuse: bool) -> dict[int, _native.Interpreter]:
    from pool_party.workers.interp import prestart  # other kinds do not need it

    return prestart.begin(channel, n_workers, reuse)


def _check_elsewhere(kind: str, kinds: tuple[str, ...], **given: object) -> None:
    for name, value in given.items():
        if value and kind not in kinds:
            raise ValueError(f"{name} is for kind={' or '.join(map(repr, kinds))}, not {kind!r}")


def _open_elsewhere(
    kind: str,
    terms: dict[str, Any],
    initializer: tuple[Callable[..., object], tuple[Any, ...]] | None,
    address: Any,
    client: Any,
    insecure: bool,
    on_broken: Callable[[BaseException], object] | None,
    carrier: Carrier | None,
) -> tuple[Engine, _native.Keeper]:
    """Open an engine whose workers are on other machines. terms: the arguments of their pools."""
    n_workers = _choose_number(terms["processes"])
    _check_terms(terms, n_workers, initializer and initializer[0])
    from pool_party._core.functions import is_global
    from pool_party.wire import distant
    from pool_party.workers.cluster.broker import Broker

    receivers = distant.Machines()
    terms["initializer"] = initializer and distant.encode(initializer, receivers, apart=distant.Shared)
    backlog: deque[Any] = deque()
    channel = _native.Channel(N_REMOTE_SLOTS, True, backlog)
    transport = _transport_to(kind, address, client, insecure, terms) or _here(n_workers, terms)
    broker = Broker(transport, channel, N_REMOTE_SLOTS, receivers, is_lasting=is_global)
    setup = Setup(None, (), 0, broker=broker)
    engine = Engine(kind, N_REMOTE_SLOTS, channel, backlog, setup, on_broken, carrier)
    return engine, engine.open(setup)


def _check_terms(terms: dict[str, Any], n_workers: int, initializer: object) -> None:
    """Check here what each machine would refuse as well. Raises: ValueError and TypeError."""
    kind = resolve_kind(terms["worker_kind"])
    if kind in REMOTE_KINDS:
        raise ValueError("worker_kind is one of 'thread', 'process' and 'interp'")
    _check_workers(n_workers, initializer, terms["maxtasksperchild"])
    for option in ("memory_per_worker", "worker_memory_limit"):
        _choose_memory(kind, option, terms[option])
    if kind != "interp" and terms["extensions"] is not None:
        _choose_extensions(kind, terms["extensions"])
    make_plan(kind, n_workers, **{name: terms[name] for name in Limits.__annotations__ if name in terms})


def _transport_to(kind: str, address: Any, client: Any, insecure: bool, terms: dict[str, Any]) -> Transport | None:
    """Return what reaches a cluster. None: none is named here, in Dask's settings, or by how the program was begun."""
    return _dask_transport(address, client, insecure, terms) if kind == "dask" else _mpi_transport(client, terms)


def _dask_transport(address: Any, client: Any, insecure: bool, terms: dict[str, Any]) -> Transport | None:
    try:
        import dask.config

        if address is None and client is None:
            address = dask.config.get("scheduler-address", None)
        if address is None and client is None:
            return None
        from pool_party.workers.cluster.dask import DaskTransport
    except ImportError as error:
        raise ImportError(f"kind='dask' needs Dask: pip install composable-pool[dask] ({error})") from error
    return DaskTransport(address, client, terms, insecure)


def _mpi_transport(executor: Any, terms: dict[str, Any]) -> Transport | None:
    try:
        from pool_party.workers.cluster import mpi
    except (ImportError, RuntimeError) as error:  # the second: mpi4py finds no MPI library
        raise ImportError(f"kind='mpi' needs mpi4py and MPI: pip install composable-pool[mpi] ({error})") from error
    return mpi.MpiTransport(executor, terms) if executor is not None or mpi.has_ranks() else None


def _here(n_workers: int, terms: dict[str, Any]) -> Transport:
    """Return what reaches a node inside this process."""
    from pool_party.workers.cluster.here import Here

    return Here(n_workers, terms)
