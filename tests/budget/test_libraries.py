"""Native libraries with threads of their own: found, described, set by address, and looked for only when needed."""

import ctypes
import os
import pathlib
import sys
import threading
import types

import fresh
import pytest
import tasks

from pool_party import _native
from pool_party._budget import environment, libraries, numba_threads, variables
from pool_party._budget.environment import thread_environment
from pool_party._budget.libraries import Library, warnings_for

# ---- what is loaded --------------------------------------------------------


@pytest.mark.parametrize(
    "scenario",
    [
        "openmp_counts_are_per_thread",
        "refresh_sees_what_is_loaded",
        "refresh_sees_what_a_thread_has_loaded",
        "refresh_in_many_threads",
        "unloading",
        "environment_is_left_alone",
    ],
)
def test_library_with_openmp(scenario, openmp_library):
    fresh.check(fresh.run([fresh.TESTS / "isolated/looking.py", scenario, openmp_library]), "")


@pytest.mark.parametrize("scenario", ["loader_is_held", "forking"])
def test_looking_at_the_list_hangs_nobody(scenario):
    fresh.check(fresh.run([fresh.TESTS / "isolated/looking.py", scenario, ""]), "")


def test_nothing_is_imported_before_there_is_something_to_find():
    code = """if True:
        import sys
        from pool_party import _native
        from pool_party._budget import environment, libraries, numba_threads
        print(_native.n_thread_libraries(), libraries.find(), libraries.Loaded().refresh())
        print({"threadpoolctl", "ctypes", "numpy"} & set(sys.modules))
        import numpy
        print(_native.n_thread_libraries() > 0)
    """
    pytest.importorskip("numpy")
    fresh.check(fresh.run(["-c", code]), "0 () False set() True")


@pytest.fixture
def openblas():
    """NumPy's OpenBLAS."""
    pytest.importorskip("numpy")
    for library in libraries.find():
        if library.name == "openblas" and "numpy" in library.path:
            before = _native.call_getter(library.getter)
            yield library
            tasks.set_threads(library, before)
            return
    pytest.skip("this NumPy brings no OpenBLAS")


def test_openblas_of_the_wheel(openblas):
    assert openblas.scope == "process" and openblas.threading_layer == "pthreads"
    assert openblas.callback and openblas.n_threads_max >= 2
    assert openblas.version[0].isdecimal()
    assert pathlib.Path(openblas.path).exists()


def test_openblas_has_the_variables(openblas):
    import ctypes

    count, has_threads = libraries.variables_of(openblas)
    for n in (1, 2, 1):
        tasks.set_threads(openblas, n)
        assert ctypes.c_int.from_address(count).value == n and ctypes.c_int.from_address(has_threads).value == 1


def find_variables(path, *names):
    """Return what the variables contain whose addresses are found, or None."""
    import ctypes

    function = ctypes.CDLL(path).exported
    address = ctypes.cast(function, ctypes.c_void_p).value
    found = variables.find(str(path), "exported", address, names)
    return found and [ctypes.c_int.from_address(at).value for at in found]


def test_variables_that_are_not_exported(build):
    library = build("variables.c", "-O2")
    assert find_variables(library, "count", "account", "count") == [41, 42, 41]
    assert find_variables(library, "count", "unheard_of") is None
    assert find_variables(library, "coun") is None


def test_variables_of_a_stripped_library(build):
    assert find_variables(build("variables.c", "-s"), "count") is None


@pytest.mark.parametrize("kept", [0, 3, 40, 0.5, 0.9])
def test_variables_of_a_damaged_file(build, tmp_path, kept):
    whole = build("variables.c").read_bytes()
    path = tmp_path / "damaged.so"
    path.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    assert variables.find(str(path), "exported", 0, ("count",)) is None


def test_variables_of_a_file_that_is_gone(tmp_path):
    assert variables.find(str(tmp_path / "gone.so"), "exported", 0, ("count",)) is None


def test_each_thread_can_set_openblas_for_all(openblas):
    """threadpoolctl 3.8 would ignore the second thread."""
    for n in (1, 2, 1):
        thread = threading.Thread(target=tasks.set_threads, args=(openblas, n))
        thread.start()
        thread.join()
        assert _native.call_getter(openblas.getter) == n


def test_finding_again_gives_the_same(openblas):
    assert openblas in libraries.find()
    assert libraries.find() == libraries.find()


class Controller:
    """Imitates threadpoolctl's controller, for the library that contains CPython's own functions."""

    filepath = None
    dynlib = ctypes.CDLL(None)
    prefix = "libfoo"
    version = "1.2"

    def __init__(self, internal_api, threading_layer=None):
        self.internal_api = internal_api
        self.threading_layer = threading_layer


@pytest.mark.parametrize("kind", ["openblas", "mkl", "blis", "flexiblas", "openmp", "unheard-of"])
def test_library_without_the_functions_is_left_out(kind):
    assert libraries._describe(Controller(kind)) is None


