"""Search the best parameters of a scikit-learn model, with the data shared by all workers.

    python examples/grid_search.py [--kind KIND] [--context METHOD] [--quick]

Each task fits one combination of parameters on one fold of the data. `share` puts the data into memory that all
workers see, so a task carries a handle of some bytes and no copy. With `policy="dynamic"` the last long fits may use
the CPUs of workers that have run out of tasks.

It prints the best parameters, the accuracy of cross-validation, and how long that took beside scikit-learn's own
`GridSearchCV` in one process, which must find the same accuracies. In interpreters, scikit-learn needs CPython 3.14.
"""

import argparse
import itertools
import sys
import time

from pool_party import ComposablePool, InitializerFailed, share

try:
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import GridSearchCV, ParameterGrid, StratifiedKFold
except ImportError:
    print("Skipped: this example needs scikit-learn (pip install scikit-learn)")
    sys.exit()

FULL_GRID = {"n_estimators": [25, 50, 100], "max_depth": [4, 8, None], "max_features": [4, 8, 16]}
QUICK_GRID = {"n_estimators": [5], "max_depth": [2, 4], "max_features": [4]}


def accuracy(images: np.ndarray, digits: np.ndarray, parameters: dict, train: np.ndarray, test: np.ndarray) -> float:
    """Fit a forest to the images of `train`, and return the share of those of `test` that it recognises."""
    forest = RandomForestClassifier(random_state=0, **parameters).fit(images[train], digits[train])
    return forest.score(images[test], digits[test])


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=("thread", "process", "interp"), default="process")
    parser.add_argument("--context", choices=("fork", "forkserver", "spawn"), help="how processes start")
    parser.add_argument("--quick", action="store_true", help="a small grid and few images")
    args = parser.parse_args()
    images, digits = load_digits(return_X_y=True)
    if args.quick:
        images, digits = images[:300], digits[:300]
    grid = QUICK_GRID if args.quick else FULL_GRID
    folds = StratifiedKFold(3)

    started_s = time.perf_counter()
    shared = share(images, readonly=True), share(digits, readonly=True)
    combinations = list(ParameterGrid(grid))
    splits = list(folds.split(images, digits))
    tasks = [(*shared, parameters, *split) for parameters, split in itertools.product(combinations, splits)]
    preload = ["sklearn.ensemble"]
    with ComposablePool(kind=args.kind, context=args.context, policy="dynamic", preload=preload) as pool:
        scores = np.reshape(pool.starmap(accuracy, tasks, chunksize=1), (len(combinations), len(splits)))
    pool_s = time.perf_counter() - started_s

    started_s = time.perf_counter()
    search = GridSearchCV(RandomForestClassifier(random_state=0), grid, cv=folds, refit=False).fit(images, digits)
    search_s = time.perf_counter() - started_s
    means, expected = scores.mean(axis=1), search.cv_results_["mean_test_score"]
    is_same = bool(np.allclose(means, expected)) and combinations[means.argmax()] == search.best_params_
    print(f"{len(tasks)} fits, workers of kind {args.kind!r}")
    print(f"best: {combinations[means.argmax()]}, accuracy {means.max():.4f}")
    print(f"GridSearchCV in one process: {search_s:.2f} s")
    print(f"pool, with its start:        {pool_s:.2f} s, {search_s / pool_s:.2f} times as fast")
    print(f"same accuracies and same choice: {'yes' if is_same else 'NO'}")
    return is_same


if __name__ == "__main__":
    try:
        sys.exit(not main())
    except InitializerFailed as error:  # scikit-learn does not load in these workers
        print(f"Skipped: {error.__cause__}")
