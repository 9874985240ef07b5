"""Pools of the standard library and of joblib that become ours: `pool_party.patch`.

`isolated/patched_program.py` is run plain and patched, and its observations are compared.
"""

import asyncio
import concurrent.futures
import concurrent.futures.process
import functools
import importlib
import importlib.util
import multiprocessing
import multiprocessing.pool
import os
import pathlib
import re
import signal
import sys
import textwrap
import threading

import fresh
import gates
import pytest
import tasks

import pool_party
from pool_party._patching import state, table, usage
from pool_party._patching.parts import PARTS
from pool_party._patching.settings import Settings
from pool_party._patching.subclasses import LeaveAlone, ours_for
from pool_party._workers.interp.extensions import IS_SUPPORTED

pytestmark = pytest.mark.usefixtures("may_fork")
PROGRAM = fresh.TESTS / "isolated" / "patched_program.py"
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "patching.md"
HAS_INTERPRETERS = sys.version_info >= (3, 14)
# What CPython's InterpreterPoolExecutor gets wrong in functions of `__main__`, and ours does not.
MENDED = {
    "InterpreterPoolExecutor 5": "(True, (5, 'is odd'))",  # the class of an exception
    "InterpreterPoolExecutor 11": "['set', 'set', 'set']",  # what an initializer stores
}


def run(text, *args, options=fresh.STRICT):
    """Run a program with functions of its own from a file, as users do. Return its words."""
    return fresh.check(run_unchecked(text, *args, options=options)).out.split()


def run_unchecked(text, *args, options=fresh.STRICT):
    path = pathlib.Path(run.folder) / "app.py"
    path.write_text(textwrap.dedent(text))
    return fresh.run([path, *args], options=options, cwd=run.folder)


@pytest.fixture(autouse=True)
def _folder(tmp_path):
    run.folder = str(tmp_path)
    yield
    assert state.current() is None, "the test left patches behind"


@functools.cache
def observe(kind):
    done = fresh.run([PROGRAM, kind], options=("-W", "ignore"))
    assert done.returncode == 0, done
    return done.out.splitlines()


# ---- the same as plain ----


def test_as_plain(kind):
    expected = observe("plain")
    assert len(expected) > 120
    for line, plain in zip(observe(kind), expected, strict=True):
        place = " ".join(plain.split(" ")[:2])
        assert line == (f"{place} {MENDED[place]}" if place in MENDED else plain)


@pytest.mark.parametrize("when", ["before", "after"])
def test_all_attributes_of_all_modules_are_restored(when):
    """Those that were imported before the patch are the same afterwards; those imported under it are as imported."""
    program = """
        import sys, types
        NAMES = ("multiprocessing.pool", "multiprocessing.context", "concurrent.futures.thread", "asyncio.base_events",
                 "concurrent.futures.process", "concurrent.futures.interpreter", "joblib.parallel", "multiprocessing")
        def load():
            for name in NAMES:
                try:
                    __import__(name)
                except ImportError:
                    pass
        def look():
            seen = {("meta_path", n): finder for n, finder in enumerate(sys.meta_path)}  # the list may be a new one
            for name, module in list(sys.modules.items()):
                if name.partition(".")[0] == "pool_party":
                    continue
                for key, value in list(vars(module).items()):
                    seen[name, key] = value
                    if isinstance(value, type):
                        seen.update({(name, key, inner): held for inner, held in vars(value).items()})
                    if isinstance(value, dict) and key == "BACKENDS":
                        seen.update({(name, key, inner): held for inner, held in value.items()})
            return seen
        import pool_party._patching.public, linecache
        if sys.argv[1] == "before":
            load()
            one = look()
            pool_party.patch()
            changed = look()
        else:
            pool_party.patch()
            load()
            changed = look()
            one = None
        assert pool_party.patch.__name__ == "patch"
        pool_party.unpatch()
        two = look()
        def differing(a, b):
            return {key for key in a.keys() | b.keys()
                    if a.get(key) is not b.get(key) and key[-1] not in OWN and not is_lazy(a.get(key))}
        def is_lazy(value):  # an import of Python 3.15 that is yet to come
            return type(value).__name__ == "lazy_import"
        OWN = ("one", "two", "changed", "differing", "OWN", *(["meta_path"] if sys.version_info < (3, 14) else []))
        if one is not None:
            assert list(one) == [key for key in two if key in one], "the order has changed"
            print(*sorted(map(str, differing(one, two))))
        undone = differing(changed, two)
        assert len(undone) >= 5, undone
        inits = [value for key, value in two.items() if key[-1] == "__init__" and isinstance(value, types.FunctionType)]
        assert all("pool_party" not in value.__code__.co_filename for value in inits)
        assert not any("pool_party" in str(value) for key, value in two.items() if key[0] == "meta_path")
    """
    assert run(program, when, options=()) == []


