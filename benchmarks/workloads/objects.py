"""An object that many tasks are given, in several forms, and what the tasks do with it."""

from collections.abc import Callable
from typing import Any

N_TASKS = 400  # that are given it
_N_BYTES = 5_000_000
_N_INSTANCES, _N_ROWS = 10_000, 50_000


class Reading:
    """An object of a class as programs have many."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"reading {number}"


def _make_array(scale: float) -> Any:
    import numpy as np

    return np.zeros(round(_N_BYTES * scale) // 8)


def _make_rows(scale: float) -> Any:
    return [[float(row), row + 0.25, row + 0.5, row + 0.75] for row in range(round(_N_ROWS * scale))]


FORMS: dict[str, Callable[[float], Any]] = {  # given a scale: 1.0, or less for a trial
    "bytes": lambda scale: bytes(round(_N_BYTES * scale)),
    "str": lambda scale: "x" * round(_N_BYTES * scale),
    "ndarray": _make_array,
    "instances": lambda scale: [Reading(number) for number in range(round(_N_INSTANCES * scale))],
    "rows": _make_rows,
}


def look(pair: tuple[Any, int]) -> int:
    """Return the length of the object, plus the task's number."""
    value, number = pair
    return len(value) + number
