"""Says which item of a call has failed: in a note of what its task has raised, or in the message of a loss.

Items are counted from 0, as in the input. A call of one task has the number of the call in the pool.
"""

from __future__ import annotations

from pool_party._ground.errors import PoolPartyError
from pool_party._ground.quoting import add_note, item_text, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pool_party._core.results import Call
    from pool_party._ground.quoting import Place


def note(error: BaseException, call: Call, index: int, place: Place | None, quotes: bool) -> BaseException:
    """Add a note to what task `index` of a call has raised. Return the error.

    quotes: whether the note may quote arguments.
    """
    if isinstance(error, PoolPartyError):  # its message says so
        return error
    at, quoted = place or (None, None)
    add_note(error, _items(call, index, at), quoted, quotes)
    return error


def task_of(call: Call, index: int, quotes: bool) -> str:
    """Return what task `index` of a call that is not done runs, and what else is lost with it."""
    text, n_items = _items(call, index, None), _size(call, index)
    if (name := call.called) is not None:
        text += f": {name}"
        if quotes and (items := call.items) is not None:
            text += _quoted(items[index * call.chunk], call.is_star) + " and the following" * (n_items > 1)
    if n_items > 1:
        text += f"; all {n_items} results of this task are lost, and options(retries=...) would run each item again"
    return text


def _quoted(item: object, is_star: bool) -> str:
    args = item if is_star and isinstance(item, tuple) else (item,)
    return f"({', '.join(map(short, args))})"


def _size(call: Call, index: int) -> int:
    """Return how many items a task has; of an input that is read meanwhile, how many it has at most."""
    n_items = min(call.chunk, call.n_items - index * call.chunk) if call.n_items else call.chunk
    return call.size or n_items


def _items(call: Call, index: int, at: int | None) -> str:
    """Name the item of a task, or all of them if it is not known which: None."""
    if call.first is None:
        return f"call {call.id} of the pool"
    first = call.first + index * call.chunk
    if at is None and (n_items := _size(call, index)) > 1:
        return f"items {first} to {first + n_items - 1} (counted from 0)"
    return item_text(first + (at or 0))
