"""Price an option by simulation, with the same result to the last bit whatever the number of workers.

    python examples/monte_carlo.py [--kind KIND] [--context METHOD] [--quick]

The work is cut into batches, and `SeedSequence.spawn` gives each batch a seed of its own. The seed goes with the
task, not with the worker: which worker runs a batch, and when, then changes nothing. `map` returns results in the
order of the batches, so that the sum is rounded in the same way each time, too.

It prints the price for 1, 2 and 3 workers, which must be equal, beside the exact price by the formula of Black and
Scholes. In interpreters, NumPy needs CPython 3.14.
"""

import argparse
import math
import sys
import time
from statistics import NormalDist

from pool_party import ComposablePool, InitializerFailed

try:
    import numpy as np
except ImportError:
    print("Skipped: this example needs NumPy (pip install numpy)")
    sys.exit()

START, STRIKE, RATE, VOLATILITY, YEARS = 100.0, 105.0, 0.03, 0.25, 1.0


def simulate(seed: np.random.SeedSequence, n_paths: int) -> tuple[float, float]:
    """Return the sums of a call option's discounted payoffs, and of their squares, over `n_paths` random futures."""
    shocks = np.random.default_rng(seed).standard_normal(n_paths)
    ends = START * np.exp((RATE - VOLATILITY**2 / 2) * YEARS + VOLATILITY * math.sqrt(YEARS) * shocks)
    payoffs = math.exp(-RATE * YEARS) * np.maximum(ends - STRIKE, 0.0)
    return float(payoffs.sum()), float((payoffs**2).sum())


def price(n_workers: int, n_batches: int, n_paths: int, args: argparse.Namespace) -> tuple[float, float]:
    """Return the option's price and the standard error of that."""
    seeds = np.random.SeedSequence(2026).spawn(n_batches)
    with ComposablePool(n_workers, kind=args.kind, context=args.context, preload=["numpy"]) as pool:
        sums = pool.starmap(simulate, [(seed, n_paths) for seed in seeds], chunksize=1)
    n, total, squares = n_batches * n_paths, sum(s for s, _ in sums), sum(q for _, q in sums)
    return total / n, math.sqrt((squares / n - (total / n) ** 2) / n)


def exact_price() -> float:
    """Return the price by the formula of Black and Scholes."""
    spread = VOLATILITY * math.sqrt(YEARS)
    d = (math.log(START / STRIKE) + (RATE + VOLATILITY**2 / 2) * YEARS) / spread
    normal = NormalDist()
    return START * normal.cdf(d) - STRIKE * math.exp(-RATE * YEARS) * normal.cdf(d - spread)


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=("thread", "process", "interp"), default="process")
    parser.add_argument("--context", choices=("fork", "forkserver", "spawn"), help="how processes start")
    parser.add_argument("--quick", action="store_true", help="few batches")
    args = parser.parse_args()
    n_batches, n_paths = (10, 1_000) if args.quick else (200, 500_000)
    results, error = set(), 0.0
    for n_workers in (1, 2, 3):
        started_s = time.perf_counter()
        result, error = price(n_workers, n_batches, n_paths, args)
        results.add(result)
        print(f"workers: {n_workers}, price: {result!r} +- {error:.4f}, {time.perf_counter() - started_s:.2f} s")
    exact = exact_price()
    is_near = all(abs(result - exact) < 5 * error for result in results)
    print(f"exact price: {exact:.4f}, within five standard errors: {'yes' if is_near else 'NO'}")
    print(f"same to the last bit with any number of workers: {'yes' if len(results) == 1 else 'NO'}")
    return is_near and len(results) == 1


if __name__ == "__main__":
    try:
        sys.exit(not main())
    except InitializerFailed as error:  # NumPy does not load in these workers
        print(f"Skipped: {error.__cause__}")
