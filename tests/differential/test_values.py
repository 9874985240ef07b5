"""Values are the same for tasks and callers whether multiprocessing.Pool sends them or a pool of ours, of each kind."""

import multiprocessing
import sys

import corpus
import pytest

from pool_party.workers.interp.extensions import IS_SUPPORTED

# Before CPython 3.14 multiprocessing uses an older pickle protocol, by which arrays lose the order of their bytes.
pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="Pool itself changes some values")

# What differs on purpose: Pool refuses these, and ours send them by value, with cloudpickle.
SENT_BY_US_ALONE = {
    "lambda": "functions without a name travel",
    "local class": "classes without a name travel",
    "module": "travels as its name",
    "code": "travels with the functions that it belongs to",
    "memoryview": "travels as bytes",
    "proxy": "travels as a proxy of a copy",
    "mappingproxy of a class": "travels as a proxy of a copy",
    "dict keys": "travel as the keys of a copy",
}


def outcome(apply_async, make):
    """What the task saw and what came back; or the type of the error."""
    try:
        seen, back = apply_async(corpus.echo, (make(),)).get(60)
    except Exception as error:
        return "error", type(error).__name__
    return seen, corpus.describe(back)


def is_accepted(name, theirs):
    """Pool refuses it. So does cloudpickle, with errors of its own, where it does not know a newer Python well yet."""
    return theirs[0] == "error" and name.split(",")[0] in SENT_BY_US_ALONE


@pytest.fixture(scope="module")
def oracle():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield {name: outcome(pool.apply_async, make) for name, make in corpus.values()}


@pytest.mark.hang_s(400)
@pytest.mark.parametrize("name", ["process", "interp", "spawn"])
def test_values_arrive_as_through_multiprocessing(make_pool, oracle, name):
    options = {"kind": "interp"} if name == "interp" else {"kind": "process"}
    if name == "spawn":
        options["context"] = multiprocessing.get_context("spawn")
    pool = make_pool(1, **options)
    differences = {}
    for value_name, make in corpus.values():
        if name == "interp" and not IS_SUPPORTED and type(make()).__module__.split(".")[0] in ("numpy", "pandas"):
            continue
        theirs, ours = oracle[value_name], outcome(pool.apply_async, make)
        if ours != theirs and not is_accepted(value_name, theirs):
            differences[value_name] = (theirs, ours)
    assert not differences, "\n".join(f"{key}: {str(pair)[:600]}" for key, pair in differences.items())


def test_the_corpus_is_large():
    assert sum(1 for _ in corpus.values()) > 900
