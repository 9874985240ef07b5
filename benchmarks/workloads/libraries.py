"""What libraries.py computes: small tasks for joblib, fits of scikit-learn, collections of Dask.

A workload of the last two returns plain lists of numbers, which are the same in every way of running it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

SIZES = {"quick": 0.1, "full": 0.6}


def same(n: int) -> int:
    """Do nothing."""
    return n


def edges(array: Any) -> tuple[float, float]:
    """Read a large array; return its first and its last number."""
    return float(array[:: 4096 // array.itemsize].sum()), float(array[-1])


# ---- scikit-learn ----


def _samples(n_rows: int) -> tuple[Any, Any]:
    from sklearn.datasets import make_classification

    samples: tuple[Any, Any] = make_classification(n_rows, 20, n_informative=8, random_state=5)
    return samples


def grid_search(scale: float, n_jobs: int) -> list[float]:
    """Search a grid of support vector machines."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    grid = {"C": [0.1, 1.0, 10.0, 100.0], "gamma": [0.01, 0.03, 0.1]}
    search = GridSearchCV(SVC(), grid, cv=4, n_jobs=n_jobs).fit(*_samples(int(1200 * scale)))
    return list(map(float, search.cv_results_["mean_test_score"]))


def forest(scale: float, n_jobs: int) -> list[float]:
    """Fit a forest, whose trees are tasks."""
    from sklearn.ensemble import RandomForestClassifier

    x, y = _samples(int(4000 * scale))
    model = RandomForestClassifier(max(8, int(120 * scale)), random_state=1, n_jobs=n_jobs).fit(x, y)
    return list(map(float, model.predict_proba(x[:50])[:, 0]))


def cross_prediction(scale: float, n_jobs: int) -> list[float]:
    """Predict each sample by a model that has not seen it."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    x, y = _samples(int(20_000 * scale))
    found = cross_val_predict(LogisticRegression(max_iter=500), x, y, cv=10, n_jobs=n_jobs, method="predict_proba")
    return list(map(float, found[:50, 0]))


def boosting(scale: float, n_jobs: int) -> list[float]:
    """Validate gradient boosting, which has OpenMP threads of its own in each task."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import cross_val_score

    model = HistGradientBoostingClassifier(max_iter=max(5, int(60 * scale)), random_state=2)
    return list(map(float, cross_val_score(model, *_samples(int(8000 * scale)), cv=6, n_jobs=n_jobs)))


def nested_forests(scale: float, n_jobs: int) -> list[float]:
    """Search over forests, with n_jobs on both levels."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import GridSearchCV

    model = RandomForestClassifier(max(4, int(40 * scale)), random_state=3, n_jobs=n_jobs)
    search = GridSearchCV(model, {"max_depth": [4, 8, 12]}, cv=3, n_jobs=n_jobs).fit(*_samples(int(1500 * scale)))
    return list(map(float, search.cv_results_["mean_test_score"]))


ESTIMATORS: dict[str, Callable[[float, int], list[float]]] = {
    "grid search": grid_search,
    "forest": forest,
    "cross-prediction": cross_prediction,
    "boosting": boosting,
    "nested forests": nested_forests,
}


# ---- Dask ----


def _matrix(scale: float) -> Any:
    import dask.array

    n_rows = int(200_000 * scale)
    return dask.array.random.default_rng(4).random((n_rows, 60), chunks=(n_rows // 16, 60))


def qr(scale: float) -> list[float]:
    """Decompose a tall matrix into Q and R."""
    import dask.array

    q, r = dask.array.linalg.qr(_matrix(scale))
    return [float((q * q).sum().compute()), *map(float, np.abs(r.compute()).sum(axis=1))]


def svd(scale: float) -> list[float]:
    """Compute the singular values of a tall matrix."""
    import dask.array

    return list(map(float, dask.array.linalg.svd(_matrix(scale))[1].compute()))


def groupby(scale: float) -> list[float]:
    """Group a table by strings, and aggregate two columns."""
    import dask.dataframe
    import pandas as pd

    n_rows = int(1_000_000 * scale)
    generator = np.random.default_rng(6)
    keys = np.array([f"key {n}" for n in range(50)])[generator.integers(0, 50, n_rows)]
    table = pd.DataFrame({"key": keys, "x": generator.random(n_rows), "y": generator.random(n_rows)})
    groups = dask.dataframe.from_pandas(table, npartitions=16).groupby("key")
    found = groups.agg({"x": "mean", "y": "max"}).compute().sort_index()
    return [float(value) for column in ("x", "y") for value in found[column]]


COLLECTIONS: dict[str, Callable[[float], list[float]]] = {"QR": qr, "SVD": svd, "groupby": groupby}
