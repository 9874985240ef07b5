"""Functions and classes of `__main__`: scripts, -c, stdin, -m; guarded or not; in every kind."""

import concurrent.futures
import hashlib
import sys
import textwrap

import fresh
import pytest

import pool_party
from pool_party._core import main_guard
from pool_party._wire import definitions


def program(kind, body, *, guarded=False, definitions=""):
    """A program that makes a pool `p` of the kind, and runs `body` with it."""
    head = f"KIND = {kind!r}\nfrom pool_party import ComposablePool\n"
    body = f"with ComposablePool(2, kind=KIND) as p:\n{textwrap.indent(textwrap.dedent(body), '    ')}"
    if guarded:
        body = f'if __name__ == "__main__":\n{textwrap.indent(body, "    ")}'
    return f"{head}{textwrap.dedent(definitions)}\n{body}\n"


def run_script(tmp_path, text, name="app.py"):
    path = tmp_path / name
    path.write_text(text)
    return fresh.check(fresh.run([path], cwd=tmp_path))


GUARDED = pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "unguarded"])
METHODS = pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])


# ---- the ways in which a program can be run ---------------------------------

DEFINITIONS = """
    OFFSET = 10

    def helper(x):
        return x + OFFSET

    def f(x):
        return helper(x) * 2

    class Box:
        def __init__(self, value):
            self.value = value

    def box(x):
        return Box(x)

    class MyError(Exception):
        pass

    def fail(x):
        raise MyError("mine", x)
"""
BODY = """
    print(p.map(f, range(4)))
    print(p.apply(lambda x: helper(x), (1,)))
    result = p.apply(box, (Box(7),))
    print(isinstance(result, Box), isinstance(result.value, Box), result.value.value)
    try:
        p.apply(fail, (3,))
    except MyError as error:
        print(type(error) is MyError, error.args)
    print(list(p.imap(f, [1])), p.starmap(f, [(2,)]), p.apply_async(f, (3,)).get(30))
"""
EXPECTED = """
    [20, 22, 24, 26]
    11
    True True 7
    True ('mine', 3)
    [22] [24] 26
"""


@GUARDED
def test_script(tmp_path, kind, guarded):
    text = program(kind, BODY, guarded=guarded, definitions=DEFINITIONS)
    fresh.check(run_script(tmp_path, text), EXPECTED)


@GUARDED
def test_command(kind, guarded):
    text = program(kind, BODY, guarded=guarded, definitions=DEFINITIONS)
    fresh.check(fresh.run(["-c", text]), EXPECTED)


@GUARDED
@pytest.mark.parametrize("args", [[], ["-"]], ids=["no-argument", "dash"])
def test_stdin(kind, args, guarded):
    text = program(kind, BODY, guarded=guarded, definitions=DEFINITIONS)
    fresh.check(fresh.run(args, stdin_text=text), EXPECTED)


LAUNCHERS = {  # which run a script as `__main__` in their own process, as coverage and IPython do
    "another-main": "import multiprocessing, runpy\nrunpy.run_path('app.py', run_name='__main__')",
    "no-spec": """
import pathlib, sys, types
main = sys.modules["__main__"] = types.ModuleType("__main__")
del main.__spec__
main.__file__ = "app.py"
exec(compile(pathlib.Path("app.py").read_bytes(), "app.py", "exec"), vars(main))
""",
}


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_script_that_another_program_runs(tmp_path, launcher, method):
    text = program("process", BODY, guarded=True, definitions=DEFINITIONS)
    (tmp_path / "app.py").write_text(text.replace("kind=KIND", f"kind=KIND, context={method!r}"))
    (tmp_path / "launcher.py").write_text(LAUNCHERS[launcher])
    fresh.check(fresh.run(["launcher.py"], cwd=tmp_path), EXPECTED)


