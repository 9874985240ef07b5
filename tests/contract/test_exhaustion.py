"""Limits of the system that are reached while pools open, work and end: errors name them, and nothing stays."""

import errno

import fresh
import pytest

from pool_party._ground import limits

PROGRAM = fresh.TESTS / "isolated" / "exhausting.py"


@pytest.mark.parametrize("what", ["descriptors", "threads"])
def test_errors_name_the_limit_and_pools_work_when_it_is_lifted(kind, what):
    done = fresh.run([PROGRAM, what, kind], timeout=100)
    assert done.returncode == 0 and done.out.split() == ["ok"], done


def test_a_task_is_interrupted_although_no_thread_can_start():
    fresh.check(fresh.run([PROGRAM, "terminate"], timeout=100), "ok")


def test_other_errors_stay_as_they_are():
    for error in (OSError(errno.ENOENT, "none"), RuntimeError("other"), ValueError("x"), OSError("text")):
        before = str(error)
        limits.name_limit(error)
        assert str(error) == before


def test_a_limit_is_named_once(monkeypatch):
    monkeypatch.setattr(limits, "_near", lambda: iter(["this is used up", "and this"]))
    for error in (MemoryError(), RuntimeError("can't start new thread"), OSError(errno.EMFILE, "Too many open files")):
        for _ in range(2):
            limits.name_limit(error)
        assert str(error).count("; this is used up") == 1 and "and this" not in str(error)
