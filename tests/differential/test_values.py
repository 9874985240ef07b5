"""Values, errors, and a call's effects on its caller's objects are as with multiprocessing.Pool, in each kind."""

import sys

import accepted
import pytest
import subjects
import table

# Before CPython 3.14 multiprocessing uses an older pickle protocol, in which arrays lose their byte order.
pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="Pool itself changes some values")

SUBJECTS = ["process", "interp", pytest.param("spawn", marks=pytest.mark.slow)]


def show(differences):
    return "\n".join(f"{key}: {str(pair)[:2000]}" for key, pair in differences.items())


@pytest.mark.hang_s(400)
@pytest.mark.parametrize("name", SUBJECTS)
def test_values_arrive_as_through_multiprocessing(name):
    """Values that Pool refuses are skipped.

    A cloudpickle that does not fully support a newer Python yet also refuses some.
    """
    found = subjects.differences(name, subjects.by_values)
    wrong = {
        key: (theirs, ours)
        for key, (theirs, ours) in found.items()
        if theirs[0] != "error" or key.split(",")[0] not in accepted.VALUES
    }
    assert not wrong, show(wrong)


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("what", ["errors", "effects"])
def test_errors_and_effects_are_those_of_multiprocessing(what, name):
    look, differs = {
        "errors": (subjects.by_errors, accepted.ERRORS),
        "effects": (subjects.by_effects, accepted.EFFECTS),
    }[what]
    assert subjects.observe(name, look).keys() == subjects.observe(subjects.ORACLE, look).keys()
    found = subjects.differences(name, look)
    wrong = {key: pair for key, pair in found.items() if key not in differs}
    assert not wrong, show(wrong)
    assert found.keys() == differs.keys(), "a difference that was accepted is gone"


def test_there_are_many():
    counts = [len(subjects.observe("process", look)) for look in (subjects.by_values, subjects.by_errors)]
    assert counts[0] > 900 and counts[1] > 100, counts


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 14) or not subjects.IS_SUPPORTED, reason="the table tells what 3.14 with a GIL does"
)
def test_the_table_is_not_stale():
    pytest.importorskip("pandas")
    assert table.written() == table.made(), "run: python tests/differential/table.py"