@pytest.mark.parametrize("kind", ["thread", "interp"])
def test_script_that_names_a_start_method_for_workers_that_are_no_processes(tmp_path, kind):
    """A program that changes its kind changes nothing else: other kinds ignore the context."""
    text = f"""
        from multiprocessing import get_context
        from pool_party import ComposableExecutor, ComposablePool

        def f(x):
            return x + 1

        for method in ("fork", "forkserver", "spawn"):
            for context in (method, get_context(method)):
                with ComposablePool(1, context=context, kind={kind!r}) as pool:
                    print(pool.map(f, [1, 2]))
                with ComposableExecutor(1, context=context, kind={kind!r}) as executor:
                    print(executor.submit(f, 3).result())
    """
    fresh.check(run_script(tmp_path, textwrap.dedent(text)), 6 * "[2, 3] 4 ")


@GUARDED
def test_module_of_a_package(tmp_path, kind, guarded):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helpers.py").write_text("def twice(x):\n    return 2 * x\n")
    definitions = textwrap.dedent(DEFINITIONS) + textwrap.dedent(
        """
        from . import helpers
        from .helpers import twice

        def g(x):
            return helpers.twice(x) + twice(x)

        def h(x):
            from .helpers import twice as again
            return again(x)
        """
    )
    body = textwrap.dedent(BODY) + "print(p.map(g, [1, 2]), p.map(h, [1]))\n"
    (package / "app.py").write_text(program(kind, body, guarded=guarded, definitions=definitions))
    completed = fresh.run(["-m", "pkg.app"], cwd=tmp_path)
    fresh.check(completed, EXPECTED + "[4, 8] [2]")


def test_package_with_a_main_module(tmp_path, kind):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(program(kind, BODY, guarded=True, definitions=DEFINITIONS))
    fresh.check(fresh.run(["-m", "pkg"], cwd=tmp_path), EXPECTED)


def test_interactive_session(kind):
    """As typed at a prompt: definitions and pools come and go, line by line."""
    text = textwrap.dedent(f"""
        from pool_party import ComposablePool
        p = ComposablePool(2, kind={kind!r})
        def f(x): return x + 1

        print(p.map(f, [1, 2]))
        def f(x): return x + 100

        print(p.map(f, [1, 2]))
        p.terminate(); p.join()
        """)
    completed = fresh.run(["-i", "-q"], stdin_text=text)
    assert completed.returncode == 0, completed
    assert completed.out.split("\n")[:2] == ["[2, 3]", "[101, 102]"], completed
    assert "Traceback" not in completed.err, completed


@pytest.mark.parametrize("how", ["script", "stdin"])
def test_unguarded_program_runs_once(tmp_path, kind, how):
    log = tmp_path / "log"
    definitions = f"""
        import tasks

        tasks.log_line({str(log)!r}, "ran")

        def f(x):
            return x + 1
        """
    text = program(kind, "print(p.map(f, [1, 2]))", definitions=definitions)
    if how == "script":
        fresh.check(run_script(tmp_path, text), "[2, 3]")
    else:
        fresh.check(fresh.run(["-"], stdin_text=text), "[2, 3]")
    assert log.read_text() == "ran\n"


def test_script_with_a_name_that_is_no_module(tmp_path, kind):
    text = program(kind, BODY, guarded=True, definitions=DEFINITIONS)
    fresh.check(run_script(tmp_path, text, name="my app-2.py"), EXPECTED)


@METHODS
@pytest.mark.parametrize("how", ["script", "module", "function", "thread"])
def test_unguarded_programs(tmp_path, method, how):
    """Workers that are not forked do not run the main module, wherever it makes its pool."""
    body = textwrap.dedent(BODY).strip()
    pool = f"with ComposablePool(2, context={method!r}, initializer=note, initargs=(Box(1),)) as p:"
    text = textwrap.dedent(DEFINITIONS) + (
        "import os\nfrom pool_party import ComposablePool\n"
        f"with open({str(tmp_path / 'log')!r}, 'a') as log: log.write('ran\\n')\n"
        "def note(box):\n    global noted\n    noted = box.value\n"
        "def get_noted(_): return noted, os.path.basename(__file__)\n"
    )
    body = f"{pool}\n{textwrap.indent(body, '    ')}\n    print(p.map(get_noted, [0]))\n"
    if how == "function":
        text += f"def run():\n{textwrap.indent(body, '    ')}\nrun()\n"
    elif how == "thread":
        text += f"import threading\ndef run():\n{textwrap.indent(body, '    ')}\n"
        text += "thread = threading.Thread(target=run)\nthread.start()\nthread.join()\n"
    else:
        text += body
    (tmp_path / "app.py").write_text(text)
    completed = fresh.run(["-m", "app"] if how == "module" else [tmp_path / "app.py"], cwd=tmp_path)
    fresh.check(completed, EXPECTED + "[(1, 'app.py')]")
    assert (tmp_path / "log").read_text() == "ran\n"


