"""Where the names are that annotations of public functions use. Their modules import them for type checkers only."""

from typing import Any


def _of_parameters[T, R, A, B, *Ts, **P]() -> None:
    """Have type parameters of these names, since Python 3.12.3 and earlier do not look for those of a function."""


PARAMETERS = {parameter.__name__: parameter for parameter in _of_parameters.__type_params__}
HOMES = {
    "typing": ("Any", "Literal", "Self", "Unpack"),
    "collections.abc": ("AsyncIterable", "AsyncIterator", "Callable", "Coroutine", "Generator", "Iterable", "Iterator"),
    "concurrent.futures": ("Future",),
    "contextvars": ("ContextVar",),
    "os": (),
    "types": ("TracebackType",),
    "pool_party._budget.plan": ("Limits",),
    "pool_party._budget.policies": ("Policy",),
    "pool_party._config": ("PoolOptions",),
    "pool_party._core.awaiting": ("Opening",),
    "pool_party._core.engine": ("Engine",),
    "pool_party._core.following": ("Follower",),
    "pool_party._core.futures": ("PoolFuture",),
    "pool_party._core.options": ("CallOptions", "TaskOptions"),
    "pool_party._core.statistics": ("Statistics",),
    "pool_party._core.streams": ("IMapIterator", "StreamCall"),
    "pool_party._ground.choices": ("Errors", "Kind", "OnCancel", "Output", "PolicyName", "Scope"),
    "pool_party._observe.progress": ("Progress",),
    "pool_party._observe.trace": ("Tracing",),
    "pool_party._workers.base": ("WorkerHandle",),
}


def fill(namespace: dict[str, Any]) -> None:
    """Put the names that a module lacks into its namespace. One that cannot be imported stays missing."""
    for home, names in HOMES.items():
        missing = [name for name in names or (home,) if name not in namespace]
        try:
            module = missing and __import__(home, fromlist=["*"])
        except Exception:
            continue
        for name in missing:
            namespace.setdefault(name, getattr(module, name) if names else module)
    for name, parameter in PARAMETERS.items():
        namespace.setdefault(name, parameter)