def test_nothing_is_imported_or_chosen_early():
    program = """
        import sys
        import pool_party._patching.apply
        from pool_party._patching.settings import Settings
        before = set(sys.modules)
        pool_party._patching.apply.apply(Settings())
        print(*sorted(set(sys.modules) - before))
        heavy = {"typing", "asyncio", "multiprocessing", "concurrent", "joblib", "numpy", "dask", "threading"}
        print(*sorted(heavy & set(sys.modules)))
        import multiprocessing.pool, concurrent.futures.process, asyncio
        assert multiprocessing.get_start_method(allow_none=True) is None
        assert "multiprocessing.synchronize" not in sys.modules or sys.version_info < (3, 13)
        multiprocessing.set_start_method("spawn")
    """
    assert run(program) == []


def test_patches_may_be_nested():
    with pool_party.patched(kind="process"):
        with pool_party.patched(kind="thread", only=["concurrent.futures"]):
            assert not is_ours(multiprocessing.pool.ThreadPool(1))
            assert concurrent.futures.ProcessPoolExecutor(1).submit(os.getpid).result() == os.getpid()
        assert state.current().kind == "process"
        assert is_ours(multiprocessing.pool.ThreadPool(1))
    assert not is_ours(multiprocessing.pool.ThreadPool(1))
    assert not is_ours(concurrent.futures.ThreadPoolExecutor(1))


def test_a_second_patch_replaces_the_first():
    original = concurrent.futures.ThreadPoolExecutor.__init__
    try:
        pool_party.patch(only=["concurrent.futures"])
        pool_party.patch(only=["multiprocessing"])
        assert concurrent.futures.ProcessPoolExecutor.__init__.__code__.co_filename.endswith("process.py")
    finally:
        pool_party.unpatch()
        pool_party.unpatch()
    assert concurrent.futures.ThreadPoolExecutor.__init__ is original


def is_ours(pool):
    """Whether it is ours. It is closed, so that no warning about it comes."""
    (pool.terminate if hasattr(pool, "terminate") else pool.shutdown)()
    return isinstance(pool, pool_party.ComposablePool | pool_party.ComposableExecutor)


def test_pools_that_are_open_stay_ours():
    with pool_party.patched(kind="thread"):
        pool = multiprocessing.pool.ThreadPool(1)
        executor = concurrent.futures.ThreadPoolExecutor(1)
    with pool, executor:
        assert pool.map(tasks.square, [2]) == [4]
        assert executor.submit(tasks.square, 3).result() == 9


# ---- import order ----


