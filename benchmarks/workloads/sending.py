"""Tasks for arrays that are sent, and one that says who does it. Needs nothing but what an array comes with."""

import os
import threading
import time
from typing import Any


def identify(nap_s: float) -> tuple[int, int]:
    """Return which process and thread this is, after a nap in which other workers get a task, too."""
    time.sleep(nap_s)
    return os.getpid(), threading.get_native_id()


def touch(array: Any) -> float:
    """Read a number of each page."""
    return float(array[:: 4096 // array.itemsize].sum())


def send_back(case: tuple[Any, float]) -> Any:
    """Return an array that has come, once it is read. Raises ArithmeticError if it is another."""
    array, expected = case
    if touch(array) != expected:
        raise ArithmeticError("the array that came is not the one that was sent")
    return array
