"""Errors show their public names in tracebacks, and travel by these, also before the program has used them."""

import fresh
import pytest

import pool_party

NAMES = [
    name
    for name, value in ((name, getattr(pool_party, name)) for name in pool_party.__all__)
    if isinstance(value, type) and issubclass(value, pool_party.PoolPartyError)
]

UNUSED = """
from pool_party._ground import broken, errors
errors = [getattr(errors, name, None) or getattr(broken, name) for name in {names!r}]
"""
TRACEBACK = """
from pool_party import ComposablePool
pool = ComposablePool(1, kind="thread")
pool.terminate()
pool.map(abs, [1])
"""
TRAVEL = """
import multiprocessing, operator
import tasks
from pool_party import ComposablePool
if __name__ == "__main__":
    context = {method!r} and multiprocessing.get_context({method!r})
    with ComposablePool(1, kind={kind!r}, context=context) as pool:
        for cls in errors:
            assert pool.apply(operator.attrgetter("__module__"), (cls,)) == "pool_party"
            there_and_back = pool.apply(tasks.identity, (cls("text"),))
            assert type(there_and_back) is cls and str(there_and_back) == "text"
            try:
                pool.apply(tasks.raise_error, (cls("text"),))
            except cls as error:
                assert type(error) is cls and str(error) == "text"
            else:
                raise AssertionError(cls)
    print("ok")
"""


def test_there_are_errors():
    assert {"PoolPartyError", "PoolClosed", "WorkerLost"} < {*NAMES}


def test_a_traceback_shows_the_public_name():
    done = fresh.run(["-c", TRACEBACK])
    assert done.returncode == 1 and done.err.splitlines()[-1].startswith("pool_party.PoolClosed: "), done


def test_errors_have_their_public_module_before_they_are_used():
    code = UNUSED.format(names=NAMES) + "print({cls.__module__ for cls in errors})"
    fresh.check(fresh.run(["-c", code]), "{'pool_party'}")


@pytest.mark.parametrize(
    ("kind", "method"),
    [("thread", None), ("interp", None), ("process", "fork"), ("process", "forkserver"), ("process", "spawn")],
)
def test_errors_travel(tmp_path, kind, method):
    script = tmp_path / "script.py"
    script.write_text(UNUSED.format(names=NAMES) + TRAVEL.format(kind=kind, method=method))
    fresh.check(fresh.run([script]), "ok")
