"""Tasks on NumPy arrays, and a subclass of ndarray, for tests in several kinds of workers."""

import importlib
import importlib.resources
import random
import warnings
from pickle import PickleBuffer

import numpy as np
import tasks


class Tagged(np.ndarray):
    """An array with a name, which views and pickles keep."""

    def __new__(cls, values, tag=None):
        self = np.asarray(values).view(cls)
        self.tag = tag
        return self

    def __array_finalize__(self, other):
        self.tag = getattr(other, "tag", None)

    def __reduce__(self):
        function, args, state = super().__reduce__()
        return function, args, (state, self.tag)

    def __setstate__(self, state):
        super().__setstate__(state[0])
        self.tag = state[1]


class Counted(np.ndarray):
    """An array that counts the ufuncs that were applied to it."""

    n_ufuncs = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        plain = [x.view(np.ndarray) if isinstance(x, Counted) else x for x in inputs]
        result = np.asarray(getattr(ufunc, method)(*plain, **kwargs)).view(Counted)
        result.n_ufuncs = self.n_ufuncs + 1
        return result

    def __reduce__(self):
        return _counted, (self.view(np.ndarray).copy(), self.n_ufuncs)


def _counted(array, n_ufuncs):
    result = array.view(Counted)
    result.n_ufuncs = n_ufuncs
    return result


class Meters:
    """Not an array, but an object that NumPy's functions accept as one."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __array_function__(self, function, types, args, kwargs):
        return Meters(function(*[getattr(arg, "values", arg) for arg in args], **kwargs))


def same(value):
    return value


def check(array):
    """Return the array itself, after checking that its types are this interpreter's own."""
    assert isinstance(array, np.ndarray)
    assert isinstance(array.dtype, np.dtype)
    if array.dtype.kind != "T":
        own = np.dtype(array.dtype.descr if array.dtype.names else array.dtype.str)
        assert own == array.dtype and type(own) is type(array.dtype)
    return array


_held = []


def address_of(array):
    return array.__array_interface__["data"][0]


def return_and_note(array):
    """Return the array, or a new one of a given size, and note where it lies."""
    if isinstance(array, int):
        array = np.arange(float(array))
    _held[:] = [address_of(array)]
    return array


def return_and_hold(array, what):
    """Return the array although this worker still has it, or its memory, and note it."""
    if isinstance(array, int):
        array = np.arange(float(array))
    _held[:] = [array if what == "array" else array[:10] if what == "part" else memoryview(array)]
    return array


def held():
    """Return the beginning of what was noted, or the address."""
    return _held[0] if isinstance(_held[0], int) else np.asarray(_held[0])[:10].tolist()


def double(array):
    return array * 2


def compute(seed):
    """Linear algebra, transforms and sums, which give the same results wherever they run."""
    a = np.random.default_rng(seed).standard_normal((60, 60))
    values = np.linalg.eigvalsh(a @ a.T)
    return values, np.linalg.solve(a, a[:, 0]), np.fft.rfft(a).real, np.sort(a, axis=None), np.add.reduce(a)


def draw(_=None):
    """Numbers from unseeded generators: NumPy's new and old ones, and Python's."""
    return float(np.random.default_rng().random()), float(np.random.random()), random.random()


def draw_legacy(path):
    """Some numbers of NumPy's global generator, drawn when other workers are at the gate as well."""
    tasks.pass_gate(path)
    return np.random.random(4).tolist()


def seed_and_set(value):
    """An initializer that seeds the global generator."""
    np.random.seed(value)


def legacy_random(_=None):
    return float(np.random.random())


def use(generator):
    """Numbers drawn from a generator that was sent."""
    return generator.random(3).tolist()


def spawned(sequence):
    return use(np.random.default_rng(sequence))


def divide(state):
    with np.errstate(all=state):
        return np.ones(2) / np.zeros(2)


def overflow():
    """An integer that is too large, which raises, and a sum that overflows, which warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return np.float64(1e308) * 10


def warnings_of_a_division():
    """The recorded warnings, and whether recording is over."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        np.ones(1) / np.zeros(1)
    return [(warning.category, str(warning.message)) for warning in caught]


def call_back(value):
    """Check that np.errstate's callback is called in the worker."""
    seen = []
    with np.errstate(all="call", call=lambda kind, flags: seen.append(kind)):
        np.ones(1) / np.array([value])
    return seen


def raise_axis_error():
    np.zeros(3).sum(axis=2)


def raise_promotion_error():
    np.result_type(np.dtype("M8[s]"), np.complex128)


def raise_ufunc_error():
    np.add(np.array(["a"], object), np.array([1], object) * 1, dtype="M8[s]")


def raise_no_loop():
    np.sqrt("no number")


def raise_linalg_error():
    np.linalg.inv(np.zeros((2, 2)))


def payload_sizes(array):
    """Bytes of this worker's pickle of an array, and of the buffers sent beside it."""
    from pool_party import _native

    pickle, buffers = _native.Channel(1).encode(array)
    return len(pickle), sum(PickleBuffer(buffer).raw().nbytes for buffer in buffers)


def describe(value):
    """An array's memory layout and the origin of its types, as seen where this runs."""
    own = type(value) in (np.ndarray, np.ma.MaskedArray, np.matrix, np.recarray, np.memmap)
    return own, value.shape, value.flags.writeable, value.flags.c_contiguous, value.flags.f_contiguous


def negate_in_place(array):
    """Return the array's sum, and then negate the array in place."""
    total = float(array.sum())
    np.negative(array, out=array)
    return total, float(array.sum())


def summarize(frame):
    """Means by group, computed from a pandas table, and the table's types."""
    return frame.groupby("key", observed=True).mean(numeric_only=True)


def same_frame(frame):
    import pandas as pd

    assert isinstance(frame, pd.DataFrame) and isinstance(frame.index, pd.Index)
    return frame


def raise_on_all_errors():
    np.seterr(all="raise")
    return np.geterr()


def fill(path, shape):
    array = np.memmap(path, float, "r+", shape=shape)
    array[:] = np.arange(array.size).reshape(shape)
    array.flush()


def callables():
    """Functions and types that are pickled by reference."""
    return [np.add, np.sum, np.linalg.norm, np.fft.fft, np.random.default_rng, np.float64, np.ma.masked_array, np.dtype]


def private_modules():
    """What modules that were loaded from copies report of themselves."""
    names = ("numpy._core._multiarray_umath", "numpy.linalg._umath_linalg", "numpy.random.mtrand")
    modules = [importlib.import_module(name) for name in names]
    return [
        (m.__name__, m.__package__, m.__file__, m.__spec__.name, m.__spec__.origin, m.__loader__ is m.__spec__.loader)
        for m in modules
    ]


def has_resource():
    return importlib.resources.files("numpy").joinpath("__init__.py").is_file()


def reload(name):
    importlib.reload(importlib.import_module(name))


def set_to(number, array):
    """Set all of the array to a number, and return it."""
    array[...] = number
    return array
