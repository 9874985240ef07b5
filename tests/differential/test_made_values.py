"""Values that hypothesis makes arrive as through multiprocessing.Pool, by each kind; what differs is shrunk."""

import sys

import corpus
import pytest
import subjects

hypothesis = pytest.importorskip("hypothesis")
pytest.importorskip("numpy")
import made  # noqa: E402 # which imports both

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="Pool itself changes some values")


@pytest.fixture
def pools(make_pool):
    with subjects.oracle() as oracle:
        yield oracle, {name: subjects.make(make_pool, name) for name in ("process", "interp")}


def test_made_values_arrive_as_through_multiprocessing(pools):
    oracle, subjects_by_name = pools

    @hypothesis.settings(
        max_examples=150,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[*hypothesis.HealthCheck],
    )
    @hypothesis.given(made.values())
    def check(value):
        theirs = corpus.outcome(oracle, value)
        assert theirs[0] != "error", theirs
        for name, pool in subjects_by_name.items():
            assert corpus.outcome(pool, value) == theirs, name

    check()