def functions_of(kind, layer, *names):
    """Return the names behind setter and getter, and the scope, for a library that has these functions."""
    import ctypes

    function = ctypes.CFUNCTYPE(ctypes.c_int)
    dll = types.SimpleNamespace(**{name: function(lambda: 0) for name in names})
    addresses = {ctypes.cast(getattr(dll, name), ctypes.c_void_p).value: name for name in names}
    functions, scope = libraries._functions(dll, kind, layer)
    return (*(addresses[address] for address in functions), scope)


OPENBLAS = ("openblas_set_num_threads", "openblas_get_num_threads")
OPENMP = ("omp_set_num_threads", "omp_get_max_threads")
MKL = ("MKL_Set_Num_Threads", "MKL_Get_Max_Threads")
MKL_LOCAL = ("MKL_Set_Num_Threads_Local", "MKL_Get_Max_Threads")
NUMPYS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_get_num_threads64_")
SCIPYS = ("scipy_openblas_set_num_threads", "scipy_openblas_get_num_threads")
BLIS = ("bli_thread_set_num_threads", "bli_thread_get_num_threads")
FLEXIBLAS = ("flexiblas_set_num_threads", "flexiblas_get_num_threads")


@pytest.mark.parametrize(
    ("kind", "layer", "has", "uses", "scope"),
    [
        ("openblas", "pthreads", OPENBLAS, OPENBLAS, "process"),
        ("openblas", "pthreads", NUMPYS, NUMPYS, "process"),
        ("openblas", "pthreads", SCIPYS, SCIPYS, "process"),
        ("openblas", "openmp", OPENBLAS + OPENMP, OPENMP, "thread"),
        ("openblas", "openmp", OPENBLAS, OPENBLAS, "process"),
        ("openblas", None, OPENBLAS, OPENBLAS, "process"),
        ("mkl", "intel", tuple({*MKL, *MKL_LOCAL}), MKL_LOCAL, "thread"),
        ("mkl", "intel", MKL, MKL, "process"),
        ("blis", "openmp", BLIS, BLIS, "process"),
        ("flexiblas", None, FLEXIBLAS, FLEXIBLAS, "process"),
        ("openmp", "openmp", OPENMP, OPENMP, "thread"),
    ],
)
def test_functions_and_how_far_they_reach(kind, layer, has, uses, scope):
    assert functions_of(kind, layer, *has) == (*uses, scope)


@pytest.mark.parametrize("layer", ["unknown", "disabled", "not specified"])
def test_threading_layers_that_say_nothing(layer):
    assert libraries._layer(Controller("openblas", layer)) is None


# ---- warnings --------------------------------------------------------------


def library(name="openblas", version=None, threading_layer="pthreads"):
    return Library(name, f"/lib/lib{name}.so", version, threading_layer, "process", 1, 2)


@pytest.mark.parametrize(
    ("version", "layer", "says"),
    [
        (None, "pthreads", "before 0.3.4 may return wrong results"),
        ("0.3.4", "pthreads", "before 0.3.34 may return wrong results"),
        ("0.3.27", "pthreads", "if they call different functions"),
        ("0.3.28", "pthreads", "0.3.28 to 0.3.30 may return wrong results"),
        ("0.3.29.dev", "pthreads", "0.3.28 to 0.3.30 may return wrong results"),
        ("0.3.30", "pthreads", "this is 0.3.30"),
        ("0.3.31.188.0", "pthreads", "if they call different functions"),
        ("0.3.33", "openmp", "does not keep to openblas_set_num_threads"),
    ],
)
def test_flawed_openblas(version, layer, says):
    (warning,) = warnings_for(library(version=version, threading_layer=layer))
    assert warning.startswith("OpenBLAS ") and says in warning


@pytest.mark.parametrize(
    "sound",
    [
        library(version="0.3.34"),
        library(version="0.3.34.237.2"),
        library(version="0.4.0", threading_layer="openmp"),
        library(version="0.3.30", threading_layer=None),
        library(version="unknown"),
        library("mkl", "0.3.30"),
        library("libgomp", None, "openmp"),
    ],
)
def test_sound_libraries(sound):
    assert warnings_for(sound, [sound]) == ()


def test_two_openmp_runtimes_that_do_not_agree():
    intels, llvms, gnus = (library(name, None, "openmp") for name in ("libiomp", "libomp", "libgomp"))
    (warning,) = warnings_for(intels, (intels, llvms, gnus))
    assert "(libiomp)" in warning and "(libomp)" in warning
    assert warnings_for(llvms, (intels, llvms, gnus)) == ()
    assert warnings_for(intels, (intels, gnus)) == ()


# ---- the environment of worker processes -----------------------------------

COUNTS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "LOKY_MAX_CPU_COUNT",
    "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
BY_OPENMPS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
FOUR_ELSEWHERE = {name: "4" for name in COUNTS if name not in BY_OPENMPS}


