"""Apply a function to the groups of a pandas table that all workers share.

    python examples/group_apply.py [--kind KIND] [--context METHOD] [--quick]

A table of measurements of many sensors is sorted by sensor, so that each group is a range of rows. Its columns lie in
memory that `share` made: a part of a column travels as a handle of some bytes, whatever its size, and workers read it
in place.

It prints how long `groupby.apply` took in one process and how long the pool took, the first rows of the result, and
whether both results are equal. In interpreters, pandas needs CPython 3.14.
"""

import argparse
import sys
import time

from pool_party import ComposablePool, InitializerFailed, share

try:
    import numpy as np
    import pandas as pd
except ImportError:
    print("Skipped: this example needs pandas (pip install pandas)")
    sys.exit()


def make_table(n_sensors: int, n_rows: int) -> pd.DataFrame:
    """Return random walks, with some values missing, in groups of different sizes."""
    random = np.random.default_rng(2026)
    values = random.standard_normal(n_rows).cumsum()
    values[random.random(n_rows) < 0.01] = np.nan
    hours = pd.Series(random.integers(0, 24, n_rows))
    return pd.DataFrame({"sensor": np.sort(random.integers(0, n_sensors, n_rows)), "hour": hours, "value": values})


def describe(group: pd.DataFrame) -> pd.Series:
    """Return the trend of a sensor, its roughness, and the hour of the day in which it is highest."""
    values = group["value"].interpolate(limit_direction="both")
    smooth = values.ewm(span=20).mean()
    highest = values.groupby(group["hour"]).median().idxmax()
    return pd.Series({"trend": smooth.iloc[-1] - smooth.iloc[0], "rough": (values - smooth).std(), "highest": highest})


def describe_part(hours: np.ndarray, values: np.ndarray) -> pd.Series:
    """Make a table of a sensor's part of the shared columns, without a copy, and describe it."""
    return describe(pd.DataFrame({"hour": hours, "value": values}, copy=False))


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=("thread", "process", "interp"), default="process")
    parser.add_argument("--context", choices=("fork", "forkserver", "spawn"), help="how processes start")
    parser.add_argument("--quick", action="store_true", help="a small table")
    args = parser.parse_args()
    table = make_table(*((20, 2_000) if args.quick else (8_000, 2_000_000)))

    started_s = time.perf_counter()
    sensors, starts = np.unique(table["sensor"], return_index=True)
    hours, values = (share(table[name].to_numpy(), readonly=True) for name in ("hour", "value"))
    parts = [(hours[a:b], values[a:b]) for a, b in zip(starts, [*starts[1:], len(table)], strict=True)]
    with ComposablePool(kind=args.kind, context=args.context, preload=["pandas"]) as pool:
        result = pd.DataFrame(pool.starmap(describe_part, parts), index=pd.Index(sensors, name="sensor"))
    pool_s, started_s = time.perf_counter() - started_s, time.perf_counter()
    expected = table.groupby("sensor")[["hour", "value"]].apply(describe)
    loop_s = time.perf_counter() - started_s
    is_same = result.index.equals(expected.index) and np.allclose(result, expected, rtol=1e-12)
    print(f"{len(table)} rows of {len(sensors)} sensors, workers of kind {args.kind!r}")
    print(result.head(3).to_string())
    print(f"groupby.apply:        {loop_s:.2f} s")
    print(f"pool, with its start: {pool_s:.2f} s, {loop_s / pool_s:.2f} times as fast")
    print(f"same as groupby.apply: {'yes' if is_same else 'NO'}")
    return is_same


if __name__ == "__main__":
    try:
        sys.exit(not main())
    except InitializerFailed as error:  # pandas does not load in these workers
        print(f"Skipped: {error.__cause__}")
