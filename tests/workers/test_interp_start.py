"""Interpreters that are created before their pool is set up, and the modules with which they start."""

import os
import pathlib
import sys

import fresh
import gates
import pytest
import tasks

from pool_party import ComposablePool, _native
from pool_party._workers.interp import worker

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


def test_arguments_and_path_are_the_program_s(make_pool, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program", "--new"])
    monkeypatch.setattr(sys, "path", [*sys.path, "/nowhere"])
    assert make_pool(1, kind="interp").apply(tasks.arguments_and_path) == (sys.argv, sys.path)


@pytest.mark.parametrize("stop", [_native.STOP_DRAIN, _native.STOP_NOW])
@pytest.mark.parametrize("initializes", [False, True])
def test_nothing_but_an_initializer_runs_once_the_pool_is_closed(stop, initializes, capfd):
    channel = _native.Channel(1)
    interpreter = channel.start_interpreter(0)
    channel.stop(stop)
    interpreter.run(b"no configuration, so that running it fails", initializes)
    assert interpreter.join(60)
    has_run = interpreter.error != ""
    assert has_run == (stop == _native.STOP_DRAIN and initializes)
    assert has_run == bool(capfd.readouterr().err)


def test_a_pool_that_is_closed_makes_no_more_interpreters(make_pool):
    interpreters = pytest.importorskip("concurrent.interpreters")  # their ids are consecutive
    is_ending, may_end = os.pipe(), os.pipe()
    first = make_pool(1, kind="interp")
    first.apply(tasks.hold_up_the_end, (is_ending[1], may_end[0]))
    earlier = interpreters.create()
    first.close()
    assert os.read(is_ending[0], 1) == b"x"
    second = make_pool(4, kind="interp")  # none is made while another one ends
    second.close()
    os.write(may_end[1], b"x")
    second.join(timeout=60)
    later = interpreters.create()
    assert later.id == earlier.id + 1
    for interpreter in (earlier, later):
        interpreter.close()
    first.join(timeout=60)
    for fd in (*is_ending, *may_end):
        os.close(fd)


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
