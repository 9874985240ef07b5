"""What a call does to its caller's objects, and errors of tasks, are the same through multiprocessing.Pool and ours."""

import sys

import accepted
import effects
import errors
import pytest
import subjects

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="compared on the newest versions alone")


def by_errors(pool):
    found = {}
    for name in errors.NAMES:
        try:
            pool.apply_async(errors.fail, (name,)).get(60)
        except Exception as error:
            found[name] = errors.describe(error)
    return found


def by_effects(pool):
    return {
        function.__name__: effects.error_of(lambda function=function: function(pool)) for function in effects.EFFECTS
    }


@pytest.fixture(scope="module")
def oracle():
    with subjects.oracle() as pool:
        yield {observe: observe(pool) for observe in (by_errors, by_effects)}


@pytest.mark.parametrize("name", subjects.NAMES)
@pytest.mark.parametrize(("observe", "differs"), [(by_errors, accepted.ERRORS), (by_effects, accepted.EFFECTS)])
def test_as_with_multiprocessing(make_pool, oracle, observe, differs, name):
    ours, theirs = observe(subjects.make(make_pool, name)), oracle[observe]
    assert ours.keys() == theirs.keys()
    different = {key: (theirs[key], ours[key]) for key in ours if ours[key] != theirs[key]}
    wrong = {key: pair for key, pair in different.items() if key not in differs}
    assert not wrong, "\n".join(f"{key}: {str(pair)[:2000]}" for key, pair in wrong.items())
    assert different.keys() == differs.keys(), "a difference that was accepted is gone"


def test_there_are_many():
    assert len(errors.NAMES) > 100 and len(effects.EFFECTS) > 10
