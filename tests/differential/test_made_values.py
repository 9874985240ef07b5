"""Values that hypothesis makes arrive as with multiprocessing.Pool, in each kind. Differing values are shrunk."""

import contextlib
import sys

import corpus
import pytest
import subjects

hypothesis = pytest.importorskip("hypothesis")
pytest.importorskip("numpy")
import made  # noqa: E402 # imports both, so it comes after the checks

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="Pool itself changes some values")

NAMES = (subjects.ORACLE, "process", "interp") if subjects.IS_SUPPORTED else (subjects.ORACLE, "process")


@pytest.fixture
def pools():
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(subjects.make(name)) for name in NAMES]


def test_made_values_arrive_as_through_multiprocessing(pools):

    @hypothesis.settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[*hypothesis.HealthCheck],
    )
    @hypothesis.given(made.values())
    def check(value):
        theirs, *ours = (corpus.outcome(pool, value) for pool in pools)
        assert theirs[0] != "error"
        assert ours == [theirs] * len(ours)

    check()
