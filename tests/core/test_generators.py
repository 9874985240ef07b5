"""Generators of random numbers that workers get as copies: who is warned of them, and who is not."""

import functools
import random
import textwrap
import types

import fresh
import numpy as np
import pytest

from pool_party._core.generators import Watch
from pool_party._workers.interp.extensions import IS_SUPPORTED

PROGRAM = """
    import functools, random, sys, warnings
    import numpy as np
    from pool_party import ComposablePool

    generator = np.random.default_rng()

    def draw(n):
        return helper()

    def helper():
        return generator.random()

    def plain(n):
        return random.random() + np.random.random()

    def make_closure():
        own = random.Random()
        return lambda n: own.random()

    if __name__ == "__main__":
        warnings.simplefilter("always")
        kind, method, n_workers = sys.argv[1:]
        with warnings.catch_warnings(record=True) as caught:
            with ComposablePool(int(n_workers), kind=kind, context=method) as pool:
                for function in (plain, draw, draw, lambda n: draw(n), make_closure(), make_closure()):
                    pool.map(function, range(4), 1)
                    pool.apply(function, (1,))
        assert all(warning.filename == __file__ for warning in caught)
        print(*sorted(str(warning.message).split("'")[1] for warning in caught if warning.category is RuntimeWarning))
"""


@pytest.mark.parametrize(
    ("kind", "method", "n_workers", "expected"),
    [
        ("process", "fork", 2, "generator own"),
        ("process", "forkserver", 2, "generator own"),  # the server has imported the script
        ("process", "spawn", 2, "own"),  # each worker has imported the script
        ("interp", "spawn", 2, "generator own"),
        ("process", "fork", 1, ""),
        ("thread", "spawn", 2, ""),
    ],
)
def test_programs(tmp_path, kind, method, n_workers, expected):
    if kind == "interp" and not IS_SUPPORTED:
        pytest.skip("NumPy needs CPython 3.14 with a GIL")
    path = tmp_path / "app.py"
    path.write_text(textwrap.dedent(PROGRAM))
    fresh.check(fresh.run([path, kind, method, n_workers], options=()), expected)


def function_with(names, text="lambda: generator"):
    function = eval(text, {"generator": None, **names, "__name__": "module"})
    function.__module__ = "module"
    return function


def names_warned_of(function, method="fork", imports_main=True):
    with pytest.warns(RuntimeWarning) as caught:
        watch = Watch(method, imports_main)
        watch.look(function)
        watch.look(function)
    return [str(warning.message).split("'")[1] for warning in caught]


@pytest.mark.parametrize("generator", [random.Random(1), np.random.default_rng(1), np.random.RandomState(1)])
def test_where_generators_are_found(generator):
    def default(n, m=1, other=generator, *, more=None):
        return other

    def keyword(n, *, by_keyword=generator):
        return by_keyword

    def enclosing(n):
        return generator

    class Box:
        def method(self):
            return generator

    assert names_warned_of(default) == ["other"]
    assert names_warned_of(keyword) == ["by_keyword"]
    assert names_warned_of(enclosing) == ["generator"]
    assert names_warned_of(functools.partial(len, generator)) == ["an argument of a partial"]
    assert names_warned_of(functools.partial(keyword)) == ["by_keyword"]
    assert names_warned_of(Box().method) == ["generator"]
    assert names_warned_of(function_with({"generator": generator})) == ["generator"]
    assert names_warned_of(function_with({"generator": generator}, "lambda: (lambda: generator)")) == ["generator"]


@pytest.mark.parametrize(
    ("module", "method", "imports_main", "are_copied"),
    [
        ("__main__", "fork", True, True),
        ("other", "fork", True, True),
        ("__main__", "forkserver", True, True),
        ("other", "forkserver", True, True),
        ("__main__", "forkserver", False, True),
        ("other", "forkserver", False, False),
        ("__main__", "spawn", True, False),
        ("__main__", "spawn", False, True),
        ("other", "spawn", True, False),
        ("__main__", None, True, True),
        ("other", None, True, False),
    ],
)
def test_whose_globals_are_copied(module, method, imports_main, are_copied):
    assert Watch(method, imports_main)._are_copied(module) == are_copied


def test_what_has_no_state_of_its_own_is_left_alone(recwarn):
    watch = Watch("fork", True)
    for function in (
        function_with({"generator": random.SystemRandom()}),
        function_with({"generator": random}),
        function_with({}),
        random.random,
        random.randint,
        np.random.random,
        len,
        int,
        types.SimpleNamespace(),
    ):
        watch.look(function)
    assert not recwarn
