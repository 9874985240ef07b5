"""The end of interpreters: what tasks have left there is waited for, called, or left alone."""

import multiprocessing
import os

import fresh
import pytest
import tasks

LEFT = """
import _thread, os
from pool_party import ComposablePool, _native
with ComposablePool(1, kind="interp") as pool:
    pool.apply(_thread.start_new_thread, (os.read, (os.pipe()[0], 1)))
pool.join(timeout=60)
print(_native.n_interpreters(), flush=True)
os._exit(0)  # CPython would complain of the interpreter
"""


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def test_the_end_waits_for_threads_of_tasks(make_pool, pipe):
    reads, says = pipe
    may_end, tells = os.pipe()
    pool = make_pool(1, kind="interp")
    pool.apply(tasks.leave_a_thread, (may_end, says))
    pool.close()
    with pytest.raises(multiprocessing.TimeoutError):
        pool.join(timeout=0.01)
    os.write(tells, b"x")
    pool.join(timeout=60)
    assert os.read(reads, 1) == b"x"
    os.close(may_end)
    os.close(tells)


def test_functions_of_atexit_run(make_pool, pipe):
    reads, says = pipe
    pool = make_pool(1, kind="interp")
    pool.apply(tasks.register_exits, (says,))
    pool.close()
    pool.join(timeout=60)
    assert os.read(reads, 10) == b"ab"


def test_an_interpreter_with_a_thread_that_nobody_waits_for_never_ends():
    fresh.check(fresh.run(["-c", LEFT]), "1")
