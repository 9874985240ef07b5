"""QR of a tall Dask array, as in the documentation of Dask."""

import sys

import dask.array as da

FLAVOUR, N_WORKERS, *SCALE = sys.argv[1:]

if __name__ == "__main__":
    n_rows = int(32_000 * float(*SCALE or [1])) // 8 * 8
    x = da.random.default_rng(1).random((n_rows, 400), chunks=(n_rows // 8, 400))
    q, r = da.linalg.qr(x)
    error = abs(q.dot(r) - x).max().compute(scheduler=FLAVOUR, num_workers=int(N_WORKERS))
    print(f"QR of {n_rows} rows, as good as 1e-9: {bool(error < 1e-9)}")