MODULE = """
    from pool_party import ComposableExecutor, ComposablePool

    def f(x):
        return x + 1

    def g(x):
        return f(x), pool.__dict__.keys() & {{"_engine"}}

    def nested(x):
        return pool.map(f, [x]), hasattr(pool, "nothing"), pool.options(retries=1).apply(f, (x,))

    def serve():
        return pool.map(f, [1, 2]), list(executor.map(g, [3, 4]))

    pool = ComposablePool(2, {options})
    executor = ComposableExecutor(2, {options})
"""


@GUARDED
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn", "interp"])
def test_a_module_that_makes_a_pool_as_it_is_imported(tmp_path, method, guarded):
    """Workers import it as well, and start no workers of their own for that."""
    options = "kind='interp'" if method == "interp" else f"context={method!r}"
    (tmp_path / "module.py").write_text(textwrap.dedent(MODULE).format(options=options))
    use = "print(module.serve())\n"
    text = "import module\n" + (f"if __name__ == '__main__':\n    {use}" if guarded else use)
    opened = "{'_engine'}" if method == "fork" else "set()"  # a forked worker has its parent's
    fresh.check(run_script(tmp_path, text), f"([2, 3], [(4, {opened}), (5, {opened})])")


@GUARDED
@pytest.mark.parametrize("method", ["forkserver", "spawn", "interp"])
def test_a_module_that_uses_a_pool_as_it_is_imported(tmp_path, method, guarded):
    """Workers refuse: each would start workers that start workers. The program gets one error that says so."""
    options = "kind='interp'" if method == "interp" else f"context={method!r}"
    text = textwrap.dedent(MODULE).format(options=options) + "print(serve())\n"
    (tmp_path / "module.py").write_text(text)
    main = "import module\n" + "if __name__ == '__main__':\n    print('main')\n" * guarded
    (tmp_path / "main.py").write_text(main)
    completed = fresh.run([tmp_path / "main.py"], cwd=tmp_path)
    last = completed.err.strip().splitlines()[-1]
    assert completed.returncode == 1 and "uses a pool as it is imported" in last and "__main__" in last, completed


def test_a_deferred_pool_starts_in_a_task(tmp_path):
    (tmp_path / "module.py").write_text(textwrap.dedent(MODULE).format(options="kind='interp'"))
    text = """
        import module
        from pool_party import ComposablePool

        with ComposablePool(1, kind="process", context="spawn") as outer:
            print(outer.map(module.nested, [1, 2]))
        module.pool.terminate()
        """
    fresh.check(run_script(tmp_path, textwrap.dedent(text)), "[([2], False, 2), ([3], False, 3)]")


def test_unguarded_script_leaves_its_executor_alone(tmp_path, kind):
    text = textwrap.dedent(f"""
        from pool_party import ComposableExecutor

        def f(x):
            return x + 1

        with ComposableExecutor(2, kind={kind!r}) as executor:
            print(list(executor.map(f, range(3))), executor.submit(f, 5).result(30))
        """)
    fresh.check(run_script(tmp_path, text), "[1, 2, 3] 6")


# ---- objects of __main__ -----------------------------------------------------


@pytest.fixture
def run_program(tmp_path, kind):
    """Run definitions and a body in a guarded script of each kind."""

    def run(definitions, body, expected):
        text = program(kind, body, guarded=True, definitions=definitions)
        fresh.check(run_script(tmp_path, text), expected)

    return run


