"""QR of one Dask array as a whole, then in two pieces, then in many."""

import sys

import dask.array as da

FLAVOUR, N_WORKERS, *SCALE = sys.argv[1:]

if __name__ == "__main__":
    n_rows = int(12_000 * float(*SCALE or [1])) // 16 * 16
    errors = []
    for n_pieces in (1, 2, 16):
        x = da.random.default_rng(1).random((n_rows, 400), chunks=(n_rows // n_pieces, 400))
        q, r = da.linalg.qr(x)
        errors.append(abs(q.dot(r) - x).max().compute(scheduler=FLAVOUR, num_workers=int(N_WORKERS)))
    print(f"three QRs of {n_rows} rows, each as good as 1e-9: {bool(max(errors) < 1e-9)}")