@pytest.mark.parametrize("when", ["before", "after"])
def test_import_order(when):
    """Names that were imported before the patch lead to our pools, and so do those that are imported afterwards."""
    imports = """
        import concurrent.futures as cf, functools, multiprocessing
        from multiprocessing import Pool as A
        from multiprocessing.pool import Pool as B, ThreadPool as C
        from multiprocessing.dummy import Pool as D
        from concurrent.futures import ThreadPoolExecutor as E
        from concurrent.futures.process import ProcessPoolExecutor as F
        G = functools.partial(cf.ProcessPoolExecutor, max_workers=1)
        H = multiprocessing.get_context("spawn").Pool
    """
    use = """
        for make in (A, B, C, D, E, F, G, H):
            with make() as pool:
                print(sum(pool.map(abs, [1, -2])), type(pool).__mro__[1].__module__)
    """
    patch = """
        import pool_party
        pool_party.patch(kind="thread")
    """
    assert (
        run("".join([imports, patch, use] if when == "before" else [patch, imports, use]))
        == [*("3", "pool_party._patching.replacing")] * 8
    )


# ---- what is left alone ----


class Overrides(concurrent.futures.ThreadPoolExecutor):
    def _adjust_thread_count(self):
        super()._adjust_thread_count()


class Relies(concurrent.futures.ThreadPoolExecutor):
    @property
    def size(self):
        return sum(thread.is_alive() for thread in self._threads)


class Collides(concurrent.futures.ThreadPoolExecutor):
    def __init__(self):
        super().__init__(1)
        self._engine = "of a car"


class Hooked(concurrent.futures.ThreadPoolExecutor):
    def __getattr__(self, name):
        raise AttributeError(name)


class ReliesOnWorkers(multiprocessing.pool.ThreadPool):
    def size(self):
        return len(self._pool)


class Meta(type):
    pass


class WithMeta(concurrent.futures.ThreadPoolExecutor, metaclass=Meta):
    pass


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Overrides(1), "Its class Overrides overrides the private _adjust_thread_count."),
        (lambda: Relies(1), "Its class Relies uses the private _threads."),
        (lambda: Collides(), "Its class Collides uses the name _engine, which is private to pool_party."),
        (lambda: Hooked(1), "Its class Hooked defines __getattr__."),
        (lambda: WithMeta(1), "Its class WithMeta has the metaclass Meta."),
        (lambda: ReliesOnWorkers(1), "Its class ReliesOnWorkers uses the private _pool."),
        (
            lambda: concurrent.futures.ThreadPoolExecutor(5000),
            "It has 5000 workers, and pools of ours have at most 4000.",
        ),
        (
            lambda: concurrent.futures.ThreadPoolExecutor(1.5),
            "The number of workers is 1.5, which is not an int.",
        ),
    ],
)
def test_left_alone(make, reason):
    with pool_party.patched():
        before = usage.counts()
        with make() as pool:
            assert type(pool).__mro__[0].__module__ in (__name__, "concurrent.futures.thread")
            assert not isinstance(pool, pool_party.ComposablePool | pool_party.ComposableExecutor)
            assert list(pool.map(tasks.square, [2, 3])) == [4, 9]
        (event,) = (event for event, n in usage.counts().items() if n != before.get(event, 0))
    assert isinstance(event, usage.LeftAlone)
    assert (event.caller, event.reason) == (__name__, reason)


class Slotted(concurrent.futures.ThreadPoolExecutor):
    __slots__ = ("mark",)

    def __init__(self, n):
        self.mark = n
        super().__init__(n)


class Deeper(Slotted):
    def submit(self, fn, /, *args, **kwargs):
        return super().submit(fn, *args, **kwargs)


def test_subclasses_of_the_program_become_ours():
    with pool_party.patched(), Deeper(2) as pool:
        assert isinstance(pool, Deeper)
        assert isinstance(pool, pool_party.ComposableExecutor)
        assert type(pool).__name__ == "Deeper"
        assert pool.mark == 2
        assert list(pool.map(tasks.square, range(3))) == [0, 1, 4]
    with Deeper(1) as pool:
        assert not isinstance(pool, pool_party.ComposableExecutor)