def test_recursion(run_program):
    run_program(
        """
        def factorial(n):
            return 1 if n < 2 else n * factorial(n - 1)

        def is_even(n):
            return n == 0 or is_odd(n - 1)

        def is_odd(n):
            return n != 0 and is_even(n - 1)

        class Tree:
            def __init__(self, depth):
                self.children = [Tree(depth - 1) for _ in range(2)] if depth else []

            def count(self):
                return 1 + sum(child.count() for child in self.children)

        class Ping:
            def to(self, n):
                return "ping" if n == 0 else Pong().to(n - 1)

        class Pong:
            def to(self, n):
                return "pong" if n == 0 else Ping().to(n - 1)

        def make_tree(depth):
            return Tree(depth)
        """,
        """
        print(p.map(factorial, [5, 10]))
        print(p.map(is_even, [10, 7]))
        tree = p.apply(make_tree, (4,))
        print(type(tree) is Tree, tree.count(), p.apply(tree.count))
        print(p.map(Ping().to, [0, 1, 2]))
        """,
        "[120, 3628800] [True, False] True 31 31 ['ping', 'pong', 'ping']",
    )


def test_bases_that_list_their_subclasses(run_program):
    """A class whose base refers to it, in whichever order tasks name them, and also by another class."""
    run_program(
        """
        class Base:
            registry = {}

            def __init_subclass__(cls, **options):
                Base.registry[cls.__name__] = cls

        class A(Base):
            def names(self):
                return sorted(Base.registry), self.registry["A"] is A

        class B(A):
            pass

        class Meta(type):
            made = []

            def __call__(cls):
                return super().__call__()

        class C(metaclass=Meta):
            def names(self):
                return [cls.__name__ for cls in Meta.made], Meta.made[0] is C

        Meta.made.append(C)

        class D:
            first = A

        def names(value):
            return value.names()

        def first(value):
            return value.first().names()
        """,
        """
        print(p.apply(first, (D(),)), p.map(names, [A(), B()]), p.apply(names, (C(),)))
        """,
        "(['A', 'B'], True) [(['A', 'B'], True), (['A', 'B'], True)] (['C'], True)",
    )


def test_classes_keep_their_identity(run_program):
    run_program(
        """
        import collections
        import dataclasses
        import enum

        class Color(enum.Enum):
            RED = 1
            BLUE = 2

        @dataclasses.dataclass(frozen=True)
        class Point:
            x: int
            y: int = 0

        Pair = collections.namedtuple("Pair", "a b")

        class Base:
            def who(self):
                return "base"

        class Derived(Base):
            def who(self):
                return "derived of " + super().who()

        class Slots:
            __slots__ = ("a",)
            def __init__(self, a):
                self.a = a

        class Outer:
            class Inner:
                pass

        def check_in_worker(color, point, pair, derived):
            assert color is Color.RED and isinstance(point, Point)
            assert type(pair) is Pair and isinstance(derived, Base)
            return Color.BLUE, Point(3), Pair(1, 2), Derived(), Slots(5), Outer.Inner()

        def same_class(value):
            return type(value) is Point and value == Point(1)
        """,
        """
        color, point, pair, derived, slots, inner = p.apply(
            check_in_worker, (Color.RED, Point(1), Pair(1, 2), Derived())
        )
        print(color is Color.BLUE, point == Point(3), type(point) is Point)
        print(type(pair) is Pair, pair, type(derived) is Derived, derived.who())
        print(type(slots) is Slots, slots.a, type(inner) is Outer.Inner)
        print(p.map(same_class, [Point(1)] * 3, 1), p.apply(Point, (1, 2)))
        print(p.apply(type, (Point(1),)) is Point, p.apply(lambda: Point) is Point)
        """,
        """
        True True True
        True Pair(a=1, b=2) True derived of base
        True 5 True
        [True, True, True] Point(x=1, y=2)
        True True
        """,
    )


