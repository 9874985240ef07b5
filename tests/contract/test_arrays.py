"""NumPy's arrays and related values, and pandas' tables, in every kind of worker: they behave as in a process pool."""

import contextlib
import gc
import importlib
import importlib.util
import pickle
import warnings

import pytest

from pool_party._workers.interp.extensions import IS_SUPPORTED
from pool_party._workers.process import _reseed

np = pytest.importorskip("numpy")

import arrays  # noqa: E402  (it needs NumPy)
import fresh  # noqa: E402

TIMEOUT_S = 60
needs_interpreters = pytest.mark.skipif(not IS_SUPPORTED, reason="needs CPython 3.14 with a GIL")
needs_pandas = pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")


@pytest.fixture
def kind(kind):
    """The kinds in which NumPy loads on this Python."""
    if kind == "interp" and not IS_SUPPORTED:
        pytest.skip("needs CPython 3.14 with a GIL")
    return kind


@pytest.fixture
def remote_kind(remote_kind):
    if remote_kind == "interp" and not IS_SUPPORTED:
        pytest.skip("needs CPython 3.14 with a GIL")
    return remote_kind


# ---- there and back ----

ARRAYS = {
    "float": np.arange(24.0).reshape(2, 3, 4),
    "large": np.arange(300_000.0),
    "several_mb": np.arange(1_000_000.0).reshape(1000, 1000),
    "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "large_fortran": np.asfortranarray(np.arange(120_000.0).reshape(300, 400)),
    "strided": np.arange(24.0)[::3],
    "large_strided": np.arange(240_000.0).reshape(600, 400)[::2, ::-3],
    "transposed": np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
    "broadcast": np.broadcast_to(np.arange(5), (1000, 5)),
    "empty": np.empty((0, 3)),
    "scalar": np.array(3.5),
    "bool": np.array([True, False]),
    "half": np.array([1.5, np.inf, -0.0], "f2"),
    "long_double": np.array([np.finfo(np.longdouble).max, 1]),
    "complex": np.array([1j, 2 + 3j]),
    "other_order": np.arange(5, dtype=np.dtype("i4").newbyteorder()),
    "bytes": np.array([b"a", b"bc"]),
    "text": np.array(["a", "grün"]),
    "void": np.frombuffer(b"abcdefgh", "V4"),
    "days": np.array(["2026-01-01", "NaT"], "datetime64[D]"),
    "times": np.arange(60_000).astype("datetime64[ns]"),
    "spans": np.array([1, "NaT"], "timedelta64[25s]"),
    "structured": np.array([(1, 2.5, "x")], [("a", "i4"), ("b", "f8"), ("c", "U3")]),
    "nested": np.zeros(3, [("a", [("x", "f4"), ("y", "i2", (2, 2))]), ("b", "S3")]),
    "object": np.array([{"a": 1}, None, (1, 2)], object),
    "strings": np.array(["short", "a string of more than a few bytes" * 3], np.dtypes.StringDType()),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_have_the_types_of_where_they_are(pool, name):
    array = ARRAYS[name]
    there = pool.apply(arrays.check, (array,))
    assert type(there) is np.ndarray and type(there.dtype) is type(array.dtype) and there.dtype == array.dtype
    np.testing.assert_array_equal(there, array)


@pytest.mark.parametrize("name", ["float", "large", "fortran", "large_fortran", "large_strided", "broadcast", "empty"])
def test_arrays_lie_in_memory_as_pickle_leaves_them(remote_kind, remote_pool, name):
    expected = pickle.loads(pickle.dumps(ARRAYS[name], 5))
    assert remote_pool.apply(arrays.describe, (ARRAYS[name],)) == arrays.describe(expected)
    assert arrays.describe(remote_pool.apply(arrays.same, (ARRAYS[name],))) == arrays.describe(expected)


def test_data_are_not_pickled(remote_pool):
    for array in (ARRAYS["large"], ARRAYS["large_fortran"], np.zeros(9_000, ARRAYS["nested"].dtype)):
        n_pickled, n_beside = remote_pool.apply(arrays.payload_sizes, (array,))  # as a result, in the worker
        assert n_pickled < 1000 and n_beside == array.nbytes
        n_pickled, n_beside = arrays.payload_sizes(array)  # as an argument, here
        assert n_pickled < 1000 and n_beside == array.nbytes


def test_workers_write_to_arrays_of_their_own(remote_pool):
    for n in (100, 100_000):
        array = np.ones(n)
        assert remote_pool.map(arrays.negate_in_place, [array] * 6, 1) == [(n, -n)] * 6
        assert array.sum() == n


def test_results_may_be_written_to_and_stay(pool):
    results = pool.map(arrays.double, [np.full(100_000, n) for n in range(6)], 1)
    results[0] += 1
    for n, result in enumerate(results):
        assert (result == 2 * n + (n == 0)).all()


def mapping_at(address):
    """What lies in the mapping of this process around an address: a file's name, or nothing."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if start <= address < end:
                return "".join(line.split(maxsplit=5)[5:])
    raise AssertionError(f"nothing is mapped at {address:#x}")


SEVERAL_MB, FRESH = 600_000, 5_000_000  # numbers in an array: 5 MB, which come from a heap; 40 MB, which malloc maps


@needs_interpreters
def test_received_memory_goes_back_as_it_is(make_pool):
    pool = make_pool(1, kind="interp")
    array = np.arange(float(SEVERAL_MB)).reshape(2, -1, order="F")
    for _ in range(3):
        there = pool.apply(arrays.return_and_note, (array,))
        assert arrays.address_of(there) == pool.apply(arrays.held) != arrays.address_of(array)
        assert there.flags.f_contiguous and there.flags.writeable
        np.testing.assert_array_equal(there, array)
        there[:] = 0
    half = pool.apply(arrays.return_and_note, (array[:, :200_000],))
    assert arrays.address_of(half) == pool.apply(arrays.held)
    pool.close()
    pool.join(timeout=TIMEOUT_S)
    there[:], half[:] = 1, 2
    assert (there == 1).all() and (half == 2).all()
    assert array[1, 0] == 1


@needs_interpreters
def test_large_memory_of_a_result_is_moved(make_pool):
    pool = make_pool(1, kind="interp", maxtasksperchild=2)
    results = []
    for n in (FRESH, FRESH + 1, FRESH + 77):
        results.append(pool.apply(arrays.return_and_note, (n,)))
        assert arrays.address_of(results[-1]) != pool.apply(arrays.held)
        for end in (0, -1):
            assert not mapping_at(arrays.address_of(results[-1][end:])), "it has no pages of its own"
    pool.close()
    pool.join(timeout=TIMEOUT_S)
    for there, n in zip(results, (FRESH, FRESH + 1, FRESH + 77), strict=True):
        np.testing.assert_array_equal(there, np.arange(float(n)))
        there += 1
        assert there[0] == 1 and there[-1] == n


@needs_interpreters
def test_large_memory_that_cannot_be_moved_is_copied(refusing_library):
    program = [fresh.TESTS / "isolated" / "arrays_refused.py", "copy"]
    process = fresh.start(program, extra={"LD_PRELOAD": str(refusing_library)})
    fresh.check(fresh.finish(process), "ok")


@pytest.mark.parametrize("what", ["array", "part", "memoryview"])
@pytest.mark.parametrize("n", [SEVERAL_MB, FRESH])
def test_what_a_worker_still_has_is_copied(make_pool, remote_kind, n, what):
    pool = make_pool(1, kind=remote_kind)
    for value in (n, np.arange(float(n))):
        there = pool.apply(arrays.return_and_hold, (value, what))
        there[:] = -1
        assert pool.apply(arrays.held) == list(range(10))


def test_memory_on_its_way_is_freed_with_the_pool(make_pool, remote_kind):
    array = np.arange(float(SEVERAL_MB))

    def count_mappings():
        gc.collect()
        with open("/proc/self/maps") as maps:
            return sum("pool_party" in line for line in maps)

    before = count_mappings()
    for _ in range(5):
        pool = make_pool(2, kind=remote_kind)
        for value in (FRESH, array, FRESH, array):
            pool.apply_async(arrays.return_and_note, (value,))
        pool.terminate()
        pool.join(timeout=TIMEOUT_S)
    del pool
    assert count_mappings() <= before


def test_arrays_inside_other_values(pool):
    value = {"a": [ARRAYS["large"], (ARRAYS["text"], 1)], "b": ARRAYS["object"]}
    there = pool.apply(arrays.same, (value,))
    np.testing.assert_array_equal(there["a"][0], value["a"][0])
    np.testing.assert_array_equal(there["a"][1][0], value["a"][1][0])
    assert there["b"][0] == {"a": 1}


def test_an_array_that_is_sent_twice_is_one_array(pool):
    array = np.arange(50_000.0)
    one, other, view = pool.apply(arrays.same, ((array, array, array[:10]),))
    assert one is other and view.tolist() == array[:10].tolist()


def test_arrays_of_arrays(pool):
    array = np.empty(2, object)
    array[0], array[1] = np.arange(3), np.array(["x"])
    there = pool.apply(arrays.same, (array,))
    assert there.dtype == object and there[0].tolist() == [0, 1, 2] and type(there[1]) is np.ndarray


SCALARS = [
    np.float64(1.5),
    np.float16(2),
    np.int8(-3),
    np.bool_(True),
    np.complex64(1j),
    np.str_("grün"),
    np.bytes_(b"x"),
]
SCALARS += [np.datetime64("2026-11-20T19:50"), np.timedelta64(3, "h"), np.longdouble(1) / 3, ARRAYS["structured"][0]]


def test_scalars(pool):
    for scalar in SCALARS:
        there = pool.apply(arrays.same, (scalar,))
        assert type(there) is type(scalar) and there == scalar and there.dtype == scalar.dtype
    assert [type(x) for x in pool.map(np.sqrt, [4.0, 9.0])] == [np.float64] * 2


def test_types_and_functions_are_those_of_where_they_are(pool):
    for here, there in zip(arrays.callables(), pool.apply(arrays.callables), strict=True):
        assert here is there
    for value in (np.dtype("f8"), np.newaxis, np.float32, np.dtypes.StringDType(), np.s_[1:2, ...]):
        assert pool.apply(arrays.same, (value,)) == value


# ---- kinds of arrays ----


def test_masked_arrays(pool):
    masked = np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False], fill_value=-1)
    there = pool.apply(arrays.double, (masked,))
    assert isinstance(there, np.ma.MaskedArray) and there.tolist() == [2.0, None, 6.0] and there.fill_value == -1
    assert pool.apply(arrays.same, (np.ma.masked,)) is np.ma.masked
    large = np.ma.masked_greater(np.arange(100_000), 50_000)
    assert pool.apply(arrays.same, (large,)).sum() == large.sum()


def test_matrices_and_records(pool):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        matrix = np.asmatrix(np.eye(2) * 2)
    there = pool.apply(arrays.same, (matrix,))
    assert type(there) is np.matrix and there.tolist() == [[2, 0], [0, 2]]
    records = np.rec.array([(1, "a"), (2, "b")], dtype=[("n", "i8"), ("s", "U1")])
    there = pool.apply(arrays.same, (records,))
    assert type(there) is np.recarray and there.s.tolist() == ["a", "b"] and there[1].n == 2


def test_subclasses(pool):
    there = pool.apply(arrays.double, (arrays.Tagged([1, 2], "mine"),))
    assert type(there) is arrays.Tagged and there.tag == "mine" and there.tolist() == [2, 4]
    large = pool.apply(arrays.double, (arrays.Tagged(np.ones(100_000), "large"),))
    assert large.tag == "large" and large.sum() == 200_000


def test_subclasses_with_ufuncs_of_their_own(pool):
    counted = np.arange(3).view(arrays.Counted)
    there = pool.apply(arrays.double, (counted + 1,))
    assert type(there) is arrays.Counted and there.n_ufuncs == 2 and there.tolist() == [2, 4, 6]


def test_what_numpy_takes_for_an_array(pool):
    there = pool.apply(np.cumsum, (arrays.Meters([1, 2]),))
    assert type(there) is arrays.Meters and there.values.tolist() == [1, 3]


def test_memory_maps(pool, tmp_path):
    path = tmp_path / "map"
    here = np.memmap(path, float, "w+", shape=(30, 20))
    pool.apply(arrays.fill, (path, here.shape))
    np.testing.assert_array_equal(here, np.arange(600.0).reshape(30, 20))
    np.testing.assert_array_equal(pool.apply(arrays.double, (here,)), here * 2)
    del here
    gc.collect()


# ---- results of computations ----


def test_results_are_those_of_this_interpreter(pool):
    jobs = pool.map_async(arrays.compute, range(12), 1)
    expected = [arrays.compute(seed) for seed in range(12)]  # meanwhile
    for there, here in zip(jobs.get(TIMEOUT_S), expected, strict=True):
        for a, b in zip(there, here, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


# ---- errors, warnings, and their state ----


@pytest.mark.parametrize(
    ("raiser", "error"),
    [
        (arrays.raise_linalg_error, np.linalg.LinAlgError),
        (arrays.raise_axis_error, np.exceptions.AxisError),
        (arrays.raise_promotion_error, np.exceptions.DTypePromotionError),
        (arrays.raise_ufunc_error, TypeError),
        (arrays.raise_no_loop, TypeError),
    ],
)
def test_errors_are_of_the_types_of_where_they_arrive(pool, raiser, error):
    with pytest.raises(error) as here:
        raiser()
    with pytest.raises(error) as there:
        pool.apply(raiser)
    assert type(there.value) is type(here.value) and str(there.value) == str(here.value)


def test_floating_point_errors(pool):
    with pytest.raises(FloatingPointError, match="divide by zero"):
        pool.apply(arrays.divide, ("raise",))
    assert np.isinf(pool.apply(arrays.divide, ("ignore",))).all()
    assert pool.apply(arrays.call_back, (0.0,)) == ["divide by zero"] and pool.apply(arrays.call_back, (1.0,)) == []


def test_error_state_is_a_workers_own_and_stays(make_pool, kind):
    before = np.geterr()
    pool = make_pool(1, kind=kind)
    assert pool.apply(arrays.raise_on_all_errors)["over"] == "raise"
    assert pool.apply(np.geterr)["over"] == "raise"  # it lasts until the worker ends
    assert np.geterr() == before


def test_error_state_of_the_caller_is_its_own(pool):
    with np.errstate(divide="raise"):
        assert pool.apply(np.geterr)["divide"] == "warn"


def test_warnings_are_raised_and_recorded_where_they_are(pool):
    if pool.kind != "thread":  # threads share the warning filters
        with pytest.raises(RuntimeWarning, match="overflow"):
            pool.apply(arrays.overflow)
        assert pool.apply(arrays.warnings_of_a_division) == [(RuntimeWarning, "divide by zero encountered in divide")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pool.apply(arrays.same, (1,)) == 1


# ---- random numbers ----


def test_workers_draw_different_numbers(make_pool, kind):
    pool = make_pool(2, kind=kind, maxtasksperchild=1)
    draws = [number for three in pool.map(arrays.draw, range(3), 1) for number in three]
    assert len(set(draws)) == 9


@pytest.fixture
def global_generator():
    """Restore NumPy's global generator after the test."""
    before = np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(before)


def test_processes_draw_different_numbers_whatever_they_inherit(make_pool, context, gate, global_generator):
    np.random.seed(5)
    pool = make_pool(2, context=context, kind="process")
    results = [pool.apply_async(arrays.draw_legacy, (gate.path,)) for _ in range(2)]
    gate.wait_arrived(2)
    gate.release(2)
    one, other = (result.get(TIMEOUT_S) for result in results)
    assert len({*one, *other, *np.random.random(4)}) == 12


@pytest.mark.parametrize("generator", [np.random.MT19937, np.random.PCG64, np.random.Philox])
def test_the_fresh_generator_is_of_the_same_kind(global_generator, generator):
    np.random.set_bit_generator(generator(5))
    _reseed()
    fresh = np.random.get_bit_generator()
    assert type(fresh) is generator and np.random.random() != np.random.Generator(generator(5)).random()


@pytest.mark.parametrize("start_method", ["fork"])
@pytest.mark.parametrize("is_held", [False, True])
def test_a_forked_worker_draws_whatever_other_threads_did(make_pool, context, global_generator, is_held):
    """The parent's thread may hold the generator's lock during the fork. The worker must not inherit that."""
    pool = make_pool(1, context=context, kind="process", maxtasksperchild=1)
    lock = np.random.get_bit_generator().lock
    with lock if is_held else contextlib.nullcontext():
        assert len(set(pool.map(arrays.legacy_random, range(3), 1))) == 3


def test_an_initializer_seeds(make_pool, kind):
    np.random.seed(7)
    expected = np.random.random()
    pool = make_pool(1, arrays.seed_and_set, (7,), kind=kind)
    assert pool.apply(arrays.legacy_random) == expected


def test_generators_are_sent_with_their_state(pool):
    for generator in (np.random.default_rng(3), np.random.RandomState(3), np.random.Generator(np.random.Philox(3))):
        there = pool.apply(arrays.use, (pickle.loads(pickle.dumps(generator)),))
        assert there == arrays.use(generator)


def test_spawned_seeds_are_independent_and_the_same_everywhere(pool):
    sequences = np.random.SeedSequence(11).spawn(6)
    draws = pool.map(arrays.spawned, sequences, 1)
    assert draws == [arrays.spawned(sequence) for sequence in sequences]
    assert len({number for three in draws for number in three}) == 18


# ---- pandas ----


def frame():
    import pandas as pd

    n = 12
    return pd.DataFrame(
        {
            "key": pd.Categorical(["a", "b", "c"] * 4),
            "x": np.arange(n) / 4,
            "n": np.arange(n),
            "text": [f"row {i}" for i in range(n)],
            "time": pd.date_range("2026-11-20", periods=n, freq="h", tz="UTC"),
            "maybe": pd.array([1, None] * 6, "Int64"),
        },
        index=pd.MultiIndex.from_product([range(3), list("wxyz")], names=["i", "j"]),
    )


@pytest.fixture(scope="module")
def pandas():
    """pandas, without its deprecation warnings, which are not our concern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("pandas")


@needs_pandas
def test_tables_there_and_back(pool, pandas):
    here = frame()
    pandas.testing.assert_frame_equal(pool.apply(arrays.same_frame, (here,)), here)
    large = pandas.DataFrame({"x": np.arange(100_000.0), "key": np.arange(100_000) % 7})
    pandas.testing.assert_frame_equal(pool.apply(arrays.same_frame, (large,)), large)
    pandas.testing.assert_frame_equal(pool.apply(arrays.summarize, (large,)), arrays.summarize(large))
    pandas.testing.assert_frame_equal(pool.apply(arrays.summarize, (here,)), arrays.summarize(here))
    for value in (here["time"], here.index, here["key"].dtype, pandas.Timestamp("2026-11-20", tz="UTC"), pandas.NaT):
        there = pool.apply(arrays.same, (value,))
        assert type(there) is type(value) and (there is value or np.all(there == value))
    assert pool.apply(arrays.same, (pandas.NA,)) is pandas.NA
