"""In a notebook, functions run with their current definitions and the current globals, as with loky."""

import functools
import os
import sys
import textwrap

import fresh
import pytest

sys.path.insert(0, os.path.dirname(__file__))
import sessions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.version_info < (3, 14), reason="compared on the newest versions alone, as it takes minutes"),
]

SUBJECTS = ("thread", "process-fork", "process-forkserver", "process-spawn", "interp")

LOKY = """
from joblib.externals.loky import get_reusable_executor
executor = get_reusable_executor(max_workers=1)
def run(f, xs):
    return list(executor.map(f, xs))
def end():
    executor.shutdown()
"""
OURS = """
from pool_party import ComposablePool
kind, _, method = {subject!r}.partition("-")
pool = ComposablePool(2, {arguments}kind=kind, context=method or None)
def run(f, xs):
    return pool.map(f, xs)
def end():
    pool.terminate()
    pool.join()
"""


def run(text):
    return fresh.check(fresh.run(["-c", text], options=())).out


@functools.cache
def by_loky(name):
    pytest.importorskip("joblib")
    return run(sessions.text_of(name, LOKY))


@pytest.mark.parametrize("name", sessions.SESSIONS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_as_with_loky(subject, name):
    assert run(sessions.text_of(name, OURS.format(subject=subject, arguments=""))) == by_loky(name)


# ---- the state of a worker ---------------------------------------------------

STATE = """
n = 0
state = {}
K = 1

def initialize(value):
    global shared
    shared = value
    state["initialized"] = value

def count(x):
    global n
    n += 1
    state[x] = n
    return n, len(state), state["initialized"], shared, K
"""


def program(subject, definitions, cells, arguments=""):
    """Return a program that makes its pool and runs the cells only if it is the main program."""
    body = OURS.format(subject=subject, arguments=arguments).replace("Pool(2", "Pool(1")
    body += "".join(f'exec(compile({cell!r}, "<cell>", "exec"), globals())\n' for cell in cells) + "end()\n"
    return f'{definitions}\nif __name__ == "__main__":\n{textwrap.indent(body, "    ")}'


def run_script(folder, text):
    path = folder / "app.py"
    path.write_text(text)
    return fresh.check(fresh.run([path], options=())).out


CELLS = (
    "print(run(count, [1, 2]))",
    "K = 2\nprint(run(count, [3]))",
    "print(run(lambda x: (n, len(state), shared, K), [0]))",
    "def other(x):\n    return n, state['initialized'], K\nprint(run(other, [0]))",
)


@pytest.mark.parametrize("subject", SUBJECTS[1:])
def test_state_of_a_worker_stays_in_a_session(subject):
    """Globals that the caller has not changed keep the worker's value; changed ones get the caller's value."""
    expected = """
        [(1, 2, 'set', 'set', 1), (2, 3, 'set', 'set', 1)] [(3, 4, 'set', 'set', 2)] [(3, 4, 'set', 2)] [(3, 'set', 2)]
    """
    assert run(program(subject, STATE, CELLS, 'initialize, ("set",), ')).split() == expected.split()


@pytest.mark.parametrize("subject", SUBJECTS[1:])
def test_state_of_a_worker_stays_in_a_script(subject, tmp_path):
    """A worker that has a name keeps its value, even if the caller changes its own, as with `multiprocessing.Pool`."""
    expected = """
        [(1, 2, 'set', 'set', 1), (2, 3, 'set', 'set', 1)] [(3, 4, 'set', 'set', 1)] [(3, 4, 'set', 1)] [(3, 'set', 1)]
    """
    text = program(subject, STATE, CELLS, 'initialize, ("set",), ')
    assert run_script(tmp_path, text).split() == expected.split()


@pytest.mark.parametrize("subject", SUBJECTS[1:])
def test_definitions_in_a_script_are_the_newest(subject, tmp_path):
    definitions, _, first_call = sessions.SESSIONS["helpers_of_helpers"][0].rpartition("\n")
    text = program(subject, definitions, [first_call, *sessions.SESSIONS["helpers_of_helpers"][1:]])
    assert run_script(tmp_path, text) == "[1]\n[2]\n[3]\n[4]\n[5]\n"
