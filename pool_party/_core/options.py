"""The options of a call, apart from the keywords of its task: limits of time, retries, cancelling, context."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, TypedDict

from pool_party._ground.choices import Errors, OnCancel

if TYPE_CHECKING:
    from pool_party._observe.progress import Progress

ON_CANCEL = ("abandon", "wait", "kill")
ERRORS = ("raise", "return")

type Again = Callable[[int], tuple[Any, tuple[Any, ...], dict[str, Any]]]
type Exceptions = type[BaseException] | tuple[type[BaseException], ...]


class TaskOptions(TypedDict, total=False):
    """The keyword arguments of `amap` that are options of its tasks."""

    timeout_s: float | None
    deadline_s: float | None
    retries: int
    retry_on: Exceptions | None
    errors: Errors
    context: bool | None


class CallOptions(TaskOptions, total=False):
    """The keyword arguments of `options`, and of the other verbs."""

    on_cancel: OnCancel


NAMES = tuple(CallOptions.__annotations__)


class FurtherOptions(TypedDict, total=False):
    """The keyword arguments that the `map` of an executor has of its own."""

    timeout: float | None
    chunksize: int
    buffersize: int | None
    progress: "Progress"


class MapOptions(FurtherOptions, CallOptions, total=False):
    """The keyword arguments of the `map` of an executor."""


@dataclass(frozen=True, slots=True)
class Options:
    """What `options` was given, checked. `retry_on` None stands for WorkerLost, whose import is slow."""

    timeout_s: float | None = None
    deadline_s: float | None = None
    retries: int = 0
    retry_on: Exceptions | None = None
    on_cancel: OnCancel = "abandon"
    errors: Errors = "raise"
    context: bool | None = None

    @property
    def is_watched(self) -> bool:
        """Whether the supervisor must know of a call with these options."""
        return self != Options(context=self.context)

    @property
    def is_per_item(self) -> bool:
        """Whether each item must be a task of its own."""
        return self.timeout_s is not None or self.retries > 0 or self.errors == "return"

    def check_chunk(self, chunk: int) -> None:
        """Raise ValueError if a chunk of several items would be timed, tried again, or fail, as a whole."""
        if chunk > 1 and self.is_per_item:
            raise ValueError(
                f"chunksize must be 1, not {chunk}, with timeout_s, retries or errors, which are for each item; "
                "leave it out, or pass deadline_s, which is for the whole call"
            )


def changed(options: Options | None, changes: CallOptions, kind: str) -> Options:
    """Return options with changes, for workers of a kind. Raises: TypeError, ValueError."""
    unknown = changes.keys() - set(NAMES)
    if unknown:
        known = ", ".join(NAMES)
        raise TypeError(f"got an unexpected keyword argument {min(unknown)!r}; the options of a call are {known}")
    if isinstance(changes.get("retry_on"), list):
        raise TypeError("retry_on must be an exception class or a tuple of them, not a list")
    made = replace(options or Options(), **changes)
    _check_seconds("timeout_s", made.timeout_s)
    _check_seconds("deadline_s", made.deadline_s)
    _check_retries(made)
    check_on_cancel(made.on_cancel, kind)
    if made.errors not in ERRORS:
        raise ValueError(f'errors must be "raise" or "return", not {made.errors!r}')
    if made.context is not None:
        from pool_party._core.contexts import check_context

        check_context(made.context, kind)
    return made


def view_of[Owner](owner: Owner, options: Options) -> Owner:
    """Return a view of a pool or an executor, or of a view, whose calls have these options."""
    view = object.__new__(type(owner))
    own: Any = owner
    view.__dict__.update(own.__dict__, _options=options, _viewed=own._viewed or own)
    return view


def _check_seconds(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds or None, not {value!r}")
    if not value > 0:
        raise ValueError(f"{name} must be more than 0, not {value!r}")


def _check_retries(options: Options) -> None:
    retries = options.retries
    if not isinstance(retries, int) or isinstance(retries, bool):
        raise TypeError(f"retries must be an integer, not {retries!r}")
    if retries < 0:
        raise ValueError(f"retries must be 0 or more, not {retries}")
    if options.retry_on is not None:
        classes = options.retry_on if isinstance(options.retry_on, tuple) else (options.retry_on,)
        if not all(isinstance(one, type) and issubclass(one, BaseException) for one in classes):
            raise TypeError(f"retry_on must be an exception class or a tuple of them, not {options.retry_on!r}")


def check_on_cancel(on_cancel: str, kind: str) -> None:
    """Raise ValueError unless `on_cancel` is one of the three ways, and possible for workers of this kind."""
    if on_cancel not in ON_CANCEL:
        raise ValueError(f'on_cancel must be "abandon", "wait" or "kill", not {on_cancel!r}')
    if on_cancel == "kill" and kind != "process":
        raise ValueError(f'on_cancel="kill" is for kind="process": no worker of kind={kind!r} can be killed')


class Supervision:
    """What the supervisor knows of a call with options.

    Args:
        options: The options.
        again: Returns what to call for the task with a given index, if it is tried again.
        kept: For a stream: the items that have been read and whose outcome has not been taken, by index.
    """

    __slots__ = ("again", "causes", "due_s", "kept", "options", "superseded")

    def __init__(self, options: Options, again: Again, kept: dict[int, Any] | None = None) -> None:
        self.options = options
        self.again = again if options.retries else None  # it refers to the arguments, which could be large
        self.kept = kept if options.retries else None
        self.due_s = None if options.deadline_s is None else monotonic() + options.deadline_s
        self.causes: dict[int, list[BaseException]] = {}  # index -> why earlier attempts failed; for the supervisor
        self.superseded: set[tuple[int, int]] = set()  # (worker, index) of attempts whose outcome is to be dropped

    def keep(self, index: int, items: list[Any]) -> None:
        """Keep the item of a stream's task, in case the task is tried again."""
        if self.kept is not None:
            (self.kept[index],) = items

    def forget(self, index: int) -> None:
        """Forget the item of a task whose outcome was taken."""
        if self.kept is not None:
            self.kept.pop(index, None)
