"""A script without a main guard whose globals change between calls of joblib, as loky allows.

`python joblib_values.py kind context`, or under the runner without arguments, where joblib's own backend is ours.
"""

import sys

from joblib import Parallel, delayed, parallel_config

MISSING = object()
threshold = 0
grown = []


class Point:
    def __init__(self, x):
        self.x = x


class Refused(Exception):
    pass


def shift(x):
    return Point(x + threshold + len(grown))


def make_scale():
    return lambda x: x * threshold


def is_missing(x, other=MISSING):
    return x is MISSING and other is MISSING


def refuse(x):
    raise Refused(x)


def run(**options):
    global threshold
    for threshold in 10, 20, 30:
        grown.append(threshold)
        points = Parallel(n_jobs=2, **options)(delayed(shift)(x) for x in range(6))
        assert all(type(point) is Point for point in points), "instances are of the program's class"
        assert [point.x - threshold - len(grown) for point in points] == [*range(6)], (threshold, points)
        scaled = Parallel(n_jobs=2, **options)(delayed(make_scale())(x) for x in range(3))
        assert scaled == [0, threshold, 2 * threshold]
    assert Parallel(n_jobs=2, **options)(delayed(is_missing)(x) for x in [MISSING] * 4) == [True] * 4
    moved = Parallel(n_jobs=2, **options)(delayed(type)(point) for point in points)
    assert moved == [Point] * 6
    try:
        Parallel(n_jobs=2, **options)(delayed(refuse)(x) for x in range(3))
    except Refused:
        pass
    else:
        raise AssertionError("nothing was raised")


print("the script runs once")
if len(sys.argv) > 1:
    import pool_party

    pool_party.register_joblib_backend()
    kind, context = sys.argv[1:]
    with parallel_config(backend="pool_party", kind=kind, **({"context": context} if context != "-" else {})):
        run()
        run(batch_size=1)
else:
    run()
print("ok")