def test_exceptions_of_main(run_program):
    run_program(
        """
        class MyError(Exception):
            pass

        class SubError(MyError):
            def __init__(self, message, code=0):
                super().__init__(message, code)
                self.code = code

        def fail(code):
            raise SubError("bad", code)

        def catch(error):
            try:
                raise error
            except MyError as caught:
                return caught
        """,
        """
        try:
            p.map(fail, [7])
        except MyError as error:
            print(type(error) is SubError, error.args, error.code)
        print(repr(p.apply(catch, (SubError("x", 1),))))
        result = p.apply_async(fail, (5,), error_callback=lambda e: print(isinstance(e, MyError)))
        result.wait(30)
        """,
        "True ('bad', 7) 7 SubError('x', 1) True",
    )


def test_functions_defined_after_the_pool(run_program):
    run_program(
        "",
        """
        def f(x):
            return x + 1
        print(p.map(f, [1, 2]))
        class Late:
            def __init__(self, x):
                self.x = x
            def double(self):
                return Late(self.x * 2)
        late = p.apply(Late(4).double)
        print(type(late) is Late, late.x)
        """,
        "[2, 3] True 8",
    )


def test_redefined_function_is_the_new_one(run_program):
    run_program(
        """
        def f(x):
            return "old"
        """,
        """
        print(p.map(f, [1, 2]))
        def f(x):
            return "new"
        print(p.map(f, [1, 2]))
        """,
        "['old', 'old'] ['new', 'new']",
    )


def test_what_workers_have_is_not_looked_for_again(run_program):
    """Objects of a class of the script: Python code of ours is needed for the first one only."""
    run_program(
        """
        class Point:
            def __init__(self, x):
                self.x = x
        def move(point):
            return Point(point.x + 1)
        """,
        """
        from pool_party._wire import definitions
        print(p.map(move, [Point(1)], 1)[0].x, p.apply(move, (Point(2),)).x)
        completed, complete = [], definitions.complete
        definitions.complete = lambda *args: completed.append(args) or complete(*args)
        print([q.x for q in p.map(move, map(Point, range(3)), 1)], p.apply(move, (Point(5),)).x, len(completed))
        class Point(Point):
            pass
        print(type(p.apply(move, (Point(7),))) is Point, len(completed) > 0 or KIND == "thread")
        """,
        "2 3 [1, 2, 3] 6 0 True True",
    )


def test_definitions_are_sent_once(kind):
    """However often their place is named; the last ones, for which there is no room there, with each task."""
    text = textwrap.dedent(f"""
        from pool_party import ComposablePool

        def nest(x):
            with ComposablePool(1, kind="thread") as inner:
                return inner.apply(abs, (x,))

        def encoded_bytes(value):
            return len(p._engine._channel.encode(((value,), {{}}))) if {kind != "thread"} else 0

        with ComposablePool(2, kind={kind!r}) as p:
            assert p.map(nest, range(4), 1) == [0, 1, 2, 3]  # whose workers have another channel
            for i in range(12):
                class Point:
                    text = str(i) * 100_000
                    def __init__(self, x):
                        self.x = x
                def look(point):
                    return point.x, point.text[:1], type(point) is Point
                assert set(p.map(look, [Point(i)] * 8, 1)) == {{(i, str(i)[0], True)}}
                assert p.apply(look, (Point(i),)) == (i, str(i)[0], True)
                if i < 3:
                    assert encoded_bytes(Point(i)) < 300, encoded_bytes(Point(i))
            print("done")
        """)
    fresh.check(fresh.run(["-c", text]), "done")


def test_a_large_global_of_a_session_is_pickled_when_it_has_changed(kind):
    text = textwrap.dedent(f"""
        from pool_party import ComposablePool
        from pool_party._wire import main_module

        table = {{i: (i, [str(i)]) for i in range(5_000)}}
        pickled, pickle_part = [], main_module.pickle_part
        main_module.pickle_part = lambda names, *rest: pickled.extend(names) or pickle_part(names, *rest)

        def look(i):
            return table[i][1][0]

        with ComposablePool(2, kind={kind!r}) as p:
            for _ in range(3):
                print(p.map(look, [7, 8], 1), p.apply(look, (9,)))
            table[8][1][0] = "new"
            print(p.map(look, [7, 8], 1), pickled.count("table") in (0, 2))
        """)
    expected = "['7', '8'] 9\n" * 3 + "['7', 'new'] True"
    fresh.check(fresh.run(["-c", text]), expected)


