"""Copies and packing give the same results as NumPy, with and without helpers."""

import random
import threading

import pytest

from pool_party import _native

np = pytest.importorskip("numpy")
TYPES = ("u1", "i2", "f4", "f8", "c16", "i1")


def draw_array(rng):
    """A random mixture of axes, strides, directions and repeats."""
    shape = [rng.choice((1, 2, 3, 5, 17, 33)) for _ in range(rng.randrange(1, 5))]
    array = np.frombuffer(rng.randbytes(int(np.prod(shape)) * 16), rng.choice(TYPES))[: np.prod(shape)].reshape(shape)
    array = array.transpose(rng.sample(range(len(shape)), len(shape)))
    steps = [slice(rng.choice((None, 0, 1)), None, rng.choice((1, 1, 2, -1, -2))) for _ in shape]
    array = array[tuple(steps)]
    return np.broadcast_to(array, (3, *array.shape)) if rng.random() < 0.1 else array


@pytest.mark.parametrize("n_helpers", [-1, 0, 1, 3])
def test_any_layout_is_packed_in_c_order(n_helpers):
    rng = random.Random(n_helpers)
    for _ in range(300):
        array = draw_array(rng)
        target = np.empty(array.shape, array.dtype)
        _native.copy(target, array, n_helpers)
        assert target.tobytes() == array.tobytes(), (array.shape, array.strides, array.dtype)


@pytest.mark.parametrize("n_helpers", [-1, 0, 1, 3])
def test_large_layouts(n_helpers):
    cube = np.arange(70 * 130 * 110.0).reshape(70, 130, 110)
    for array in (
        cube,
        cube[:, 3],
        cube[:, ::2, ::2],
        cube.T,
        cube.transpose(1, 0, 2),
        cube[5:60, 7:100].T,
        cube[::-1],
    ):
        target = np.empty(array.shape)
        _native.copy(target, array, n_helpers)
        assert (target == array).all()


@pytest.mark.parametrize("shift", [0, 1, 15, 16, 63])
def test_large_copies_from_and_to_any_address(shift):
    size = (24 << 20) + 100 + shift
    source = np.arange(size + shift, dtype=np.uint16).astype(np.uint8)[shift:]
    target = np.zeros(size + 77, np.uint8)
    _native.copy(target[77 - shift : size + 77 - shift], source, 1)
    assert (target[77 - shift : size + 77 - shift] == source).all()
    assert not target[: 77 - shift].any() and not target[size + 77 - shift :].any()


@pytest.mark.parametrize("n_helpers", [0, 1])
def test_large_arrays_of_long_runs(n_helpers):
    source = np.arange(4_300 * 2 * 6_001, dtype=np.uint16).astype(np.uint8).reshape(4_300, 2, 6_001)[:, 1]
    target = np.zeros(source.shape, np.uint8)
    _native.copy(target, source, n_helpers)
    assert (target == source).all()


def test_copies_at_the_same_time():
    source = np.arange(400_000.0)[::2]
    wrong = []

    def copy():
        target = np.empty(source.shape)
        for _ in range(20):
            target[:] = 0
            _native.copy(target, source, 2)
            if not (target == source).all():
                wrong.append(target)

    threads = [threading.Thread(target=copy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "source",
    [
        np.ones(1 << 20),
        np.ones((512, 2, 256))[:, 1],
        np.ones(1 << 20)[::2],
        np.ones((256, 8, 256))[:, 1:3, ::2],
        np.ones((512, 1024))[:, :512].T,
    ],
    ids=["contiguous", "runs", "items", "rows", "transposed"],
)
def test_helpers_take_part(source):
    """Helpers do some pieces of many copies, whenever the system lets them run."""
    before, target = _native.n_helped(), np.empty(source.shape)
    for _ in range(2000):
        _native.copy(target, source, 1)
        if _native.n_helped() > before:
            return
    pytest.fail("no helper came")


def test_sizes_must_agree():
    with pytest.raises(ValueError, match="target has 8 bytes, source has 16"):
        _native.copy(bytearray(8), bytes(16))
    with pytest.raises(BufferError):
        _native.copy(bytes(8), bytes(8))
