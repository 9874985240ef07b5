"""Cross-validation of forests, then of boosted trees, which use OpenMP inside."""

import sys

import joblib
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.model_selection import cross_val_score

FLAVOUR, N_WORKERS, *SCALE = sys.argv[1:]

if __name__ == "__main__":
    n_samples = int(2500 * float(*SCALE or [1]))
    x, y = make_classification(n_samples, random_state=0)
    n_jobs = int(N_WORKERS)
    with joblib.parallel_config({"processes": "loky", "threads": "threading"}[FLAVOUR], n_jobs=n_jobs):
        forest = cross_val_score(RandomForestClassifier(40, random_state=0), x, y, cv=8)
        trees = cross_val_score(HistGradientBoostingClassifier(max_iter=40, random_state=0), x, y, cv=8)
    print(f"forests {forest.mean():.4f}, boosted trees {trees.mean():.4f}")
