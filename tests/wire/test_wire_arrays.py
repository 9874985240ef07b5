"""Arrays arrive as with pickle, may be written to, and live as long as somebody refers to them."""

import pickle

import pytest
import tasks

from pool_party._workers.interp.extensions import IS_SUPPORTED

np = pytest.importorskip("numpy")
TYPES = "?bBhHiIlLqQefdFDgG"


@pytest.fixture
def array_pool(remote_kind, remote_pool):
    if remote_kind == "interp" and not IS_SUPPORTED:
        pytest.skip("NumPy loads in interpreters from 3.14 on")
    return remote_pool


def look(array):
    """Describe an array as the other side must have it."""
    flags = array.flags
    data = array.tolist() if array.dtype.hasobject else array.tobytes()
    return type(array), array.dtype, array.shape, flags.c_contiguous, flags.f_contiguous, data


def arrays():
    base = np.arange(20_000)
    cube = np.arange(60_000.0).reshape(30, 40, 50)
    yield from (base.astype(code) for code in TYPES)
    yield from (base.astype(">f8"), base.astype("M8[s]"), base.astype("S8"), base.astype([("a", "f8"), ("b", "i2")]))
    yield from (
        cube,
        cube.T,
        np.asfortranarray(cube[0:2].repeat(9, 0)),
        cube[:, 3:35],
        cube[::2, ::-1],
        cube.transpose(1, 0, 2),
    )
    yield from (
        np.broadcast_to(np.arange(300.0), (100, 300)),
        np.array(3.5),
        np.zeros((0, 5)),
        np.ones((4, 0)),
        base[:10],
    )
    yield np.ma.masked_array(base, base > 7)
    yield base.astype(object)


def test_arrays_of_every_type_and_layout(array_pool):
    for array in arrays():
        result = array_pool.apply(tasks.identity, (array,))
        assert look(result) == look(pickle.loads(pickle.dumps(array, 5))), array.dtype
        assert result.flags.writeable
        assert [look(r) for r in array_pool.map(tasks.identity, [array] * 2, 1)] == [look(result)] * 2


def test_read_only_arrays_stay_so(array_pool):
    array = np.arange(100_000.0)
    array.flags.writeable = False
    assert not array_pool.apply(tasks.identity, (array,)).flags.writeable


def test_an_array_that_occurs_twice_is_one_object(array_pool):
    array = np.arange(100_000.0)
    first, second = array_pool.apply(tasks.identity, ((array, array),))
    assert first is second
