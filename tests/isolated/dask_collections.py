"""Dask's collections computed by a pool: `python dask_collections.py KIND [START-METHOD]`.

What they return is compared with what Dask's single-threaded scheduler returns for the same collection.
"""

import sys

import dask
import dask.array
import dask.bag
import numpy

from pool_party import ComposableExecutor, ComposablePool

SINGLE = {"scheduler": "synchronous"}
RANDOM = numpy.random.default_rng(7)


def factors():
    matrix = dask.array.from_array(RANDOM.random((400, 20)), (100, 20))
    return [*dask.array.linalg.qr(matrix), *dask.array.linalg.svd(matrix)]


def words():
    # Through files, Dask says on stderr now and then that one was there already, over its own processes, too.
    all_words = [f"word {n % 23}" for n in range(230)]
    return [
        dask.bag.from_sequence(all_words, npartitions=7)
        .groupby(str, shuffle="tasks")
        .map(lambda group: (group[0], len(group[1])))
    ]


def same(a, b):
    return sorted(a) == sorted(b) if isinstance(a, list) else numpy.allclose(a, b)


def check(make, **how):
    collections = make()
    for value, expected in zip(dask.compute(*collections, **how), dask.compute(*collections, **SINGLE), strict=True):
        assert same(value, expected), (how, value, expected)


def main(kind, context=None):
    with ComposablePool(2, kind=kind, context=context) as pool:
        for make in (factors, words):
            check(make, scheduler="threads", pool=pool)
        check(words, scheduler="processes", pool=pool)
    with ComposableExecutor(2, kind=kind, context=context) as executor:
        for make in (factors, words):
            check(make, scheduler=executor)


if __name__ == "__main__":
    main(*sys.argv[1:])