def test_a_large_global_of_a_session_travels_once(kind):
    """A further call neither examines nor copies it."""
    text = textwrap.dedent(f"""
        from pool_party import ComposablePool, _native
        from pool_party._wire import namespace

        table = {{i: (i, str(i)) for i in range(50_000)}}
        def look(i):
            return table[i][1]

        def copied(value):
            encoded = p._engine._channel.encode(((value,), {{}})) if {kind != "thread"} else b""
            pickle, buffers = (encoded, []) if isinstance(encoded, bytes) else encoded
            return len(pickle) + sum(len(buffer) for buffer in buffers if not _native.is_shared(buffer))

        with ComposablePool(2, kind={kind!r}) as p:
            for text in ["8", "new"]:
                table[8] = (8, text)
                for _ in range(3):
                    print(p.map(look, [7, 8], 1), p.apply(look, (9,)))
                    assert copied(look) < 1000, copied(look)
            assert not {"t" not in sys.abiflags} or len(namespace.leaves(["table"])) < 10
        """)
    expected = "['7', '8'] 9\n" * 3 + "['7', 'new'] 9\n" * 3
    fresh.check(fresh.run(["-c", text]), expected)


def test_a_cache_of_a_callable_without_a_name(kind):
    text = textwrap.dedent(f"""
        import functools
        from pool_party import ComposablePool

        power = functools.lru_cache(functools.partial(pow, 2))
        with ComposablePool(1, kind={kind!r}) as p:
            print(p.map(lambda x: power(x), [1, 2]))
        """)
    fresh.check(fresh.run(["-c", text]), "[2, 4]")


def test_initializer_sets_a_global_that_tasks_read(tmp_path, kind):
    text = textwrap.dedent(f"""
        from pool_party import ComposablePool

        shared = None
        n = 0

        def initialize(value):
            global shared
            shared = value

        def read(x):
            return shared, x

        def count():
            global n
            n += 1
            return n

        def read_count():
            return n

        if __name__ == "__main__":
            with ComposablePool(1, initialize, ("set",), kind={kind!r}) as p:
                print(p.map(read, [1, 2]))
                print(p.apply(lambda: shared))
                print([p.apply(count) for _ in range(3)], p.apply(read_count))
                print(p.starmap(count, [(), ()]), p.apply(lambda: n))
        """)
    expected = "[('set', 1), ('set', 2)] set [1, 2, 3] 3 [4, 5] 5"
    fresh.check(run_script(tmp_path, text), expected)


@pytest.mark.parametrize("how", ["command", "stdin"])
def test_initializer_sets_a_global_without_a_file(kind, how):
    text = textwrap.dedent(f"""
        from pool_party import ComposablePool

        shared = None

        def initialize(value):
            global shared
            shared = value

        def read(x):
            return shared, x

        with ComposablePool(2, initialize, ("set",), kind={kind!r}) as p:
            print(p.map(read, [1, 2]))
        """)
    args, stdin_text = (["-c", text], None) if how == "command" else (["-"], text)
    fresh.check(fresh.run(args, stdin_text=stdin_text), "[('set', 1), ('set', 2)]")


def test_module_that_main_imported(tmp_path, kind):
    (tmp_path / "mylib.py").write_text("def f(x):\n    return x * 3\n")
    text = program(
        kind,
        "print(p.map(mylib.f, [1, 2]), p.map(g, [1]))",
        guarded=True,
        definitions="""
        import mylib
        def g(x):
            return mylib.f(x) + 1
        """,
    )
    fresh.check(run_script(tmp_path, text), "[3, 6] [4]")