def test_the_reasons_find_what_properties_and_decorated_methods_use():
    class Decorated(concurrent.futures.ThreadPoolExecutor):
        def depth(self):
            def inner():
                return self._work_queue

            return inner

        depth = staticmethod(functools.cache(depth))

    with pytest.raises(LeaveAlone, match="uses the private _work_queue"):
        ours_for(Decorated, concurrent.futures.ThreadPoolExecutor, pool_party.ComposableExecutor)


def test_private_attributes_say_how_to_get_them():
    with pool_party.patched(), concurrent.futures.ThreadPoolExecutor(1) as executor:
        with pytest.raises(AttributeError, match=r"exclude the part 'concurrent\.futures' to leave such pools alone"):
            _ = executor._work_queue
        assert not hasattr(executor, "nothing_of_the_kind")


# ---- parts and options ----


def test_parts_are_those_of_the_table():
    assert set(PARTS) == {part for patch in table.PATCHES for part in patch.parts}


@pytest.mark.parametrize(("option", "is_replaced"), [({"only": ["asyncio"]}, False), ({"excluded": ["asyncio"]}, True)])
def test_a_class_that_two_parts_use_belongs_to_the_part_of_its_caller(option, is_replaced):
    import asyncio

    async def default_executor():
        await asyncio.to_thread(tasks.square, 2)
        return asyncio.get_running_loop()._default_executor

    with pool_party.patched(**option):
        assert is_ours(concurrent.futures.ThreadPoolExecutor(1)) is is_replaced
        default = asyncio.run(default_executor())
        assert isinstance(default, pool_party.ComposableExecutor) is not is_replaced


def test_an_excluded_part_is_untouched():
    init, executor_init = multiprocessing.pool.ThreadPool.__init__, concurrent.futures.ProcessPoolExecutor.__init__
    with pool_party.patched(excluded=["multiprocessing", "scipy"]):
        assert multiprocessing.pool.ThreadPool.__init__ is init
        assert concurrent.futures.ProcessPoolExecutor.__init__ is not executor_init


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "fiber"}, "kind must be one of 'process', 'thread', 'interp', 'auto', not 'fiber'"),
        ({"only": ["smp"]}, "a part must be one of 'multiprocessing', .*, not 'smp'"),
        ({"excluded": ["smp"]}, "a part must be one of .*, not 'smp'"),
        ({"n_workers": 0}, "n_workers must be at least 1, not 0"),
        ({"scope": "planet"}, "scope must be 'pool' or 'machine', not 'planet'"),
        ({"policy": "none"}, "policy"),
        ({"oversubscription": 0}, "oversubscription must be more than 0, not 0"),
    ],
)
def test_impossible_options_change_nothing(options, message):
    with pytest.raises(ValueError, match=message):
        pool_party.patch(**options)
    assert state.current() is None


def test_the_number_of_workers_is_for_pools_that_name_none():
    with pool_party.patched(kind="thread", n_workers=3):
        with multiprocessing.Pool() as pool:
            assert pool._processes == 3
        with multiprocessing.Pool(2) as pool:
            assert pool._processes == 2
        with concurrent.futures.ProcessPoolExecutor() as executor:
            assert executor._max_workers == 3


def test_usage_says_who_opened_what():
    before = usage.counts()
    with pool_party.patched(kind="thread"), multiprocessing.Pool(2):
        pass
    (event,) = (event for event, n in usage.counts().items() if n != before.get(event, 0))
    assert event == usage.Replaced("multiprocessing", "multiprocessing.Pool", "thread", __name__, 2)


def test_an_executor_starts_no_worker_before_its_first_call():
    with pool_party.patched(), concurrent.futures.ThreadPoolExecutor(64) as executor:
        n_threads = threading.active_count()
        assert "Executor object at" in repr(executor)
        executor.submit(tasks.square, 1).result()
        assert threading.active_count() > n_threads


