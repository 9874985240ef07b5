"""Log records of workers that are killed, and of pools whose program forks: each in a fresh process."""

import pathlib

import fresh
import pytest

PROGRAM = pathlib.Path(__file__).resolve().parent / "relaying.py"
METHODS = ("fork", "forkserver", "spawn")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("what", ["amid_a_record", "in_a_parent_that_forks"])
def test_nothing_that_was_sent_is_lost(what, method):
    fresh.check(fresh.run([PROGRAM, what, method]))


@pytest.mark.parametrize("seed", range(2))
def test_workers_killed_at_random(seed):
    fresh.check(fresh.run([PROGRAM, "at_random", METHODS[seed], seed]))