def counts(n, **others):
    return {**dict.fromkeys(COUNTS, str(n)), **{name: str(value) for name, value in others.items()}}


def test_environment_of_a_budget():
    assert thread_environment(3, 8, environ={}) == counts(3, NUMBA_NUM_THREADS=8)
    assert thread_environment(3, environ={}) == counts(3, NUMBA_NUM_THREADS=3)


def test_what_a_pool_has_given_is_not_the_users(monkeypatch):
    for name in environment._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(environment, "_given", {})
    users = environment.users_environment()
    assert users == {"OMP_NUM_THREADS": "3"}
    monkeypatch.setattr(os, "environ", dict(os.environ))
    environment.enter(2, 4, False, users)
    assert os.environ["OMP_NUM_THREADS"] == os.environ["OPENBLAS_NUM_THREADS"] == "2"
    assert environment.users_environment() == users
    assert environment.users_count("openblas") == environment.users_count("libgomp") == 3
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    assert environment.users_count("openblas") == 1 and environment.users_count("mkl") == 3


def test_environment_is_complete_only_together():
    wanted = thread_environment(2, 4, overlap=True, environ={})
    assert thread_environment(2, 4, overlap=True, environ=wanted) == {}


@pytest.mark.parametrize(
    ("users", "sets"),
    [
        ({"OMP_NUM_THREADS": "1"}, dict.fromkeys(BY_OPENMPS[1:], "1") | FOUR_ELSEWHERE),
        ({"OMP_NUM_THREADS": "8"}, dict.fromkeys(COUNTS, "4")),
        ({"OMP_NUM_THREADS": " 2,1"}, dict.fromkeys(COUNTS, "2") | FOUR_ELSEWHERE),
        ({"OMP_NUM_THREADS": "many"}, dict.fromkeys(COUNTS, "4")),
        ({"OMP_NUM_THREADS": "0"}, dict.fromkeys(COUNTS, "4")),
        ({"GOTO_NUM_THREADS": "2"}, dict.fromkeys(COUNTS, "4") | {"OPENBLAS_NUM_THREADS": "2"}),
        (
            {"OPENBLAS_NUM_THREADS": "3", "OMP_NUM_THREADS": "1"},
            dict.fromkeys(BY_OPENMPS[2:], "1") | FOUR_ELSEWHERE,
        ),
        ({"NUMEXPR_NUM_THREADS": "2"}, {name: "4" for name in COUNTS if name != "NUMEXPR_NUM_THREADS"}),
    ],
)
def test_what_the_user_has_set_is_never_raised(users, sets):
    assert thread_environment(4, environ={**users, "NUMBA_NUM_THREADS": "4"}) == sets


PATIENCE = ("OPENBLAS_THREAD_TIMEOUT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


@pytest.mark.parametrize(
    ("users", "sets"),
    [
        ({}, {"OPENBLAS_THREAD_TIMEOUT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OPENBLAS_THREAD_TIMEOUT"}),
        ({"KMP_BLOCKTIME": "200"}, {"OPENBLAS_THREAD_TIMEOUT", "OMP_WAIT_POLICY"}),
        ({"OPENBLAS_THREAD_TIMEOUT": "26"}, {"OMP_WAIT_POLICY", "KMP_BLOCKTIME"}),
    ],
)
def test_idle_threads_wait_as_the_user_wants(users, sets):
    assert {name for name in thread_environment(1, overlap=True, environ=users) if name in PATIENCE} == sets
    assert not set(PATIENCE) & set(thread_environment(1, environ=users))


class Numba:
    """Imitates the module: a count for this thread, which cannot exceed the started threads."""

    def __init__(self, n):
        self.config = types.SimpleNamespace(NUMBA_NUM_THREADS=n)
        self.n = n
        self.seen = []

    def get_num_threads(self):
        return self.n

    def set_num_threads(self, n):
        self.n = n
        self.seen.append(n)


@pytest.fixture
def numba(monkeypatch):
    made = Numba(4)
    monkeypatch.setitem(sys.modules, "numba", made)
    monkeypatch.setattr(numba_threads, "_mine", threading.local())
    return made


def test_numba_is_set_if_it_is_imported(numba):
    numba_threads.keep_to(4)
    assert numba.seen == []  # asking would start its threads
    for n in (1, 4, 9, 9, 2):
        numba_threads.keep_to(n)
    assert numba.seen == [1, 4, 2]
    assert "NUMBA_NUM_THREADS" not in thread_environment(2, environ={})


def test_what_the_user_has_set_of_numba_is_never_raised(numba):
    numba_threads.keep_to(3)
    numba.set_num_threads(2)
    for n in (4, 1, 3):
        numba_threads.keep_to(n)
        assert numba.n == min(n, 2)


def test_numba_is_not_imported_for_it():
    numba_threads.keep_to(1)
    assert "numba" not in sys.modules
