"""The processes that a node starts: they do not import what the node's own process has as `__main__`.

That is no part of the program whose tasks they run. In a Dask worker it is Dask's command, which takes long to import.
In a rank of an MPI program it is the script, whose lines at the top may use MPI.
"""

from __future__ import annotations

import functools
from typing import Any


def leave_out_main() -> None:
    """Have all processes that this process starts by `multiprocessing` begin with an empty `__main__`."""
    from multiprocessing import spawn

    original = spawn.get_preparation_data
    if getattr(original, "leaves_out_main", False):
        return

    @functools.wraps(original)
    def get_preparation_data(name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        data: dict[str, Any] = original(name, *args, **kwargs)
        for key in ("init_main_from_name", "init_main_from_path"):
            data.pop(key, None)
        return data

    get_preparation_data.leaves_out_main = True  # type: ignore[attr-defined]
    spawn.get_preparation_data = get_preparation_data
