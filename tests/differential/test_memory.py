"""After much work a pool holds no more memory than `multiprocessing.Pool`, apart from idle memory that it may keep."""

import pathlib

import fresh
import pytest

PROGRAM = pathlib.Path(__file__).with_name("remaining.py")
IDLE_MB = 64  # see docs/data.md
ROUGH_MB = 16  # the difference between allocators after the same work


def remaining(*args):
    return float(fresh.check(fresh.run([PROGRAM, *args], timeout=100)).out)


@pytest.fixture(scope="module")
def of_pool():
    return remaining("pool")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["process", "interp"])
def test_no_more_remains_than_with_multiprocessing(kind, of_pool):
    remaining(kind, of_pool + IDLE_MB + ROUGH_MB)
