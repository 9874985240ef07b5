"""`pool_party.patch`, `unpatch` and `patched`."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypedDict, Unpack

from pool_party._ground.choices import PatchingKind, PolicyName, Scope
from pool_party._patching import apply, state
from pool_party._patching.settings import Settings

KINDS = ("process", "thread", "interp", "auto")


class PatchOptions(TypedDict, total=False):
    """The keyword arguments of `patch`."""

    kind: PatchingKind
    n_workers: int | None
    oversubscription: float
    policy: PolicyName | None
    scope: Scope
    only: Iterable[str]
    excluded: Iterable[str]


def patch(
    *,
    kind: PatchingKind = "process",
    n_workers: int | None = None,
    oversubscription: float = 1.0,
    policy: PolicyName | None = None,
    scope: Scope = "pool",
    only: Iterable[str] = (),
    excluded: Iterable[str] = (),
) -> None:
    """Make the pools and executors of the standard library and of joblib ours, from now on, wherever they are made.

    Names that modules have imported before lead to our pools, too. docs/patching.md has the table of what changes. No
    library is imported by this call, and nothing of multiprocessing is chosen. Does not block.

    Args:
        kind: The kind of workers in the place of processes: "process", "thread", "interp" or "auto". "auto" is
            "interp" if all that the program has imported is known to load there, and nothing that it uses is known to
            need a process, otherwise "process". Pools of threads keep threads, and `InterpreterPoolExecutor` keeps
            interpreters.
        n_workers: The number of workers where the program names none. None: the number of CPUs for pools and executors
            of processes, and what the standard library has for executors of threads.
        oversubscription: The number of threads for each CPU, over all workers of a pool; see `ComposablePool`.
        policy: The rule for how many threads BLAS and OpenMP libraries may use in tasks; see `ComposablePool`. None:
            "dynamic", so that a pool with a single busy worker is not slower than without us.
        scope: "pool" or "machine"; see `ComposablePool`.
        only: The names of the parts to replace: "multiprocessing", "concurrent.futures", "asyncio", "joblib", "dask",
            "scipy". Empty: all.
        excluded: The names of the parts that stay as they are.

    Raises:
        ValueError: An option has an impossible value.
        TypeError: An option has a wrong type.

    Guarantees:
        A second call replaces the options of the first. Replaced pools are instances of the standard library's classes.
        Pools that are open stay what they are. Not for several threads at once.
    """
    apply.apply(_checked(Settings(kind, n_workers, oversubscription, policy, scope, _names(only), _names(excluded))))


def unpatch() -> None:
    """Restore exactly what was there before `patch`. Does not block, and may be called again.

    Raises:
        None: It never raises, also if nothing is patched.

    Guarantees:
        Pools that are open stay what they are. Not for several threads at once.
    """
    apply.undo()


@contextmanager
def patched(**options: Unpack[PatchOptions]) -> Iterator[None]:
    """Do what `patch` does, within a `with` block: `with pool_party.patched(kind="thread"): ...`. It may be nested.

    At the end of the block, what was there before is restored: the options of an outer block, or the standard library.

    Args:
        **options: The options of `patch`.

    Returns:
        A context manager.

    Raises:
        ValueError: An option has an impossible value.
        TypeError: An option has a wrong type, or is unknown.

    Guarantees:
        The patches are the whole program's, in all its threads. Pools that are open at the end of the block stay what
        they are. Entering and leaving do not block. Not for several threads at once.
    """
    before = state.current()
    patch(**options)
    try:
        yield
    finally:
        if before is None:
            apply.undo()
        else:
            apply.apply(before)


def _names(names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError(f"parts must be names in a list or tuple, such as [{names!r}], not a str")
    return tuple(names)


def _checked(settings: Settings) -> Settings:
    """Raise for impossible values, of which pools would complain later, where the program does not expect it."""
    if settings.kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, not {settings.kind!r}")
    if settings.n_workers is not None:
        if not isinstance(settings.n_workers, int) or isinstance(settings.n_workers, bool):
            raise TypeError(f"n_workers must be an int or None, not {settings.n_workers!r}")
        if settings.n_workers < 1:
            raise ValueError(f"n_workers must be at least 1, not {settings.n_workers}")
    from pool_party._budget import policies

    policies.resolve("dynamic" if settings.policy is None else settings.policy)
    if settings.scope not in policies.SCOPES:
        raise ValueError(f"scope must be 'pool' or 'machine', not {settings.scope!r}")
    if not settings.oversubscription > 0:
        raise ValueError(f"oversubscription must be more than 0, not {settings.oversubscription!r}")
    return settings
