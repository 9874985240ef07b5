"""Interpreters that are created before their pool is set up, and the modules with which they start."""

import pathlib

import fresh
import gates
import pytest
import tasks

from pool_party import ComposablePool, _native
from pool_party.workers.interp import worker

ISOLATED = fresh.TESTS / "isolated"


class Impossible:
    """A policy that fails when it is called for the first time."""

    def shares(self, state):
        raise ArithmeticError("no shares today")


def n_threads():
    return len(list(pathlib.Path("/proc/self/task").iterdir()))


def test_opening_while_tracemalloc_traces():
    completed = fresh.run([ISOLATED / "tracing_memory.py", "opening"])
    assert completed.returncode == 0, completed


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"policy": "nonsense"}, ValueError),
        ({"policy": Impossible()}, ArithmeticError),
        ({"extensions": "numpy"}, TypeError),
        ({"preload": ["not a name"]}, ValueError),
        ({"initializer": print, "initargs": 1}, TypeError),
    ],
)
def test_interpreters_of_a_pool_that_is_refused_end(options, error):
    before = _native.n_interpreters(), n_threads()
    with pytest.raises(error):
        ComposablePool(3, kind="interp", **options)
    assert _native.n_interpreters() == before[0]
    gates.wait_until(lambda: n_threads() <= before[1], "the threads' end")  # slightly after the interpreter's


def test_an_interpreter_is_told_once_what_to_run():
    interpreter = _native.Channel(1).start_interpreter(0)
    with pytest.raises(ValueError, match="as bytes"):
        interpreter.run("text")
    interpreter.dismiss()
    assert interpreter.join(60) and interpreter.error == ""
    with pytest.raises(ValueError, match="once"):
        interpreter.run(b"")


def test_an_interpreter_that_nobody_wants_ends():
    before = _native.n_interpreters()
    _native.Channel(1).start_interpreter(0)
    gates.wait_until(lambda: _native.n_interpreters() == before, "the interpreter's end")


def places():
    with ComposablePool(1, kind="interp") as pool:
        return pool.apply(tasks.places_of_modules, ("pool_party",))


@pytest.fixture
def without_code(monkeypatch):
    """Make the code of our modules unavailable, as with an unknown loader."""

    def refuse(name):
        raise ImportError(name)

    worker._boot.cache_clear()
    monkeypatch.setattr(worker, "_code_of", refuse)
    yield
    worker._boot.cache_clear()


def test_modules_from_code_are_as_if_they_had_been_imported(request):
    found = places()
    assert {*worker._LOADED, "pool_party._native"} <= found.keys()
    assert worker._boot() is not None
    request.getfixturevalue("without_code")
    assert worker._boot() is None and places() == found
