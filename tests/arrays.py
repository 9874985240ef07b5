"""Tasks on NumPy arrays, and a subclass of ndarray, for tests in several kinds of workers."""

import importlib
import importlib.resources

import numpy as np


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


def check(array):
    """The array itself, once its types are found to be this interpreter's own."""
    assert isinstance(array, np.ndarray)
    own = np.dtype(array.dtype.descr if array.dtype.names else array.dtype.str)
    assert own == array.dtype and type(own) is type(array.dtype)
    return array


def double(array):
    return array * 2


def compute(seed):
    """Linear algebra, transforms and sums that are the same wherever they run."""
    a = np.random.default_rng(seed).standard_normal((60, 60))
    values = np.linalg.eigvalsh(a @ a.T)
    return values, np.linalg.solve(a, a[:, 0]), np.fft.rfft(a).real, np.sort(a, axis=None), np.add.reduce(a)


def draw(_):
    """Numbers from generators that nobody has seeded."""
    return float(np.random.default_rng().random()), float(np.random.random())


def divide(state):
    with np.errstate(all=state):
        return np.ones(2) / np.zeros(2)


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
    """What modules say of themselves that were loaded from copies."""
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
