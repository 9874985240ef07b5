"""Singular values of a tall Dask array."""

import sys

import dask.array as da

FLAVOUR, N_WORKERS, *SCALE = sys.argv[1:]

if __name__ == "__main__":
    n_rows = int(32_000 * float(*SCALE or [1])) // 8 * 8
    x = da.random.default_rng(1).random((n_rows, 400), chunks=(n_rows // 8, 400))
    _, s, _ = da.linalg.svd(x)
    values = s.compute(scheduler=FLAVOUR, num_workers=int(N_WORKERS))
    print(f"singular values from {values[-1]:.4f} to {values[0]:.4f}")
