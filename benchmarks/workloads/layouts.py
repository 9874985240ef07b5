"""Arrays to pack, laid out as in the paper on MPI's packing with tasks."""

from collections.abc import Callable
from typing import Any

import numpy as np

type Array = Any


def contiguous(n_items: int) -> Array:
    """Return an array without gaps."""
    return np.arange(float(n_items))


def face(n_items: int) -> Array:
    """Return one XZ plane of a cube whose rows have 256 items."""
    return np.arange(4.0 * n_items).reshape(-1, 4, 256)[:, 1, :]


def nested(n_items: int) -> Array:
    """Return a vector of vectors: every other row, and of these every other item."""
    return np.arange(4.0 * n_items).reshape(-1, 2, 256)[:, 1, ::2]


def transposed(n_items: int) -> Array:
    """Return the transpose of a block of a larger matrix."""
    side = int(n_items**0.5)
    return np.arange(2.0 * side * side).reshape(side, 2 * side)[:, side // 2 : side // 2 + side].T


LAYOUTS: dict[str, Callable[[int], Array]] = {
    layout.__name__: layout for layout in (contiguous, face, nested, transposed)
}
