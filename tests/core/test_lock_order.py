"""Locks are taken in one order, so that no two threads wait for each other for ever."""

import fresh
import pytest

PROGRAM = fresh.TESTS / "isolated" / "ordering.py"


@pytest.mark.parametrize("kind", ["thread", "process", "interp"])
def test_locks_and_imports_have_one_order(kind):
    fresh.check(fresh.run([PROGRAM, "use_all", kind]), "ok")


def test_orders_that_contradict_each_other_are_found(tmp_path):
    (tmp_path / "late.py").write_text("import sys\n\nwith sys.lock:\n    pass\n")
    fresh.check(fresh.run([PROGRAM, "contradict", tmp_path]), "first, second\nimport late, third")
