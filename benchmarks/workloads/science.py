"""Scientific tasks: fits of scikit-learn, groups of pandas tables, runs of scipy.optimize.

This module imports the packages: the caller does so before it opens a pool, and each worker for itself. Results are
lists of numbers, the same wherever they are computed.
"""

from typing import Any

import numpy as np
import pandas as pd
import scipy.optimize
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge

from workloads import sending

type Case = tuple[Any, ...]
type Numbers = list[float]


def identify(nap_s: float) -> tuple[int, int]:
    """Return the process and thread of a worker that has imported the packages."""
    return sending.identify(nap_s)


# ---- scikit-learn ----


def fit(case: Case) -> Numbers:
    """Fit a model to a table; return its score and the sum of what it predicts."""
    name, parameter, table, classes = case
    if name == "forest":
        model = RandomForestClassifier(n_estimators=12, max_depth=parameter, random_state=0, n_jobs=1)
    elif name == "logistic":
        model = LogisticRegression(C=parameter, max_iter=300)
    else:
        model = Ridge(alpha=parameter)
    model.fit(table, classes)
    return [float(model.score(table, classes)), float(np.sum(model.predict(table)))]


def fits(n_tasks: int, n_rows: int) -> list[Case]:
    """Return a sweep over models and their parameters; each case contains its table."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((n_rows, 20))
    classes = (table[:, :5].sum(axis=1) + rng.standard_normal(n_rows) > 0).astype(np.int64)
    models = [("forest", 8), ("logistic", 0.1), ("ridge", 1.0), ("forest", 4), ("logistic", 10.0), ("ridge", 10.0)]
    return [(*models[n % len(models)], table, classes) for n in range(n_tasks)]


# ---- pandas ----


def group(case: Case) -> Numbers:
    """Group a table in several ways; return sums over the results."""
    table, window = case
    means = table.groupby("key", observed=True).agg({"x": "mean", "y": ["std", "max"]})
    rolled = table.groupby("other")["x"].rolling(window).mean()
    joined = table.merge(means["x"], left_on="key", right_index=True)
    pivot = joined.pivot_table(index="other", columns="key", values="y", aggfunc="sum", observed=True)
    return [float(part.to_numpy().sum()) for part in (means, rolled.dropna(), joined["mean"], pivot.fillna(0))]


def groups(n_tasks: int, n_rows: int) -> list[Case]:
    """Return tables with the windows for their moving means."""
    rng = np.random.default_rng(1)
    keys = pd.Categorical.from_codes(rng.integers(0, 20, n_rows), [f"key {n}" for n in range(20)])
    columns = {"key": keys, "other": rng.integers(0, 50, n_rows), "x": rng.random(n_rows), "y": rng.random(n_rows)}
    return [(pd.DataFrame(columns), 5 + n % 10) for n in range(n_tasks)]


# ---- scipy.optimize ----


def _rosenbrock(x: Any) -> float:
    return float(np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2))


def minimize(case: Case) -> Numbers:
    """Minimize a Python function from a starting point; return the final point."""
    method, start = case
    result = scipy.optimize.minimize(_rosenbrock, start, method=method, options={"maxiter": 400})
    return [float(result.fun), *map(float, result.x)]


def minimizations(n_tasks: int, n_variables: int) -> list[Case]:
    """Return methods and starting points."""
    rng = np.random.default_rng(2)
    methods = ("BFGS", "Powell", "L-BFGS-B")
    return [(methods[n % len(methods)], rng.uniform(-1, 1, n_variables)) for n in range(n_tasks)]
