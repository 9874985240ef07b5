"""Empty tasks, which show the cost of handing them out."""

import time


def noop(_: object = None) -> None:
    """Do nothing."""


def nap(task: tuple[int, float]) -> int:
    """Sleep; `task` is (number, seconds). Returns the number."""
    number, sleep_s = task
    if sleep_s:
        time.sleep(sleep_s)
    return number
