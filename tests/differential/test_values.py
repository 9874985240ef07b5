"""Values are the same for tasks and callers whether multiprocessing.Pool sends them or a pool of ours, of each kind."""

import sys

import accepted
import corpus
import pytest
import subjects

from pool_party.workers.interp.extensions import IS_SUPPORTED

# Before CPython 3.14 multiprocessing uses an older pickle protocol, by which arrays lose the order of their bytes.
pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="Pool itself changes some values")


def is_accepted(name, theirs):
    """Pool refuses it. So does cloudpickle, with errors of its own, where it does not know a newer Python well yet."""
    return theirs[0] == "error" and name.split(",")[0] in accepted.VALUES


@pytest.fixture(scope="module")
def oracle():
    with subjects.oracle() as pool:
        yield {name: corpus.outcome(pool, make()) for name, make in corpus.values()}


@pytest.mark.hang_s(400)
@pytest.mark.parametrize("name", subjects.NAMES)
def test_values_arrive_as_through_multiprocessing(make_pool, oracle, name):
    pool = subjects.make(make_pool, name)
    differences = {}
    for value_name, make in corpus.values():
        if name == "interp" and not IS_SUPPORTED and type(make()).__module__.split(".")[0] in ("numpy", "pandas"):
            continue
        theirs, ours = oracle[value_name], corpus.outcome(pool, make())
        if ours != theirs and not is_accepted(value_name, theirs):
            differences[value_name] = (theirs, ours)
    assert not differences, "\n".join(f"{key}: {str(pair)[:600]}" for key, pair in differences.items())


def test_the_corpus_is_large():
    assert sum(1 for _ in corpus.values()) > 900
