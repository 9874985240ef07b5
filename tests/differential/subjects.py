"""The pools that are compared, and how their values, errors and effects are observed."""

import functools
import multiprocessing

import corpus
import effects
import errors

from pool_party import ComposablePool
from pool_party._workers.interp.extensions import IS_SUPPORTED

ORACLE = "multiprocessing"


def make(name):
    """Make a pool of one worker."""
    if name == ORACLE:
        return multiprocessing.get_context("spawn").Pool(1)
    if name == "spawn":
        return ComposablePool(1, kind="process", context=multiprocessing.get_context("spawn"))
    return ComposablePool(1, kind=name)


def by_values(pool, name):
    """Observe values, except for those whose types do not load in interpreters of this version of Python."""
    found = {}
    for key, make_value in corpus.values():
        value = make_value()
        is_foreign = type(value).__module__.split(".")[0] in ("numpy", "pandas")
        if IS_SUPPORTED or not is_foreign or name != "interp":
            found[key] = corpus.outcome(pool, value)
    return found


def by_errors(pool, name):
    found = {}
    for key in errors.NAMES:
        try:
            pool.apply_async(errors.fail, (key,)).get(60)
        except Exception as error:
            found[key] = errors.describe(error)
    return found


def by_effects(pool, name):
    return {function.__name__: effects.error_of(functools.partial(function, pool)) for function in effects.EFFECTS}


@functools.cache
def observe(name, look):
    """Return the findings of one of the functions above with this pool. The result is cached."""
    with make(name) as pool:
        return look(pool, name)


def differences(name, look):
    """Return the findings that differ from those with `multiprocessing.Pool`: both, by name."""
    theirs, ours = observe(ORACLE, look), observe(name, look)
    return {key: (theirs[key], ours[key]) for key in ours if ours[key] != theirs[key]}
