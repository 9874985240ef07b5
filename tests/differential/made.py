"""Values made by hypothesis: nested containers of all scalar types and arrays, in which an object may occur twice."""

import collections
import datetime
import decimal
import zoneinfo

import corpus
import numpy
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

LARGE = 40_000  # bytes: such a value is sent beside the pickle

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-300, 300),
    st.integers(),
    st.sampled_from([2**31, 2**63 - 1, -(2**63), 2**63, 2**64, 10**400]),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters(codec=None)),
    st.binary(),
    st.binary().map(bytearray),
    st.fractions(),
    st.decimals(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.datetimes(timezones=st.sampled_from([None, datetime.UTC, zoneinfo.ZoneInfo("UTC")])),
    st.uuids(),
    st.slices(5),
    st.ip_addresses(),
    st.integers(0, 50).map(range),
    st.sampled_from([..., NotImplemented, int, len, corpus.Colour.RED, corpus.Flags.A, corpus.Point, decimal.Context]),
    st.sampled_from("t\u20ac\U0001f600").map(lambda char: char * LARGE),
    st.binary(max_size=3).map(lambda start: start + bytes(LARGE)),
)


def _is_hashable(value):
    try:
        hash(value)
    except TypeError:
        return False
    return True


HASHABLE = SCALARS.filter(_is_hashable)

DTYPES = st.one_of(
    hnp.scalar_dtypes(),
    hnp.array_dtypes(),
    hnp.nested_dtypes(),
    st.just(numpy.dtype(object)),
)


def _contents(dtype):
    return SCALARS if dtype.hasobject else None


@st.composite
def arrays(draw):
    """An array of any type and layout. Some are large enough to be sent beside the pickle."""
    dtype = draw(DTYPES)
    array = draw(
        hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5), elements=_contents(dtype))
    )
    if draw(st.booleans()) and 0 < array.nbytes:
        array = numpy.tile(array, max(1, draw(st.sampled_from([1, LARGE, 60 * LARGE])) // array.nbytes))
    for change in draw(st.lists(st.sampled_from(LAYOUTS), max_size=3)):
        array = change(array)
    return array


def _read_only(array):
    array = array[...]
    array.flags.writeable = False
    return array


LAYOUTS = (
    numpy.transpose,
    numpy.asfortranarray,
    lambda array: array[::2] if array.ndim else array,
    lambda array: array[..., ::-1] if array.ndim else array,
    lambda array: array[1:] if array.ndim else array,
    lambda array: array.reshape(-1),
    lambda array: numpy.broadcast_to(array, (2, *array.shape)) if array.nbytes < 1 << 20 else array,
    lambda array: array[numpy.newaxis],
    _read_only,
)

Pair = corpus.Pair
CONTAINERS = (
    lambda parts: parts,
    tuple,
    lambda parts: dict(enumerate(parts)),
    lambda parts: {str(i): part for i, part in enumerate(parts)},
    lambda parts: collections.OrderedDict(enumerate(parts)),
    lambda parts: collections.defaultdict(list, enumerate(parts)),
    collections.deque,
    lambda parts: Pair(parts[0], parts[1:]),
    lambda parts: corpus.Point(parts[0], parts),
    corpus.Listy,
    lambda parts: [parts, parts],
)


@st.composite
def values(draw):
    """Nested containers, several of which may hold the same object."""
    made = draw(st.lists(st.one_of(SCALARS, arrays()), min_size=1, max_size=4))
    made.append(draw(st.frozensets(HASHABLE, max_size=3)))
    made.append(draw(st.dictionaries(HASHABLE, SCALARS, max_size=3)))
    for _ in range(draw(st.integers(0, 5))):
        parts = draw(st.lists(st.sampled_from(range(len(made))), min_size=1, max_size=4))
        made.append(draw(st.sampled_from(CONTAINERS))([made[part] for part in parts]))
    return draw(st.sampled_from([made[-1], made[-2:], tuple(made)]))