def test_name_in_the_worker_is_not_main_for_guarded_code(tmp_path, kind):
    """A guard must keep workers from making pools of their own."""
    log = tmp_path / "log"
    definitions = f"""
        def f(x):
            return x

        if __name__ == "__main__":
            import tasks

            tasks.log_line({str(log)!r}, "guarded")
        """
    text = program(kind, "print(p.map(f, [1]))", guarded=True, definitions=definitions)
    fresh.check(run_script(tmp_path, text), "[1]")
    assert log.read_text() == "guarded\n"


def test_redefinitions_reach_workers_that_have_the_old_ones(kind):
    """As in a notebook: the same name and code, with another default or another attribute."""
    body = """
    def f(x, n=2):
        return x * n

    class C:
        factor = 2

        def run(self, x):
            return x * self.factor

    def use(c):
        return c.run(3)

    print(p.map(f, [1, 2]), p.apply(use, (C(),)))

    def f(x, n=5):
        return x * n

    class C:
        factor = 7

        def run(self, x):
            return x * self.factor

    print(p.map(f, [1, 2]), p.apply(use, (C(),)))
    """
    text = program(kind, body, guarded=True)
    fresh.check(fresh.run(["-c", text]), "[2, 4] 6 [5, 10] 21")


# ---- what is not sent, and what is not changed -------------------------------


def test_globals_that_workers_have_are_not_pickled(tmp_path, start_method):
    """Globals are not pickled, however large they are, and whether they pickle or not."""
    text = textwrap.dedent(f"""
        from pool_party import ComposablePool

        class Opaque:
            def __reduce__(self):
                raise SystemExit("pickled")

        opaque = Opaque()
        classes = default = opaque  # names that begin as statements do
        elements = {{"opaque": opaque}}

        def f(x):
            return classes is default is elements["opaque"], x

        if __name__ == "__main__":
            with ComposablePool(2, kind="process", context={start_method!r}) as p:
                print(p.map(f, [1, 2]), p.apply(f, (3,)))
        """)
    fresh.check(run_script(tmp_path, text), "[(True, 1), (True, 2)] (True, 3)")


def test_what_is_not_there_and_does_not_pickle_is_named(tmp_path):
    text = textwrap.dedent("""
        import threading
        from pool_party import ComposablePool

        lock = threading.Lock()

        def f(x):
            with lock:
                return x

        if __name__ == "__main__":
            with ComposablePool(1, kind="interp") as p:
                try:
                    p.apply(f, (1,))
                except TypeError as error:
                    print(*(note for note in error.__notes__ if "global" in note))
                print(p.apply(abs, (-1,)))
        """)
    expected = "pool_party: the global 'lock' of __main__, which a function reads, does not pickle 1"
    fresh.check(run_script(tmp_path, text), expected)


def test_what_does_not_unpickle_is_named(tmp_path):
    text = textwrap.dedent("""
        from pool_party import ComposablePool

        def check(is_sender):
            if not is_sender:
                raise ValueError("only here")

        class Only:
            def __reduce__(self):
                return check, (False,)

        only = Only()

        def f(x):
            return only, x

        if __name__ == "__main__":
            with ComposablePool(1, kind="interp") as p:
                try:
                    p.apply(f, (1,))
                except ValueError as error:
                    print(error, *(note for note in error.__notes__ if "global" in note))
        """)
    expected = "only here pool_party: the global 'only' of __main__, which a function reads, does not unpickle"
    fresh.check(run_script(tmp_path, text), expected)


def test_a_result_replaces_nothing_in_the_caller(run_program):
    """A class that counts its instances may have another count elsewhere, but is the same class."""
    run_program(
        """
        class Counted:
            count = 0
            made = []
            def __init__(self):
                type(self).count += 1
                type(self).made.append(self.count)

        def make(x):
            return [Counted() for _ in range(x)]
        """,
        """
        mine, before = Counted(), Counted
        theirs = [c for some in p.map(make, [1, 2, 3], 1) for c in some]
        print(Counted is before, all(type(c) is before for c in theirs), isinstance(mine, Counted))
        print(p.apply(lambda: Counted) is before, Counted is before)
        """,
        "True True True True True",
    )