def test_many_threads_may_make_the_first_call():
    barrier = threading.Barrier(8)
    results = []

    def submit():
        barrier.wait(60)
        results.append(executor.submit(tasks.square, 3))

    with pool_party.patched(), concurrent.futures.ThreadPoolExecutor(2) as executor:
        threads = [threading.Thread(target=submit) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [result.result() for result in results] == [9] * 8
        assert executor.statistics().n_workers_started <= 2


# ---- the defects of the older tools, one test each: `python -m smp` (1 to 13), `python -m tbb` (14 on) ----


def test_defect_1_and_14_thread_pools_can_be_made():
    with pool_party.patched(), multiprocessing.pool.ThreadPool(2, tasks.square, (3,)) as pool:
        assert pool.starmap(pow, [(2, 3)]) == [8]
        assert len(pool._pool) == 2  # a thread pool has the number of workers that it is asked for


def test_defect_2_executors_of_threads_take_all_arguments():
    with pool_party.patched():
        executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="n", initializer=len, initargs=("a",))
        with executor:
            assert executor.submit(lambda: threading.current_thread().name).result() == "n_0"


def test_defect_3_executors_of_processes_have_budgets_and_take_all_arguments(context):
    with pool_party.patched(kind="process", policy="static"):
        executor = concurrent.futures.ProcessPoolExecutor(2, context, initializer=len, initargs=("a",))
        with executor:
            assert executor.submit(tasks.square, 2).result() == 4
            assert sum(executor.statistics().n_threads) <= max(2, pool_party.cpu_count())


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_defect_4_options_hold_with_every_start_method(method):
    """Oversubscription reaches the workers: the variable is that which libraries read at their start."""
    n_threads = 4 * pool_party.cpu_count()
    with pool_party.patched(kind="process", oversubscription=8.0, policy="static"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.statistics().n_threads == (n_threads, n_threads)
            assert pool.apply(os.getenv, ("OMP_NUM_THREADS",)) == str(n_threads)


def test_defect_5_a_worker_that_replaces_another_has_its_budget():
    n_threads = 4 * pool_party.cpu_count()
    with pool_party.patched(kind="process", oversubscription=8.0, policy="static"), multiprocessing.Pool(2) as pool:
        with pytest.raises(concurrent.futures.process.BrokenProcessPool):
            pool.apply(signal.raise_signal, (signal.SIGKILL,))
        assert set(pool.map(os.getenv, ["OMP_NUM_THREADS"] * 20, 1)) == {str(n_threads)}


def test_defect_6_no_rounding_beyond_the_cpus():
    n_cpus = pool_party.cpu_count()
    with pool_party.patched(policy="static"), multiprocessing.pool.ThreadPool(n_cpus + 3) as pool:
        assert set(pool.statistics().n_threads) == {1}


def test_defect_12_idle_workers_lend_their_cpus():
    with pool_party.patched(), multiprocessing.pool.ThreadPool(2) as pool:
        assert pool.statistics().policy == "dynamic"


def test_a_policy_for_processes_leaves_other_workers_the_default():
    with pool_party.patched(policy="exclusive"):
        with multiprocessing.pool.ThreadPool(2) as threads, multiprocessing.Pool(2) as processes:
            assert [pool.statistics().policy for pool in (threads, processes)] == ["dynamic", "exclusive"]
        with concurrent.futures.ThreadPoolExecutor(2) as executor:
            assert executor.submit(abs, -1).result(60) == 1 and executor.statistics().policy == "dynamic"


def test_defect_13_nested_patches_lose_no_original():
    original = multiprocessing.pool.Pool.__init__
    with pool_party.patched(), pool_party.patched(), pool_party.patched():
        pass
    assert multiprocessing.pool.Pool.__init__ is original


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_defect_15_a_worker_that_is_terminated_costs_no_cpu(kind):
    """The CPUs of a pool that was terminated in the middle of its tasks are there for the next one."""
    event = threading.Event()
    with pool_party.patched(kind=kind):
        for _ in range(2):
            with multiprocessing.Pool(2) as pool:
                pool.apply_async(event.wait if kind == "thread" else signal.pause)
            with multiprocessing.Pool(1) as pool:
                n_cpus = pool_party.cpu_count()
                gates.wait_until(lambda: pool.statistics().n_threads == (n_cpus,), "it has all CPUs")  # noqa: B023
    event.set()


def test_defect_16_a_program_with_a_pool_of_threads_ends_well():
    program = """
        import pool_party
        pool_party.patch()
        from multiprocessing.pool import ThreadPool
        pool = ThreadPool(3)
        print(pool.map(abs, [-1]))
        pool.close()
        pool.join()
    """
    assert run(program) == ["[1]"]


def test_defect_17_pools_nest():
    def outer(n):
        with multiprocessing.pool.ThreadPool(2) as pool:
            return sum(pool.map(tasks.square, range(n)))

    with pool_party.patched(), multiprocessing.pool.ThreadPool(2) as pool:
        assert pool.map(outer, [2, 3]) == [1, 5]


NESTED = """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    def square(x):
        return x * x
    def task(n):
        with multiprocessing.Pool(2) as pool, ProcessPoolExecutor(2) as executor:
            return sum(pool.map(square, range(n))), sum(executor.map(square, range(n)))
    if __name__ == "__main__":
        {patch}
        with ProcessPoolExecutor(2) as executor:
            print(list(executor.map(task, [5, 6])))
"""


@pytest.mark.parametrize("kind", ["plain", "process", "thread", "auto", "interp"])
def test_processes_nest_in_what_takes_their_place(kind):
    """In interpreters `multiprocessing.Pool` was once CPython's, which cannot start there."""
    patch = "" if kind == "plain" else f"import pool_party; pool_party.patch(kind={kind!r})"
    assert " ".join(run(NESTED.format(patch=patch))) == "[(30, 30), (55, 55)]"


def test_options_of_any_type_reach_interpreters():
    """They are pickled, as a policy and its class in the script need it; they were marshalled once."""
    program = """
        import multiprocessing
        class OneEach:
            def shares(self, state):
                from pool_party import WorkerBudget
                return [WorkerBudget(1, state.cpus) for _ in state.own]
        class Ratio(float):
            pass
        def square(x):
            return x * x
        def task(n):
            with multiprocessing.Pool(1) as pool:
                return sum(pool.map(square, range(n)))
        if __name__ == "__main__":
            import pool_party
            for options in {"policy": OneEach()}, {"oversubscription": Ratio(2)}:
                pool_party.patch(kind="interp", **options)
                with multiprocessing.Pool(1) as pool:
                    print(pool.map(task, [5]))
    """
    assert run(program) == ["[30]", "[30]"]


# ---- which kind ----

CASES = {  # a module of the program, or arguments of the pool that follow its context -> the kind
    "x = 1": "interp",
    "import math, os, json": "interp",
    "import ctypes": "process",
    "import os\ndef f(): return [os.getpid() for _ in range(2)]": "process",
    "import os\nclass C:\n    def f(self):\n        def g(): os.fork()\n        return g": "process",
    "from os import getpid": "process",
    "import multiprocessing\nlock = multiprocessing.Lock()": "process",
    "import multiprocessing\nprocess = multiprocessing.Process(target=print)": "process",
    "import multiprocessing\ncontext = multiprocessing.get_context('spawn')": "interp",
    "from multiprocessing.pool import ApplyResult\nresult = ApplyResult.__new__(ApplyResult)": "interp",
    "import signal": "process",
    "import sys, types, importlib.machinery as m\n"
    "sys.modules['case.fast'] = types.ModuleType('fast')\n"
    "sys.modules['case.fast'].__loader__ = m.ExtensionFileLoader('fast', 'fast.so')": "process",
    "import sys, types\n"
    "sys.modules['numpy'] = types.ModuleType('numpy')\n"
    "sys.modules['numpy'].__version__ = '1.0'": "process",
}


@pytest.mark.skipif(not IS_SUPPORTED, reason="interpreters load no extensions")
def test_auto():
    program = """
        import ast, multiprocessing, sys, types
        from pool_party._patching import kinds
        def choose(text, *arguments):
            before = set(sys.modules)
            sys.modules["case"] = module = types.ModuleType("case")
            module.__file__ = "/somewhere/case.py"
            exec(text, vars(module))
            print(kinds.choose(*arguments))
            for name in set(sys.modules) - before:
                if name.partition(".")[0] in ("case", "numpy"):
                    del sys.modules[name]
        for text in ast.literal_eval(sys.argv[1]):
            choose(text, None)
        choose("", multiprocessing.get_context("spawn"), None, None)
        choose("", multiprocessing.get_context("fork"), None, None)
        choose("", None, abs, None)
        choose("", None, None, 5)
        multiprocessing.set_start_method("fork", force=True)
        choose("", None)
    """
    others = ["interp", *["process"] * 4]
    assert run(program, repr(list(CASES)), options=()) == [*CASES.values(), *others]


@pytest.mark.skipif(not IS_SUPPORTED, reason="interpreters load no extensions")
def test_auto_of_an_executor_is_decided_at_its_first_call():
    """What the program defines in between counts."""
    program = """
        if __name__ == "__main__":
            import concurrent.futures, pool_party
            pool_party.patch(kind="auto")
            one, two = concurrent.futures.ProcessPoolExecutor(1), concurrent.futures.ProcessPoolExecutor(1)
            print(one.submit(abs, -1).result(), one.statistics().kind)
        def task():
            import os
            return os.getpid()
        if __name__ == "__main__":
            import os
            print(two.submit(task).result() != os.getpid(), two.statistics().kind)
            one.shutdown(), two.shutdown()
    """
    assert run(program) == ["1", "interp", "True", "process"]


@pytest.mark.skipif(not IS_SUPPORTED, reason="interpreters load no extensions")
def test_auto_from_end_to_end():
    program = """
        import multiprocessing
        def task(x):
            return x + 1
        if __name__ == "__main__":
            import pool_party
            pool_party.patch(kind="auto")
            with multiprocessing.Pool(1) as pool:
                print(pool.map(task, [1]), pool.kind)
    """
    assert run(program) == ["[2]", "interp"]


# ---- the page ----


def test_the_page_has_every_patch():
    text = PAGE.read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert rows == [
        [f"`{p.module}.{p.target}`", ", ".join(f"`{part}`" for part in p.parts), p.what, p.why, p.undone]
        for p in table.PATCHES
    ]


def test_the_table_names_what_exists():
    for patch in table.PATCHES:
        if importlib.util.find_spec(patch.module.partition(".")[0]) and (
            patch.target != "InterpreterPoolExecutor" or HAS_INTERPRETERS
        ):
            assert hasattr(importlib.import_module(patch.module), patch.target)
        assert all(re.fullmatch(r"[^|]+", text) for text in (patch.what, patch.why, patch.undone))


def test_settings_pickle():
    import pickle

    settings = Settings(kind="thread", only=("joblib",))
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert type(pickle.loads(pickle.dumps(settings))) is Settings


async def plus_one(x):
    return x + 1


def test_coroutine_functions_are_taken_as_by_the_standard_library():
    with pool_party.patched():
        with concurrent.futures.ThreadPoolExecutor(1) as executor, multiprocessing.pool.ThreadPool(1) as pool:
            made = [executor.submit(plus_one, 1).result(), *executor.map(plus_one, [2]), pool.apply(plus_one, (3,))]
        assert isinstance(executor, pool_party.ComposableExecutor) and isinstance(pool, pool_party.ComposablePool)
    assert [asyncio.run(coroutine) for coroutine in made] == [2, 3, 4]
