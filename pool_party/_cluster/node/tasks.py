"""What a worker of a node runs: it decodes a task that another machine has sent, runs it, and encodes its outcome.

The process of the node passes both on unopened. So the values of a program meet its classes only here, as they meet
them in a worker of the program's own machine.
"""

from __future__ import annotations

from pool_party import _native
from pool_party._cluster import distant
from pool_party._ground import quoting
from pool_party._workers import loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pool_party._cluster.distant import Frames

FUNCTIONS_MAX = 256  # functions that a worker keeps decoded; they are decoded again when needed

_functions: dict[tuple[str, int], Any] = {}  # by session and number


def initialize(frames: Frames) -> None:
    """Call the initializer of a pool."""
    function, args = distant.decode(frames)
    function(*args)


def run(key: tuple[str, int], function: bytes | None, mode: int, frames: Frames) -> tuple[int, Any]:
    """Run a task, and return the status and the value of its outcome.

    key: what `function` is kept under. function: it is encoded; None: the argument contains it.
    """
    call: Any = None
    try:
        call = None if function is None else _function(key, function), distant.decode(frames), mode
        result = _call(*call)
        call = None  # so that the argument goes before the result is encoded
    except BaseException as error:  # as workers do: whatever a task raises is its outcome
        call = call and (*call, quoting.item_in(error))
        _drop_own_frames(error)
        return _native.STATUS_FAILED, loop.describe(error, call, distant.encode_whole)
    try:
        encoded = distant.encode(result)
        # A worker that is a thread hands over the result itself, which a later task may change before it is sent.
        return _native.STATUS_OK, encoded if loop.is_remote else distant.copied(encoded)
    except Exception as error:
        return _native.STATUS_UNENCODABLE, loop.describe_unencodable(error, result, distant.encode_whole)


def _function(key: tuple[str, int], encoded: bytes) -> Any:
    function = _functions.get(key)
    if function is None:
        function = distant.decode([encoded])
        if len(_functions) >= FUNCTIONS_MAX:
            _functions.clear()
        _functions[key] = function
    return function


def _call(function: Any, argument: Any, mode: int) -> Any:
    """Do what the native loop of workers does in each mode."""
    if mode == _native.MODE_ITEM:
        return function(argument)
    if mode == _native.MODE_STAR:
        return function(*argument)
    if mode == _native.MODE_CHUNK:
        return quoting.call_each(function, argument)
    if mode == _native.MODE_STARCHUNK:
        return quoting.call_each_star(function, argument)
    if function is None:
        function, args, kwargs = argument
    else:
        args, kwargs = argument
    return function(*args, **kwargs)


def _drop_own_frames(error: BaseException) -> None:
    """Let the traceback begin where the task's code does."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename in (__file__, quoting.__file__):
        traceback = traceback.tb_next
    error.__traceback__ = traceback