def test_a_class_that_only_the_worker_has_comes_home(tmp_path, remote_kind):
    definitions = """
        def make(x):
            global Late
            class Late:
                def __init__(self, x):
                    self.x = x
            Late.__qualname__ = "Late"
            return Late(x)
        """
    text = program(remote_kind, "print(p.apply(make, (5,)).x, Late.__name__)", guarded=True, definitions=definitions)
    fresh.check(run_script(tmp_path, text), "5 Late")


NESTED = """
    import dataclasses, sys

    OFFSET = 5

    @dataclasses.dataclass
    class Point:
        x: int

    class Tag:
        def __reduce__(self):
            return Tag, ()

    def leaf(point):
        return Point(point.x + OFFSET), Tag()

    def branch(kind, context, x):
        with ComposablePool(1, kind=kind, context=context) as q:
            point, tag = q.map(leaf, [Point(x)])[0]
            again = q.apply(lambda p: leaf(p)[0], (point,))
        return point, isinstance(point, Point), isinstance(tag, Tag), isinstance(again, Point)
"""
PROCESSES = ("process-forkserver", "process-spawn")


@pytest.mark.parametrize("inner", ["thread", *PROCESSES, "interp"])
@pytest.mark.parametrize("outer", ["thread", "process-fork", *PROCESSES, "interp"])
def test_nested_pools_run_what_the_script_defines(tmp_path, outer, inner):
    text = textwrap.dedent(f"""
        from pool_party import ComposablePool
        {textwrap.indent(textwrap.dedent(NESTED), "        ").lstrip()}
        if __name__ == "__main__":
            (outer, _, method), (inner, _, inner_method) = {outer!r}.partition("-"), {inner!r}.partition("-")
            with ComposablePool(1, kind=outer, context=method or None) as p:
                print(*p.apply(branch, (inner, inner_method or None, 1)))
        """)
    fresh.check(run_script(tmp_path, text), "Point(x=6) True True True")


# ---- hashes ----------------------------------------------------------------


def test_hashes_of_definitions_need_no_hash_for_security(monkeypatch):
    """Under FIPS 140, OpenSSL refuses SHA-1 unless the call says that it is not for security."""
    unpatched = hashlib.sha1

    def sha1(data=b"", *, usedforsecurity=True):
        if usedforsecurity:
            raise ValueError("[digital envelope routines] unsupported")
        return unpatched(data, usedforsecurity=False)

    monkeypatch.setattr(hashlib, "sha1", sha1)
    assert definitions.digest(b"x + 1") != definitions.digest(b"x + 2")


@pytest.mark.parametrize("how", ["script", "command"])
def test_functions_within_functions_do_not_take_these_along(kind, how, tmp_path):
    """What the outer function reads is its own affair: it may not pickle, as the pool."""
    text = program(
        kind,
        """
        def outer():
            class Local:
                def double(self, x):
                    return 2 * x

            def inner(x):
                return x + 1

            assert LOCK is not None
            return p.map(lambda x: x * x, [3]) + p.map(inner, [4]) + p.map(Local().double, [5])

        print(outer())
        """,
        definitions="import threading\nLOCK = threading.Lock()\n",
        guarded=True,
    )
    if how == "script":
        completed = run_script(tmp_path, text)
    else:
        completed = fresh.check(fresh.run(["-c", text]))
    assert completed.out.split() == ["[9,", "5,", "10]"]


def test_the_search_for_a_guard_leaves_the_frames_of_interpreters_alone(monkeypatch):
    """CPython 3.12 crashes if one interpreter looks at the frames of another one that runs."""
    looks = []
    monkeypatch.setattr(sys, "_current_frames", lambda: looks.append(1) or {})
    with pool_party.ComposablePool(1, kind="interp"), concurrent.futures.ThreadPoolExecutor(1) as other:
        assert not other.submit(main_guard.is_missing).result() and not looks
