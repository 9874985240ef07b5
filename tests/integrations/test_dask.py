"""Dask's own schedulers over pools and executors, and what they need of a pool."""

import concurrent.futures
import importlib.util
import operator
import os

import fresh
import pytest
import tasks

from pool_party import PoolClosed
from pool_party._workers.interp.extensions import IS_SUPPORTED

TIMEOUT_S = 30
PROGRAM = fresh.TESTS / "isolated" / "dask_collections.py"


@pytest.mark.skipif(importlib.util.find_spec("dask") is None, reason="there is no Dask here")
@pytest.mark.parametrize(
    "how",
    [
        "thread",
        "process forkserver",
        pytest.param("process fork", marks=pytest.mark.slow),
        pytest.param("process spawn", marks=pytest.mark.slow),
        "interp",
    ],
)
def test_collections(how):
    if how == "interp" and not IS_SUPPORTED:
        pytest.skip("needs CPython 3.14 with a GIL")
    fresh.check(fresh.run([PROGRAM, *how.split()], options=()))


def test_submit(make_pool, kind):
    pool = make_pool(2, kind=kind)
    futures = {pool.submit(tasks.square, n): n for n in range(20)}
    for future in concurrent.futures.as_completed(futures, TIMEOUT_S):
        assert future.result() == futures[future] ** 2
    assert pool.submit(dict, fn=1, self=2).result(TIMEOUT_S) == {"fn": 1, "self": 2}
    with pytest.raises(ZeroDivisionError):
        pool.submit(operator.truediv, 1, 0).result(TIMEOUT_S)
    assert pool._max_workers == 2


def test_submit_to_a_closed_pool(make_pool, kind):
    pool = make_pool(1, kind=kind)
    with pytest.raises(TypeError, match="not callable"):
        pool.submit(None)
    pool.close()
    with pytest.raises(PoolClosed):
        pool.submit(tasks.square, 1)


def hash_and_seed(text):
    return hash(text), os.environ.get("PYTHONHASHSEED")


def test_workers_agree_on_hashes(make_pool, context):
    """Each task runs in a process of its own."""
    before = os.environ.get("PYTHONHASHSEED")
    pool = make_pool(1, context=context, maxtasksperchild=1)
    found = {pool.apply(hash_and_seed, ("a word",)) for _ in range(2)}
    assert len(found) == 1 and {seed for _, seed in found} == {before}
    assert os.environ.get("PYTHONHASHSEED") == before


AT_A_CHOSEN_SEED = """
import os, subprocess, sys
from pool_party import ComposablePool
if __name__ == "__main__":
    with ComposablePool(1, context="spawn") as pool:
        assert pool.apply(hash, ("a word",)) == hash("a word")
        assert pool.apply(os.getenv, ("PYTHONHASHSEED",)) == "5"
    program = "import os; print(os.environ['PYTHONHASHSEED'])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "5\\n"
"""


def test_the_users_own_seed(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(AT_A_CHOSEN_SEED)
    fresh.check(fresh.finish(fresh.start([path], extra={"PYTHONHASHSEED": "5"})))
