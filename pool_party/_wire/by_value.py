"""cloudpickle's rules, for what `main_module` has none of its own. Importing cloudpickle takes some 40 ms."""

import io
import types
from typing import Any

from cloudpickle import cloudpickle


class Reducer:
    """Reduces functions for one pickle. Functions with the same globals share them in the receiver, too."""

    def __init__(self) -> None:
        self._pickler = cloudpickle.Pickler(io.BytesIO())  # it never writes; it retains the globals

    def reduce_function(self, function: types.FunctionType) -> tuple[Any, ...]:
        """Reduce a function that receivers cannot import."""
        reduced: tuple[Any, ...] = self._pickler._dynamic_function_reduce(function)
        return reduced
