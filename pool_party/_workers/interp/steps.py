"""What each new interpreter of this process does before its first task, besides what its pool asks for.

Parts of higher layers add steps by name, so nothing here imports them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_steps: dict[tuple[str, str], tuple[Any, ...]] = {}


def set_step(module: str, function: str, *args: Any) -> None:
    """Have interpreters that start from now on call a function of a module.

    args: values that pickle. Steps run in the order in which they were set first.
    """
    _steps[module, function] = args


def drop_step(module: str, function: str) -> None:
    """Take a step back, if it was set."""
    _steps.pop((module, function), None)


def steps() -> tuple[tuple[str, str, tuple[Any, ...]], ...]:
    """Return the steps for an interpreter that starts now."""
    return tuple((module, function, args) for (module, function), args in list(_steps.items()))
