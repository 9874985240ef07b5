"""The arguments of pools and executors: checked once, and passed whole to the engine that they describe."""

from __future__ import annotations

import operator
import sys
from errno import EACCES, ENOSYS, EPERM

from pool_party import _native
from pool_party._budget.plan import Limits, make_plan
from pool_party._budget.topology import cpu_count
from pool_party._core import exit as exit_hooks
from pool_party._core.engine import Engine
from pool_party._ground.limits import name_limit
from pool_party._ground.records import NamedTuple
from pool_party._workers import preloading
from pool_party._workers.base import Setup, has_interpreters, start_method

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextvars import ContextVar
    from typing import Any, Self

    from pool_party._budget.plan import Plan
    from pool_party._cluster.broker import Transport
    from pool_party._cluster.distant import Terms
    from pool_party._core.contexts import Carrier
    from pool_party._ground.choices import Kind, Output, Scope
    from pool_party._observe.relay import Relay

# What other pools call arguments of ours.
_SAME = (
    ("processes", "max_workers", "n_workers", "num_workers", "num_processes", "n_jobs", "nodes"),
    ("maxtasksperchild", "max_tasks_per_child"),
    ("context", "mp_context", "start_method"),
    ("kind", "backend"),
)
KINDS: dict[str, Kind] = {
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


def resolve_kind(kind: str) -> Kind:
    """Return the kind for a name or an alias. Raises ValueError, which lists them all."""
    try:
        return KINDS[kind]
    except (KeyError, TypeError):
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, not {kind!r}") from None


def explained[F: Callable[..., None]](init: F) -> F:
    """Let a constructor that gets an unknown argument say in its TypeError which of its own is probably meant."""
    code = init.__code__
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in own and (meant := _meant(name, own)):
                raise TypeError(f"{type(self).__name__} has no argument {name!r}: did you mean {meant!r}?")
        init(self, *args, **kwargs)

    annotations = "__annotate__" if hasattr(init, "__annotate__") else "__annotations__"  # from Python 3.14 on
    for name in ("__qualname__", "__module__", "__doc__", annotations):  # importing functools would take longer
        setattr(__init__, name, getattr(init, name))
    __init__.__wrapped__ = init  # type: ignore[attr-defined]
    return __init__  # type: ignore[return-value]  # it is called as `init` is


def _meant(name: str, own: tuple[str, ...]) -> str | None:
    from difflib import get_close_matches  # seldom needed

    known = {other: kept for names in _SAME for kept in names if kept in own for other in names}
    known |= {kept: kept for kept in own}
    return next((known[close] for close in get_close_matches(name, known, 1)), None)


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
        from pool_party._workers.interp.extensions import choose

        return choose(names)
    if names is not None:
        raise ValueError(f"extensions is for kind='interp', not {kind!r}: other workers load what this process loads")
    return ()


class PoolOptions(Limits, total=False):
    """The options that every kind of pool has beside those of `multiprocessing.Pool`, but for `preload`."""

    log: bool
    output: Output | None
    propagate: Iterable[ContextVar[Any] | str]
    quote_items: bool
    memory_per_worker: int | str | None
    worker_memory_limit: int | str | None


def _choose_relay(kind: str, n_workers: int, log: bool, output: str | None) -> Relay | None:
    """Return what handles what workers log and print. Threads do both in this interpreter and need nothing."""
    if output not in (None, "relay"):
        raise ValueError(f"output must be 'relay' or None, not {output!r}")
    if kind == "thread" or not (log or output):
        return None
    from pool_party._observe.relay import Relay

    return Relay(log, output is not None, n_workers)


def _choose_memory(kind: str, option: str, amount: int | str | None) -> int:
    """Return an amount of memory in bytes, or 0 for None."""
    if amount is None:
        return 0
    if kind != "process":
        raise ValueError(f"{option} is for kind='process', not {kind!r}: all other workers share this process's memory")
    from pool_party._budget.memory import parse_bytes

    return parse_bytes(option, amount)


def _bound_number(n_workers: int, n_bytes: int) -> int:
    from pool_party._budget.memory import total_bytes

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


class PoolConfig(NamedTuple):
    """The arguments of a pool or executor, which `ComposablePool` describes; as they were given, until `checked`."""

    kind: Kind
    processes: int | None = None
    initializer: Callable[..., object] | None = None
    initargs: Any = ()
    maxtasksperchild: int | None = None
    context: Any = None
    policy: Any = "dynamic"
    threads_per_worker: int | None = None
    oversubscription: float = 1.0
    affinity: bool | None = None
    scope: Scope = "pool"
    extensions: Any = None
    preload: Any = ()
    log: bool = False
    output: str | None = None
    propagate: Iterable[ContextVar[Any] | str] = ()
    quote_items: bool = True
    memory_per_worker: int | str | None = None
    worker_memory_limit: int | str | None = None
    address: Any = None
    client: Any = None
    worker_kind: Kind | None = None
    insecure: bool = False

    def checked(self) -> Self:
        """Return what an engine is opened with.

        `kind` is no alias, `initargs`, `extensions` and `preload` are tuples, `processes` is an int, `context` is the
        multiprocessing context that starts processes or None, and `maxtasksperchild` and `worker_memory_limit` are
        ints, 0 for no limit. What is for workers on other machines stays as it was given: it depends on these.

        Raises: ValueError and TypeError for bad arguments, with the standard library's messages.
        """
        kind = resolve_kind(self.kind)
        _check_elsewhere(kind, ("dask",), address=self.address, insecure=self.insecure)
        _check_elsewhere(kind, REMOTE_KINDS, client=self.client, worker_kind=self.worker_kind)
        is_remote = kind in REMOTE_KINDS
        if is_remote and (self.log or self.output is not None):
            raise ValueError(f"log and output are for workers on this machine, and not for kind={kind!r}")
        worker_kind = resolve_kind(self.worker_kind or "process") if is_remote else kind
        if worker_kind in REMOTE_KINDS:
            raise ValueError("worker_kind is one of 'thread', 'process' and 'interp'")
        memory_limit = _choose_memory(worker_kind, "worker_memory_limit", self.worker_memory_limit)
        n_workers = _choose_number(self.processes)
        _check_workers(n_workers, self.initializer, self.maxtasksperchild)
        n_bytes = _choose_memory(worker_kind, "memory_per_worker", self.memory_per_worker)
        checked = self._replace(
            kind=kind,
            worker_kind=worker_kind,
            initargs=arguments_of(self.initializer, self.initargs),
            context=_choose_context(kind, _start_context(self.context)),
            preload=preloading.choose(self.preload),
        )
        if is_remote:
            if worker_kind != "interp":
                _choose_extensions(worker_kind, self.extensions)
            checked._replace(processes=n_workers).plan()
            return checked
        return checked._replace(
            processes=_bound_number(n_workers, n_bytes) if n_bytes else n_workers,
            maxtasksperchild=self.maxtasksperchild or 0,
            extensions=_choose_extensions(kind, self.extensions),
            worker_memory_limit=memory_limit,
        )

    def plan(self) -> Plan | None:
        """Return the plan of thread budgets, after the check. Raises: ValueError and TypeError for bad options."""
        assert self.worker_kind is not None and self.processes is not None
        limits = (self.policy, self.threads_per_worker, self.oversubscription, self.affinity, self.scope)
        return make_plan(self.worker_kind, self.processes, *limits)


def open_engine(
    config: PoolConfig,
    open_pool: Callable[..., Any],
    on_broken: Callable[[BaseException], object] | None = None,
    by_value: bool = False,
) -> tuple[Engine, _native.Keeper]:
    """Open an engine. Return it with its keeper, which keeps it running.

    open_pool: makes the pools of other machines, from the fields of a `PoolConfig`; a global function or class.
    by_value: workers on this machine have nothing of the program's `__main__`; see `codec.dumps_current`.

    Raises: ValueError and TypeError for bad arguments, with the standard library's messages.
    """
    checked = config.checked()
    carrier = _choose_carrier(checked.kind, config.context, config.propagate)
    if checked.kind in REMOTE_KINDS:
        return _open_elsewhere(checked, open_pool, on_broken, carrier)
    exit_hooks.note_opening()
    try:
        return _open_here(checked, on_broken, carrier, by_value)
    except BaseException as error:
        exit_hooks.check_refusal(error)
        name_limit(error)
        raise
    finally:
        exit_hooks.note_opened()


def _open_here(
    config: PoolConfig, on_broken: Callable[[BaseException], object] | None, carrier: Carrier | None, by_value: bool
) -> tuple[Engine, _native.Keeper]:
    kind, n_workers = config.kind, config.processes
    assert n_workers is not None
    omits_main = by_value or (kind == "process" and _must_omit_main(config.context))
    if kind == "process":
        from pool_party._workers import process_helpers

        process_helpers.start_early(start_method(config.context), omits_main)
    channel = _channel(n_workers, kind == "thread")
    interpreters = _begin_interpreters(channel, n_workers) if kind == "interp" else None
    try:
        relay = _choose_relay(kind, n_workers, config.log, config.output)
        setup = Setup(config, config.plan(), begun=interpreters, relay=relay, by_value=by_value, omits_main=omits_main)
        engine = Engine(channel, setup, on_broken, carrier)
        return engine, engine.open(setup)
    except BaseException:
        if interpreters:
            from pool_party._workers.interp import prestart

            prestart.give_up(interpreters)
        raise


def _channel(n_slots: int, by_reference: bool) -> _native.Channel:
    try:
        return _native.Channel(n_slots, by_reference)
    except OSError as error:
        if error.errno in (EPERM, EACCES, ENOSYS):
            error.add_note(
                "pool_party: the system refuses memfd_create, by which a pool makes its shared memory; a container's "
                "seccomp profile may have to allow it"
            )
        raise


def _must_omit_main(context: Any) -> bool:
    """Whether processes that run the program's main module would come here again, and make a pool of their own."""
    if start_method(context) not in ("forkserver", "spawn"):
        return False
    from pool_party._core import main_guard

    return main_guard.is_missing()


def _begin_interpreters(channel: _native.Channel, n_workers: int) -> dict[int, _native.Interpreter]:
    from pool_party._workers.interp import prestart  # other kinds do not need it

    return prestart.begin(channel, n_workers)


def _check_elsewhere(kind: str, kinds: tuple[str, ...], **given: object) -> None:
    for name, value in given.items():
        if value and kind not in kinds:
            raise ValueError(f"{name} is for kind={' or '.join(map(repr, kinds))}, not {kind!r}")


def _open_elsewhere(
    config: PoolConfig,
    open_pool: Callable[..., Any],
    on_broken: Callable[[BaseException], object] | None,
    carrier: Carrier | None,
) -> tuple[Engine, _native.Keeper]:
    """Open an engine whose workers are on other machines."""
    from pool_party._cluster import distant
    from pool_party._cluster.broker import Broker
    from pool_party._core.functions import is_global

    receivers = distant.Machines()
    initializer = None
    if config.initializer is not None:
        initializer = distant.encode((config.initializer, config.initargs), receivers, apart=distant.Shared)
    assert config.worker_kind is not None
    theirs = config._replace(
        kind=config.worker_kind,
        worker_kind=None,
        initializer=None,
        initargs=(),
        context=None,
        propagate=(),
        address=None,
        client=None,
        insecure=False,
    )
    channel = _channel(N_REMOTE_SLOTS, True)
    terms = distant.Terms(open_pool, theirs, initializer)
    transport = _transport_to(config, terms) or _here(terms)
    broker = Broker(transport, channel, N_REMOTE_SLOTS, receivers, is_lasting=is_global)
    setup = Setup(config, broker=broker)
    engine = Engine(channel, setup, on_broken, carrier)
    return engine, engine.open(setup)


def _transport_to(config: PoolConfig, terms: Terms) -> Transport | None:
    """Return what reaches a cluster. None: none is named here, in Dask's settings, or by how the program was begun."""
    return _dask_transport(config, terms) if config.kind == "dask" else _mpi_transport(config.client, terms)


def _dask_transport(config: PoolConfig, terms: Terms) -> Transport | None:
    address = config.address
    try:
        import dask.config

        if address is None and config.client is None:
            address = dask.config.get("scheduler-address", None)
        if address is None and config.client is None:
            return None
        from pool_party._cluster.dask import DaskTransport
    except ImportError as error:
        raise ImportError(f"kind='dask' needs Dask: pip install composable-pool[dask] ({error})") from error
    return DaskTransport(address, config.client, terms, config.insecure)


def _mpi_transport(executor: Any, terms: Terms) -> Transport | None:
    try:
        from pool_party._cluster import mpi
    except (ImportError, RuntimeError) as error:  # the second: mpi4py finds no MPI library
        raise ImportError(f"kind='mpi' needs mpi4py and MPI: pip install composable-pool[mpi] ({error})") from error
    return mpi.MpiTransport(executor, terms) if executor is not None or mpi.has_ranks() else None


def _here(terms: Terms) -> Transport:
    """Return what reaches a node inside this process."""
    from pool_party._cluster.here import Here

    return Here(_choose_number(terms.config.processes), terms)
