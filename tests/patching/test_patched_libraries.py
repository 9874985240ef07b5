"""joblib, scikit-learn, Dask and SciPy with their own pools replaced by ours: the same results as plain."""

import pytest
import tasks

import pool_party
from pool_party._patching import usage


@pytest.fixture(autouse=True)
def seen():
    """The events of a test, by a function."""
    before = usage.counts()
    yield lambda: [event for event, n in usage.counts().items() if n != before.get(event, 0)]


# ---- joblib ----


@pytest.fixture
def joblib():
    return pytest.importorskip("joblib")


BACKENDS = ("loky", "multiprocessing", "threading")


@pytest.mark.parametrize("name", BACKENDS)
def test_joblib_by_name(joblib, seen, name):
    with pool_party.patched(kind="thread"):
        parallel = joblib.Parallel(2, backend=name)
        assert parallel(joblib.delayed(tasks.square)(n) for n in range(5)) == [0, 1, 4, 9, 16]
    (event,) = seen()
    assert event == usage.Replaced("joblib", f'joblib backend "{name}"', "thread", __name__, 2)


@pytest.mark.parametrize(
    ("hints", "kind"),
    [
        ({}, "process"),
        ({"prefer": "processes"}, "process"),
        ({"prefer": "threads"}, "thread"),
        ({"require": "sharedmem"}, "thread"),
    ],
)
def test_joblib_by_hint(joblib, seen, hints, kind):
    with pool_party.patched(kind="process"):
        parallel = joblib.Parallel(2, **hints)
        assert parallel(joblib.delayed(tasks.square)(n) for n in range(3)) == [0, 1, 4]
    assert [event.kind for event in seen()] == [kind]


@pytest.mark.parametrize("name", BACKENDS)
def test_joblib_objects_are_joblibs(joblib, name):
    from joblib.parallel import BACKENDS as backends

    original = backends[name]
    with pool_party.patched(kind="thread"):
        backend = backends[name]()
        assert isinstance(backend, original)
        assert type(backend).__name__ == original.__name__
        assert type(backend) is backends[name]
        assert (backend.uses_threads, backend.supports_sharedmem) == (name == "threading", name == "threading")
        for attribute in ("supports_return_generator", "supports_timeout", "default_n_jobs"):
            assert getattr(backend, attribute) == getattr(original(), attribute)
    assert backends[name] is original


def test_joblib_left_alone_with_options_of_its_own(joblib, seen):
    with pool_party.patched(), joblib.parallel_config(backend="loky", env={}, n_jobs=1):
        pass
    (event,) = seen()
    assert event.reason == "Its option 'env' is joblib's own."


def test_joblib_errors_and_nesting(joblib):
    def outer(n):
        return sum(joblib.Parallel(2)(joblib.delayed(tasks.square)(x) for x in range(n)))

    with pool_party.patched(kind="thread"):
        assert joblib.Parallel(2)(joblib.delayed(outer)(n) for n in (2, 3)) == [1, 5]
        with pytest.raises(ZeroDivisionError):
            joblib.Parallel(2)(joblib.delayed(divmod)(1, n) for n in (1, 0))
        with pytest.raises(ValueError, match="n_jobs == 0"):
            joblib.Parallel(0)(joblib.delayed(abs)(n) for n in (1, 2))


def test_joblib_all_cpus_are_those_of_the_option(joblib, seen):
    with pool_party.patched(kind="thread", n_workers=3):
        assert joblib.Parallel(-1)(joblib.delayed(abs)(n) for n in (1, -2)) == [1, 2]
    assert [event.n_workers for event in seen()] == [3]


def test_joblib_excluded(joblib, seen):
    with pool_party.patched(excluded=["joblib"]):
        for name in ("threading", "multiprocessing"):
            assert joblib.Parallel(2, backend=name)(joblib.delayed(abs)(n) for n in (1, -2)) == [1, 2]
    assert seen() == []


@pytest.mark.slow
def test_scikit_learn(seen):
    pytest.importorskip("sklearn")
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import cross_val_score

    values, labels = make_classification(60, random_state=0)
    forest = RandomForestClassifier(4, random_state=0, n_jobs=2)

    def score():
        return cross_val_score(forest, values, labels, cv=2, n_jobs=2).tolist(), forest.fit(values, labels).score(
            values, labels
        )

    plain = score()
    with pool_party.patched(kind="process"):
        assert score() == plain
    assert {(event.part, event.kind) for event in seen()} == {("joblib", "process"), ("joblib", "thread")}


# ---- Dask, SciPy ----


@pytest.mark.parametrize(("scheduler", "kind"), [("threads", "thread"), ("processes", "process")])
def test_dask(seen, scheduler, kind):
    dask = pytest.importorskip("dask")
    total = dask.delayed(sum)([dask.delayed(tasks.square)(n) for n in range(5)])
    plain = total.compute(scheduler=scheduler, num_workers=3)  # Dask keeps a pool of threads for each number
    with pool_party.patched(kind="process"):
        assert total.compute(scheduler=scheduler, num_workers=2) == plain
    (event,) = seen()
    assert (event.part, event.kind, event.n_workers) == ("dask", kind, 2)
    with pool_party.patched(excluded=["dask"]):
        assert total.compute(scheduler=scheduler, num_workers=4) == plain
    assert seen() == [event]


def curve(x):
    return float(((x - 1) ** 2).sum())


@pytest.mark.slow
def test_scipy_workers(seen):
    optimize = pytest.importorskip("scipy.optimize")

    def minimum():
        return optimize.brute(curve, [(-2, 2), (-2, 2)], Ns=5, workers=2, finish=None).tolist()

    plain = minimum()
    for kind in ("process", "thread"):
        with pool_party.patched(kind=kind):
            assert minimum() == plain
    assert [(event.part, event.kind) for event in seen()] == [("scipy", "process"), ("scipy", "thread")]
