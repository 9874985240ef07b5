"""Interpreters while tracemalloc traces, which CPython cannot create then: `python tracing_memory.py opening`."""

import tracemalloc

import pytest
from probe import ComposablePool, main, tasks

from pool_party import ComposableExecutor, PoolPartyError
from pool_party._patching import kinds

REFUSAL = "tracemalloc traces"


def opening():
    tracemalloc.start()
    for kind in (ComposablePool, ComposableExecutor):
        with pytest.raises(PoolPartyError, match=REFUSAL):
            kind(2, kind="interp")
    assert kinds.choose(None) == "process"
    tracemalloc.stop()
    use()


def use():
    with ComposablePool(2, kind="interp") as pool:
        assert pool.map(tasks.square, range(3)) == [0, 1, 4]


if __name__ == "__main__":
    main({"opening": opening})
