"""The pools that are compared with `multiprocessing.Pool`."""

import multiprocessing

NAMES = ("process", "interp", "spawn")


def make(make_pool, name, n_workers=1):
    if name == "spawn":
        return make_pool(n_workers, kind="process", context=multiprocessing.get_context("spawn"))
    return make_pool(n_workers, kind=name)


def oracle():
    return multiprocessing.get_context("spawn").Pool(1)
